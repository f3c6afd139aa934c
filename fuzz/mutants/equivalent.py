"""Generated mutants that nothing can tell from the original, by name, each with the reason."""

EQUIVALENT: dict[str, str] = {}
