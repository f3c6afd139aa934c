"""The property tests that pytest and a fuzz run collect."""
