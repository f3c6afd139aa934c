"""A FlashInfer-Bench solution is loaded from its JSON alone; what cannot be run is refused with one helpful line."""

import json

import pytest
import torch

from fuzz.loading import load
from fuzz.options import UsageError
from fuzz.target import OPERANDS
from kernel.contract import DEFINITION
from tests.test_target import one_request

RETURNING = f"""
from .lib.shared import fill_value
import torch

def run({", ".join(name[:3] + name[-3:] for name in OPERANDS)}):
    return torch.full_like({OPERANDS[0][:3] + OPERANDS[0][-3:]}, fill_value()), torch.zeros(2, 16)
"""
WRITING = """
def run(a, b, c, d, e, f, g, scale, out, log_sum):
    out.fill_(scale)
    log_sum.fill_(2)
    return "what is returned does not count"
"""


def solution(*sources: tuple[str, str], entry: str = "main.py::run", **spec) -> dict:
    return {
        "name": "a solution",
        "definition": DEFINITION,
        "author": "nobody",
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": entry, **spec},
        "sources": [{"path": path, "content": content} for path, content in sources],
    }


@pytest.fixture
def saved(tmp_path):
    def save(value) -> str:
        path = tmp_path / "solution.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return save


def test_a_returning_solution_of_several_files_is_called_by_position(saved):
    sources = ("src/main.py", RETURNING), ("src/lib/shared.py", "def fill_value():\n    return 3")
    spec = saved(solution(*sources, entry="src/main.py::run", destination_passing_style=False))
    target = load(spec)
    assert (target.spec, target.destination_passing) == (spec, False)
    output, lse = target(one_request())
    assert output.eq(3).all() and lse.shape == (2, 16)


def test_destination_passing_is_the_default_and_the_buffers_are_the_results(saved):
    target = load(saved(solution(("main.py", WRITING))))
    assert target.destination_passing
    output, lse = torch.zeros(2, 16, 512), torch.zeros(2, 16)
    assert target(one_request(), output, lse) == (output, lse)
    assert output.eq(0.5).all() and lse.eq(2).all()


def test_two_solutions_with_files_of_the_same_name_do_not_meet(saved):
    text = "def run(*operands):\n    operands[8].fill_({0})\n    operands[9].fill_({0})"
    first = load(saved(solution(("main.py", text.format(1)))))
    second = load(saved(solution(("main.py", text.format(2)))))
    assert first(one_request())[0].eq(1).all() and second(one_request())[0].eq(2).all()


def spoiled(path: str, value) -> dict:
    """A solution in which one field, 'spec.language' say, is another; None takes it away."""
    made = solution(("main.py", WRITING))
    *parents, name = path.split(".")
    place = made
    for parent in parents:
        place = place[int(parent)] if parent.isdigit() else place[parent]
    if value is None:
        del place[name]
    else:
        place[name] = value
    return made


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("{", "it is no JSON: Expecting property name"),
        ([], "a solution without spec"),
        (spoiled("spec", None), "a solution without spec"),
        (spoiled("sources", []), "sources of a solution must be a list that is not empty"),
        (spoiled("definition", "gemm"), "it solves 'gemm', not mla_paged_prefill_causal_h16_ckv512_kpe64_ps1"),
        (spoiled("spec.language", "cuda"), "spec.language is 'cuda'; only python and triton can be run here"),
        (spoiled("spec.entry_point", "main.py:run"), "spec.entry_point is 'main.py:run', must be 'path/file.py::func"),
        (spoiled("spec.entry_point", "other.py::run"), "spec.entry_point names other.py, but sources has main.py"),
        (spoiled("spec.entry_point", "main.py::ran"), "entry_point main.py::ran: there is no such function"),
        (spoiled("spec.destination_passing_style", 1), "spec.destination_passing_style is 1, must be true or false"),
        (spoiled("spec.destination_passing_style", False), "it is called with 8 arguments"),
        (spoiled("sources.0.content", 3), "content of a source must be a text that is not empty"),
        (spoiled("sources.0.content", "def run(q): ..."), "it is called with 10 arguments"),
        (spoiled("sources.0.content", "def run(:"), "SyntaxError: invalid syntax (main.py, line 1)"),
        (spoiled("sources.0.content", "import nowhere_to_be_found"), "No module named 'nowhere_to_be_found'"),
        (spoiled("sources.0.path", "../main.py"), "the source path '../main.py' leads out of the solution"),
        (spoiled("sources.0.path", "/main.py"), "the source path '/main.py' leads out of the solution"),
        (spoiled("sources.0.path", "a\\main.py"), r"the source path 'a\\main.py' leads out of the solution"),
        (solution(("main.py", WRITING), ("main.py", WRITING)), "there are two sources 'main.py'"),
    ],
)
def test_what_cannot_be_run_is_refused(saved, value, complaint):
    spec = saved(value)
    with pytest.raises(UsageError) as refusal:
        load(spec)
    message = str(refusal.value)
    assert message.startswith(f"--kernel {spec}: ") and complaint in message and "\n" not in message


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--kernel .*absent.json: there is no file"):
        load(str(tmp_path / "absent.json"))
