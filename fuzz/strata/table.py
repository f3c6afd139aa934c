"""The strata as a page of documentation: `python -m fuzz.strata.table > docs/strata.md`."""

from collections.abc import Sequence

from fuzz.case import FAMILIES
from fuzz.strata.faults import FAULTS

_INTRODUCTION = """\
# Strata

A case is made of one stratum of each family below; lengths and tails are numbers, so a case belongs to all strata of
them that its numbers satisfy. Families compose freely. The first stratum of a family is the simplest, and what failing
cases shrink to. Choose with `python -m fuzz run --strata NAME,...`, by name, by `family:name`, by family, or by the
class of mistakes that they reveal, `F02`.

The last column says which mistake a stratum is there to reveal: the class of [the list below](#classes-of-mistakes),
and public reports of it by project and number. "numerics" is error analysis, "definition" what the operator's
definition asks for, "closed form" a case whose result is known without a reference.

Logits are given for the scale 1/sqrt(192). This page is written by `python -m fuzz.strata.table`.
"""

_TITLES = {
    "lengths": "Lengths",
    "tail": "Tails: what operands hold beyond what any request owns",
    "pages": "Page tables",
    "values": "Values",
    "layout": "Layouts",
    "scale": "Softmax scales",
    "poison": "Poison: dead pages and padded query rows",
    "dtype": "Dtypes",
    "index_dtype": "Index dtypes",
    "indptr": "Row pointers",
}


def page() -> str:
    """Markdown with a line for every stratum and every class of mistakes."""
    parts = [_INTRODUCTION]
    for family, registry in FAMILIES.items():
        rows = [(f"`{name}`", stratum.doc, stratum.source) for name, stratum in registry.items()]
        parts.append(_table(_TITLES[family], ("stratum", "what it is, and what shows", "from"), rows))
    parts.append(_table("Classes of mistakes", ("class", "mistake"), list(FAULTS.items())))
    return "\n".join(parts)


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
