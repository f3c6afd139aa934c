"""Prints what a run found as Markdown, for $GITHUB_STEP_SUMMARY: python step_summary.py SUMMARY.json"""

import html
import json
import sys
from pathlib import Path


def main(path: Path) -> None:
    if not path.exists():
        print("**No verdict**: the run left no summary.")
        return
    said = json.loads(path.read_text())
    verdict = {0: "Passed", 1: "Failed"}.get(said["exit_status"], "No verdict")
    print(f"## {verdict}: {len(said['failures'])} failures in {said['cases']:,} cases")
    print(
        f"{code(said['kernel'])} on {text(said['device'])}, {said['elapsed_s']:.0f} s, {said['cases_per_s']:g} cases a"
    )
    print(f"second, seed {said['seed']}, contract {said['contract']}, stopped: {text(said['stopped'])}")
    for message in said["errors"]:
        print(f"\n- {text(message.strip().splitlines()[-1])}")
    if said["failures"]:
        print("\n| check | needs | cases | replay |\n| --- | --- | ---: | --- |")
        for one in said["failures"]:
            print(f"| {one['check']} | {text(one['stratum'])} | {one['cases']:,} | {code(one['replay'])} |")
    print("\n| check | cases | failed | worst error / bound |\n| --- | ---: | ---: | ---: |")
    for name, one in said["checks"].items():
        worst = "" if one["worst_ratio"] is None else f"{float(one['worst_ratio']):.3g}"
        print(f"| {name} | {one['cases']:,} | {one['failed']:,} | {worst} |")


def code(value: str) -> str:
    return f"<code>{text(value)}</code>"


def text(value: object) -> str:
    """The value without anything that Markdown or HTML would take for markup, on one line."""
    safe = html.escape(" ".join(str(value).split()))
    return "".join(f"&#{ord(sign)};" if sign in "|*_`[]\\~" else sign for sign in safe)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
