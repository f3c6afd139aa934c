#!/usr/bin/env python
"""Stands in for compute-sanitizer: runs the program and writes a log, as PRETENDED_SANITIZER says.

clean        there is no error
errors       each case with more than 64 keys in its first request has one
handover     each such case has a report of a hand-over, as it would be of the kernel in test_sanitizer.py
unsupported  it does not run the program, as it does not know the GPU
"""

import json
import os
import subprocess
import sys
from pathlib import Path

_ERROR = """\
========= Invalid __global__ read of size 4 bytes
=========     at attend+0x1d80 in attend.py:93
=========     by thread (0,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 252 bytes
=========
"""
_HANDOVER = """\
========= Error: Race reported between Read access at halves+0x120 in specialized.py:5
=========     and Write access at halves+0xdfb0 in specialized.py:6 [219 hazards]
=========
"""


def main(arguments: list[str]) -> int:
    options, command = arguments[: arguments.index(sys.executable)], arguments[arguments.index(sys.executable) :]
    log = Path(options[options.index("--log-file") + 1])
    mode = os.environ.get("PRETENDED_SANITIZER", "")
    if mode == "unsupported":
        log.write_text("========= COMPUTE-SANITIZER\n========= Device not supported. Please refer to the manual.\n")
        return 255
    ended = subprocess.run(command, check=False)
    request = json.loads((log.parent / "request.json").read_text())
    journal = (log.parent / "batch.jsonl").read_text().splitlines()
    begun = sum('"begins"' in line for line in journal)
    wrong = [case for case in request["cases"][:begun] if case["lengths"] and case["lengths"][0][2] > 64]
    told = {"errors": [_ERROR], "handover": [_HANDOVER]}.get(mode, []) * len(wrong)
    said = ["========= COMPUTE-SANITIZER\n", *told, f"========= ERROR SUMMARY: {len(told)} errors\n"]
    log.write_text("".join(said))
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
