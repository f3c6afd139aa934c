"""A dozen mutants, always the same, through the command line: the suite still notices each of them."""

import json
import subprocess
import sys

SUBSET = (
    "causal edge one late",
    "page 0 in place of no page",
    "page table ignored",
    "keys of the neighbour",
    "output not rescaled",
    "accumulator in 16 bits",
    "natural lse",
    "lse transposed",
    "0/0 in a short row",
    "padded rows not written",
    "rows of the next request written",
    "grid without requests",
)


def test_the_suite_kills_a_dozen_mutants_and_spares_the_original(tmp_path):
    command = [sys.executable, "-m", "fuzz", "mutants", "--device", "cpu", "--max-cases", "30", "-n", "2"]
    done = subprocess.run(
        [*command, "--only", ",".join(SUBSET), "--out", str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "mutants.json").read_text())
    states = {one["name"]: one["state"] for one in written["mutants"]}
    assert states == dict.fromkeys(SUBSET, "killed") | {"the unchanged kernel": "survived"}
    for one in written["mutants"]:
        if one["state"] == "killed":
            assert one["checks"] and one["case"] and 1 <= one["number"] <= 30
    assert "control: 1 survived" in done.stderr
