"""A kernel under test is named on the command line; whatever cannot be used is refused with one helpful line."""

import pytest
import torch

from fuzz.loading import load
from fuzz.options import UsageError
from fuzz.target import OPERANDS
from kernel.contract import Inputs
from reference.profile import PROFILES


def one_request() -> Inputs:
    return Inputs(
        q_nope=torch.zeros(2, 16, 512, dtype=torch.bfloat16),
        q_pe=torch.zeros(2, 16, 64, dtype=torch.bfloat16),
        ckv_cache=torch.ones(3, 1, 512, dtype=torch.bfloat16),
        kpe_cache=torch.zeros(3, 1, 64, dtype=torch.bfloat16),
        qo_indptr=torch.tensor([0, 2], dtype=torch.int32),
        kv_indptr=torch.tensor([0, 3], dtype=torch.int32),
        kv_indices=torch.tensor([0, 1, 2], dtype=torch.int32),
        sm_scale=0.5,
    )


@pytest.fixture
def kernel_file(tmp_path):
    def write(body: str, name: str = "mine.py"):
        (tmp_path / name).write_text(f"import torch\nNAMES = {OPERANDS!r}\n{body}\n")
        return tmp_path / name

    return write


def test_our_kernel_is_the_default_and_takes_its_results_as_destinations():
    target = load()
    assert (target.spec, target.destination_passing) == ("kernel:run", True)
    inputs = one_request()
    output, lse = torch.empty(2, 16, 512, dtype=torch.bfloat16), torch.empty(2, 16)
    returned = target(inputs, output, lse)
    assert returned[0] is output and returned[1] is lse
    assert torch.equal(output, torch.ones_like(output))
    assert torch.allclose(lse, torch.tensor([2.0, 3.0]).log2()[:, None].expand(2, 16))


@pytest.mark.parametrize(
    "returned",
    ["o, l", "[o, l]", "{'output': o, 'lse': l}", "{'lse': l, 'output': o, 'scratch': None}"],
    ids=["tuple", "list", "dict", "dict with more in it"],
)
def test_results_may_come_as_tuple_list_or_dict(kernel_file, returned):
    path = kernel_file(
        f"def run(**operands):\n    assert tuple(operands) == NAMES\n"
        f"    o, l = operands['q_nope'] + 1, torch.zeros(2, 16)\n    return {returned}"
    )
    output, lse = load(f"{path}:run")(one_request())
    assert output.shape == (2, 16, 512) and lse.shape == (2, 16)


def test_a_destination_passing_function_writes_into_the_buffers_that_it_is_given_or_new_ones(kernel_file):
    path = kernel_file(f"def run({', '.join(OPERANDS)}, output, lse):\n    output.fill_(3)\n    lse.fill_(4)")
    target = load(f"{path}:run")
    assert target.destination_passing
    output, lse = torch.zeros(2, 16, 512, dtype=torch.bfloat16), torch.zeros(2, 16)
    assert target(one_request(), output, lse) == (output, lse)
    assert output.eq(3).all() and lse.eq(4).all()
    output, lse = target(one_request())
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert output.eq(3).all() and lse.eq(4).all()


@pytest.mark.parametrize("returned", ["o", "(o,)", "(o, None)", "{'output': o}", "{'output': o, 'lse': None}"])
def test_a_kernel_may_give_an_output_alone(kernel_file, returned):
    path = kernel_file(f"def run(**operands):\n    o = operands['q_nope'] + 1\n    return {returned}")
    output, lse = load(f"{path}:run")(one_request())
    assert output.shape == (2, 16, 512) and lse is None


def test_a_kernel_may_take_a_destination_for_its_output_alone(kernel_file):
    path = kernel_file(f"def run({', '.join(OPERANDS)}, output):\n    output.fill_(3)")
    output, lse = load(f"{path}:run")(one_request(), torch.zeros(2, 16, 512), torch.zeros(2, 16))
    assert output.eq(3).all() and lse is None


def test_the_profile_goes_with_the_target():
    assert load("kernel:run").profile.name == "default"
    assert load("kernel:run", "fast-math").profile is PROFILES["fast-math"]


