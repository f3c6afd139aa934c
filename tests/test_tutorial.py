"""Every command of docs/tutorial.md does what is written there, in the order of the page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"# exit status (\d)$")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code blocks of a page: language and text."""
    return BLOCK.findall(page.read_text())


def commands(block: str) -> list[tuple[str, int]]:
    """The commands of a shell block with the exit status that each has; one with a here-document is several lines."""
    found, open_until = [], ""
    for line in block.splitlines():
        if open_until:
            found[-1] = (f"{found[-1][0]}\n{line}", 0)
            open_until = "" if line == open_until else open_until
            continue
        status = STATUS.search(line)
        found.append((line, int(status[1]) if status else 0))
        document = re.search(r"<<'(\w+)'$", line)
        open_until = document[1] if document else ""
    return found


def appears(line: str, output: str) -> bool:
    """Whether a line that is shown, with ... for what is left out, is part of a line of the output."""
    return re.search(".*".join(map(re.escape, line.split("..."))), output) is not None


def test_the_tutorial_does_what_it_says(tmp_path):
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples", ignore=shutil.ignore_patterns("__*"))
    (tmp_path / "mine").mkdir()
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    output = ""
    for language, text in blocks(ROOT / "docs" / "tutorial.md"):
        if language == "shell":
            output = ""
            for command, status in commands(text):
                ended = subprocess.run(
                    ["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
                )
                output += ended.stdout + ended.stderr
                assert ended.returncode == status, f"{command}\n{output}"
        elif language == "text":
            for line in text.splitlines():
                assert appears(line, output), f"not in the output: {line}\n{output}"
        else:
            assert text.strip() in "\n".join(
                line.strip() for line in (ROOT / "docs/examples/tiled.py").read_text().splitlines()
            )


def test_the_mistake_that_the_tutorial_finds_is_one_word():
    kernel = (ROOT / "docs/examples/tiled.py").read_text()
    assert kernel.count("visible[0]") == 1 and "visible[-1]" not in kernel
