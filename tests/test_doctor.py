"""`python -m fuzz doctor`."""

from argparse import Namespace

import pytest
import torch

from fuzz import doctor

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU cannot run")


@ON_CPU
def test_tells_what_runs_here_and_what_does_not_and_why(capsys):
    assert doctor._doctor(Namespace()) == 0
    said = capsys.readouterr().out
    assert f"torch {torch.__version__}" in said
    assert "no GPU: kernels run in Triton's interpreter" in said
    assert "the kernel runs on" in said and "and is right" in said
    assert "not run here: lengths:huge-q: needs" in said


@ON_CPU
def test_a_kernel_that_does_not_run_here_is_exit_status_2(monkeypatch, capsys):
    def fails(*args, **kwargs):
        raise RuntimeError("no such driver")

    monkeypatch.setattr("fuzz.checks.judge", fails)
    assert doctor._doctor(Namespace()) == 2
    assert "the kernel does NOT run here: RuntimeError: no such driver" in capsys.readouterr().out


@ON_CPU
def test_a_torch_that_does_not_see_the_gpu_is_told():
    assert "torch sees no GPU" in "\n".join(doctor._hardware(["0"], "cuda"))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "_PACKAGES", ("no-such-package",))
    assert "no-such-package: NOT INSTALLED; make test installs it" in list(doctor._software())


def test_says_which_sanitizers_there_are(monkeypatch):
    said = "\n".join(doctor._hardware([], "cpu"))
    assert "compute-sanitizer" in said and "sanitizers of Triton's own: consan" in said
    monkeypatch.setattr(doctor.tool, "PROGRAM", "no-such-sanitizer")
    assert "not here: compute-sanitizer, for --sanitize: there is no no-such-sanitizer" in "\n".join(
        doctor._hardware([], "cpu")
    )