def test_a_file_may_import_its_neighbours_and_name_an_attribute(kernel_file):
    kernel_file("def helper(q):\n    return q, q", name="neighbour_of_mine.py")
    path = kernel_file(
        "from neighbour_of_mine import helper\nclass Solution:\n    @staticmethod\n"
        "    def run(q_nope, **rest):\n        return helper(q_nope)"
    )
    assert not load(f"{path}:Solution.run").destination_passing


def test_a_module_in_the_current_directory_is_found(kernel_file, tmp_path, monkeypatch):
    kernel_file("def run(**operands): ...", name="kernel_of_this_directory.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    assert load("kernel_of_this_directory:run").spec == "kernel_of_this_directory:run"


SIGNATURE = ", ".join(OPERANDS)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("kernel", "expected module:function, path/file.py:function or a solution's path.json"),
        (":run", "expected module:function, path/file.py:function or a solution's path.json"),
        ("kernel:", "expected module:function, path/file.py:function or a solution's path.json"),
        ("no_such_module_anywhere:run", "there is no module 'no_such_module_anywhere' on the path"),
        ("kernel.absent:run", "there is no module 'kernel.absent' on the path"),
        ("absent/file.py:run", "there is no file absent/file.py"),
        ("kernel:rum", "kernel has no 'rum'; did you mean 'run'?"),
        ("kernel:DEFINITION", "'DEFINITION' is a str, not a function"),
    ],
)
def test_a_spec_that_names_nothing_is_refused(spec, complaint):
    with pytest.raises(UsageError) as refusal:
        load(spec)
    assert str(refusal.value) == f"--kernel {spec}: {complaint}"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("def run(", "mine.py cannot be imported: SyntaxError: '(' was never closed (mine.py, line 3)"),
        ("import not_installed_anywhere", "cannot be imported: No module named 'not_installed_anywhere'"),
        ("raise RuntimeError('no\\nlicence')", "cannot be imported: RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("def run(q, k, v): ...", "the function takes no q_nope, q_pe, ckv_cache"),
        (f"def run({SIGNATURE.replace('kv_indices, ', '')}): ...", "the function takes no kv_indices; it is called"),
        (f"def run({SIGNATURE}, page_size): ...", "the function needs page_size, which is no operand"),
        (f"def run({SIGNATURE}, lse): ...", "the function takes lse but not output"),
        (f"def run({SIGNATURE}, /): ...", "the function takes no q_nope"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(kernel_file, body, complaint):
    path = kernel_file(body)
    with pytest.raises(UsageError) as refusal:
        load(f"{path}:run")
    message = str(refusal.value)
    assert message.startswith(f"--kernel {path}:run: ") and complaint in message and "\n" not in message


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("None", "returned None, not output, (output, lse) or a dict of them"),
        ("(1, 2, 3)", "returned a tuple of 3, not output, (output, lse)"),
        ("(None, torch.zeros(2))", "returned None as output, not a tensor"),
        ("(torch.zeros(2), 3)", "returned a int as lse, not a tensor"),
        ("{'out': 1, 'lse': 2}", "returned a dict without 'output'; it has ['lse', 'out']"),
    ],
)
def test_results_of_another_form_are_a_type_error(kernel_file, returned, complaint):
    target = load(f"{kernel_file(f'def run(**operands): return {returned}')}:run")
    with pytest.raises(TypeError) as refusal:
        target(one_request())
    assert complaint in str(refusal.value)


def test_a_kernel_may_tell_which_of_its_variants_computes_a_row(kernel_file):
    body = "def run(**operands): ...\nrun.variant = lambda row, q_nope, **operands: f'{len(q_nope)}-row-{row}'"
    assert load(f"{kernel_file(body)}:run").variant(one_request(), 1) == f"{one_request().total_q}-row-1"
    assert load(f"{kernel_file('def run(**operands): ...')}:run").variant(one_request(), 1) == ""


@pytest.mark.parametrize("name", [None, 3, "", "Split KV", "../up", "x" * 33])
def test_a_variant_without_a_short_name_is_a_type_error(kernel_file, name):
    target = load(f"{kernel_file(f'def run(**operands): ...{chr(10)}run.variant = lambda **_: {name!r}')}:run")
    with pytest.raises(TypeError, match="a name is up to 32 of"):
        target.variant(one_request(), 0)
