"""The ready-made jobs: workflows whose shell parts run as they stand, and the Slurm script with a stand-in for it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report_runs import FINDING, Written

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SLURM = ROOT / "docs" / "jobs" / "slurm-array.sh"

# Runs each task of an array at once, then what depends on it.
SBATCH = """#!/usr/bin/env bash
set -u
array= wrap= log=
while [ $# -gt 0 ]; do
    case $1 in
        --array=*) array=${1#*=} ;;
        --output=*) log=${1#*=} ;;
        --wrap) wrap=$2; shift ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
if [ -n "$wrap" ]; then
    bash -c "$wrap" > "$log" 2>&1
    echo 43
    exit
fi
for i in $(seq "${array%-*}" "${array#*-}"); do
    export SLURM_ARRAY_JOB_ID=42 SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=$((${array#*-} + 1))
    bash "$@" > "${log/\\%a/$i}" 2>&1
done
echo 42
"""


def load(path: Path) -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text())


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.fixture
def repository(tmp_path) -> Path:
    """A directory in which .venv/bin/python -m fuzz runs pretended kernels."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/usr/bin/env bash\nexport PYTHONPATH="{ROOT}"\n'
        f'if [ "$1" = -m ]; then shift 2; exec "{sys.executable}" "{ROOT}/tests/pretend_run.py" "$@"; fi\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    return tmp_path


def shell(repository: Path, script: str, **variables: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MLA_FUZZ", "PYTEST"))}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=repository,
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_can_only_read_and_end_in_time(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 360
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_others_write_reaches_the_shell_through_variables_only(path):
    for step in steps(load(path)):
        assert "${{" not in step.get("run", "")
        assert subprocess.run(["bash", "-n", "-c", step.get("run", "")]).returncode == 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_files_that_workflows_name_exist(path):
    for step in steps(load(path)):
        for name in re.findall(r"(?<![\w/.-])((?:tests|\.github|\.ci)/[\w./-]+)", step.get("run", "")):
            assert (ROOT / name).exists(), name


def test_the_nightly_jobs_shell_parts_fuzz_merge_and_tell(repository):
    workflow = load(ROOT / ".github" / "workflows" / "nightly.yml")
    scripts = {step["name"]: step["run"] for step in steps(workflow) if "run" in step}
    shards = workflow["jobs"]["fuzz"]["strategy"]["matrix"]["shard"]
    assert shards == list(range(workflow["env"]["SHARDS"]))
    summary = repository / "step_summary.md"
    variables = {"KERNEL": "wrong:run", "MAX_TIME": "60s", "SEED": "5", "SHARDS": "2"}
    variables |= {"GITHUB_STEP_SUMMARY": str(summary), "MLA_FUZZ_MAX_CASES": "70", "MLA_FUZZ_WORKERS": "1"}
    (repository / "shards").mkdir()
    for night in range(2):
        for shard in range(2):
            ended = shell(repository, scripts["Fuzz"], **variables, SHARD=str(shard))
            assert ended.returncode == 1, ended.stdout + ended.stderr
            shutil.rmtree(repository / "shards" / f"shard-{shard}", ignore_errors=True)
            (repository / f"shard-{shard}").rename(repository / "shards" / f"shard-{shard}")
        ended = shell(repository, scripts["Merge"], **variables)
        assert ended.returncode == 1, ended.stdout + ended.stderr
        assert shell(repository, scripts["Say what was found"], **variables).returncode == 0
        assert "in 70 cases" in summary.read_text()
        forgotten = scripts["Forget old nights, and what only replays of the journals need"]
        assert shell(repository, forgotten, **variables).returncode == 0
        assert not list((repository / "night").rglob("gw*.jsonl"))
        assert len(list((repository / "night" / "earlier").glob("*"))) == night
    assert "0 new, 2 known from earlier runs" in (repository / "night" / "report.html").read_text()


def test_the_slurm_script_shards_a_run_and_merges_it(repository):
    bin_directory = repository / "bin"
    bin_directory.mkdir()
    (bin_directory / "sbatch").write_text(SBATCH)
    (bin_directory / "sbatch").chmod(0o755)
    ended = shell(
        repository,
        f'"{SLURM}" "nights/a friday" 2 --kernel wrong:run --max-cases 70 -n 1',
        PATH=f"{bin_directory}:{os.environ['PATH']}",
    )
    assert ended.returncode == 0, ended.stderr
    assert "array 42, then merge 43; the report will be nights/a friday/all/report.html" in ended.stdout
    said = json.loads((repository / "nights" / "a friday" / "all" / "summary.json").read_text())
    assert (said["cases"], said["seed"], said["exit_status"]) == (70, 42, 1)
    assert (repository / "nights" / "a friday" / "all" / "report.html").exists()


def test_the_slurm_script_says_how_it_is_used(repository):
    ended = shell(repository, f'"{SLURM}"')
    assert ended.returncode == 2
    assert "docs/jobs/slurm-array.sh OUT TASKS [OPTION...]" in ended.stderr
    assert "SBATCH" not in ended.stderr


def step_summary(path: Path) -> str:
    script = ROOT / ".github" / "step_summary.py"
    return subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=True).stdout


def test_the_step_summary_tells_failures_and_cannot_be_broken_out_of(tmp_path):
    hostile = "a|b`</td><script>x</script>\n\n# title"
    run = Written(tmp_path / "run", kernel=hostile)
    run.judge({"output": 0.25}, FINDING)
    run.journal.write("error", usage=False, message=hostile)
    run.end(exit_status=1)
    said = step_summary(tmp_path / "run" / "summary.json")
    assert "## Failed: 1 failures in 1 cases" in said
    assert "| output | 1 | 1 | 0.25 |" in said
    assert "<script>" not in said and "\n# title" not in said
    assert step_summary(tmp_path / "absent.json") == "**No verdict**: the run left no summary.\n"
