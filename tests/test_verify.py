"""fuzz.verify in anyone's tests, and the plugin in anyone's conftest."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fuzz
from fuzz.cli import main
from fuzz.names import check_packages
from fuzz.options import UsageError
from fuzz.verification import spelled
from tests import wrong_kernels

ROOT = Path(__file__).parents[1]


def failure(kernel, tmp_path, **arguments) -> str:
    with pytest.raises(AssertionError) as failed:
        fuzz.verify(kernel, device="cpu", out=tmp_path, **arguments)
    return str(failed.value)


def test_a_kernel_that_is_right_passes_and_has_numbers(tmp_path):
    worst = fuzz.verify(wrong_kernels.right, contract="serving", max_cases=40, device="cpu", out=tmp_path)
    assert {"alive", "written", "in-bounds", "inputs-untouched", "output", "lse"} <= set(worst)
    assert 0 <= worst["output"] <= 1 and worst["alive"] is None
    assert not list(tmp_path.iterdir())


def test_a_failure_says_what_was_found_on_the_smallest_case_and_how_to_replay_it(tmp_path, monkeypatch, capsys):
    message = failure(wrong_kernels.long_context, tmp_path, contract="serving")
    assert message.startswith("tests.wrong_kernels:long_context does not keep the contract 'serving': case ")
    assert re.search(r"^  output: .* elements are outside the bound; .* sees 65 of 65 keys, at \[0, 3, ", message, re.M)
    assert "\nsmallest case: Case(lengths=((1, 1, 65),))\n" in message
    [arguments] = re.findall(r"^replay: python -m fuzz (.*)$", message, re.M)
    monkeypatch.chdir(ROOT)
    assert main(arguments.split()) == 1
    assert capsys.readouterr().out.startswith("FAILED output-")


def test_a_check_that_calls_the_kernel_again_is_shrunk_too(tmp_path):
    message = failure(wrong_kernels.moody, tmp_path, contract="serving")
    assert "does not keep the contract 'serving'" in message and "smallest case: Case(" in message


def test_an_exception_of_the_kernel_is_a_failure(tmp_path):
    message = failure(wrong_kernels.raising, tmp_path)
    assert "  alive: ValueError: one request only" in message
    [case] = re.findall(r"^smallest case: (.*)$", message, re.M)
    lengths = eval(case, {"Case": fuzz.case.Case}).lengths
    assert lengths in (((2, 1, 1),), ((1, 0, 0), (1, 1, 1)))  # two requests, and nothing in either can go


def test_a_function_that_no_spec_names_is_replayed_by_the_same_call(tmp_path):
    message = failure(lambda **operands: wrong_kernels.natural_lse(**operands), tmp_path)
    assert message.startswith("<lambda> does not keep") and "ln instead of log2" in message
    assert message.endswith("replay: call verify again, the same arguments give the same cases")


def test_the_same_arguments_give_the_same_cases(tmp_path):
    seen = []

    def recorded(**operands):
        seen.append(operands["q_nope"].shape[0])
        return wrong_kernels.right(**operands)

    for _ in range(2):
        fuzz.verify(recorded, max_cases=12, seed=5, device="cpu", out=tmp_path)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_an_output_alone_is_enough_without_the_promise_of_an_lse(tmp_path):
    def output_alone(**operands):
        return wrong_kernels.right(**operands)[0]

    worst = fuzz.verify(output_alone, without=["lse"], max_cases=10, device="cpu", out=tmp_path)
    assert "output" in worst and "lse" not in worst


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"contract": "strict"}, "--contract strict: no such contract; there are definition, serving, hardened"),
        ({"without": ["paddin"]}, "--without paddin: no such promise; there are base, "),
        ({"without": ["base"]}, "--without base: nothing would be left to check"),
        ({"strata": ["bel"]}, "--strata bel: no stratum 'bel'"),
        ({"profile": "sloppy"}, "profile 'sloppy' is none of default, "),
        ({"device": "tpu"}, "device 'tpu' is none of auto, cpu, cuda"),
        ({"kernel": "nowhere:run"}, "--kernel nowhere:run: there is no module 'nowhere' on the path"),
        ({"kernel": lambda q, k, v: None}, "--kernel <lambda>: the function takes no q_nope"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, complaint):
    with pytest.raises(UsageError) as refusal:
        fuzz.verify(**{"kernel": wrong_kernels.right} | arguments)
    assert complaint in str(refusal.value)


def test_a_case_is_spelled_without_its_defaults():
    case = fuzz.case.Case(lengths=((1, 2, 3),), pages="reversed", seed=4)
    assert spelled(case) == "Case(lengths=((1, 2, 3),), pages='reversed', seed=4)"
    assert eval(spelled(case), {"Case": fuzz.case.Case}) == case


def in_project(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in another project, as if this one were installed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_", "CI"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=place,
        env=environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / "docs/examples/own_project", tmp_path / "own", ignore=ignored))


def test_the_example_project_verifies_its_kernel_and_can_fuzz_it(project):
    ended = in_project(project, "-q")
    assert ended.returncode == 0 and "1 passed" in ended.stdout and "mla-fuzz" not in ended.stdout, ended.stdout
    fuzzed = in_project(project, "--kernel", "my_attention:prefill", "--contract", "serving", "--max-cases", "10")
    assert fuzzed.returncode == 0 and "mla-fuzz: 0 failures in 10 cases" in fuzzed.stdout, fuzzed.stdout


def test_the_example_project_notices_when_its_kernel_breaks(project):
    kernel = project / "my_attention.py"
    kernel.write_text(kernel.read_text().replace("top + torch.log2(total)", "top + torch.log(total)"))
    ended = in_project(project, "-q")
    assert ended.returncode == 1
    assert "my_attention:prefill does not keep the contract 'serving'" in ended.stdout
    assert "replay: python -m fuzz replay fuzz-results/verify/my_attention-prefill/failures/lse-" in ended.stdout
    assert "verification.py" not in ended.stdout  # a traceback that ends in the user's own test


def test_sessions_of_other_projects_are_left_as_they_are(project):
    (project / "conftest.py").write_text(
        "from hypothesis import settings\n"
        "pytest_plugins = ['fuzz.plugin']\n"
        "settings.register_profile('theirs', max_examples=7)\n"
        "settings.load_profile('theirs')\n"
    )
    (project / "test_my_attention.py").write_text(
        "import os\nfrom hypothesis import settings\n"
        "def test_settings():\n"
        "    assert settings.default.max_examples == 7\n"
        "    assert 'TRITON_INTERPRET' not in os.environ\n"
    )
    for arguments in (["-q"], ["-q", "-n", "1"], ["-q", "--hypothesis-profile", "theirs"]):
        ended = in_project(project, *arguments)
        assert ended.returncode == 0 and "1 passed" in ended.stdout, ended.stdout + ended.stderr


def test_a_module_that_hides_one_of_our_packages_is_told(project):
    check_packages()
    (project / "my_attention.py").rename(project / "kernel.py")
    test = project / "test_my_attention.py"
    test.write_text(test.read_text().replace("my_attention", "kernel"))
    ended = in_project(project, "-q")
    assert ended.returncode == 1 and "own/kernel.py is what `import kernel` finds instead of" in ended.stdout
    refused = in_project(project, "--kernel", "kernel.py:prefill", "--max-cases", "2")
    assert refused.returncode == 2 and "is what `import kernel` finds" in refused.stdout + refused.stderr
