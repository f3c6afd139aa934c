"""`python -m fuzz.rules [--write docs/rules.md]`: judge faulty outputs by every rule, print the tables."""

import argparse
from pathlib import Path

import torch

from fuzz.rules.report import render, replaced
from fuzz.rules.table import judge_all


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.rules", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the tables into this document")
    document = parser.parse_args().write
    torch.set_num_threads(1)
    tables = render(list(judge_all()))
    print(tables)
    if document is not None:
        document.write_text(replaced(document.read_text(), tables))


if __name__ == "__main__":
    main()
