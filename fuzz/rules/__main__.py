"""`python -m fuzz.rules [--write docs/rules.md]`: judge faulty outputs by every rule, print the tables."""

import argparse
from pathlib import Path

import torch

from fuzz.document import put
from fuzz.rules.report import render
from fuzz.rules.table import judge_all

COMMAND = "python -m fuzz.rules"


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the tables into this document")
    document = parser.parse_args().write
    torch.set_num_threads(1)
    tables = render(list(judge_all()))
    print(tables)
    if document is not None:
        put(document, COMMAND, tables)


if __name__ == "__main__":
    main()
