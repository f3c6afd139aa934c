"""New shapes never compile: the compiler runs once per combination of dtypes and layout class, whatever the lengths.

Shown without a GPU: Triton compiles for Hopper in a child process whose driver answers for an absent device.
"""

import json
import os
import random
import subprocess
import sys

import torch

from tests.reference_inputs import make_inputs


def compiled_variants(cases: list[dict]) -> list[int]:
    """How many variants exist after each case."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_variants"],
        input=json.dumps(cases),
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_hundred_shapes_compile_once():
    draw = random.Random(0)
    queries, keys = [0, 1, 2, 16, 17, 300], [0, 1, 16, 33, 400]
    shapes = [[(draw.choice(queries), draw.choice(keys)) for _ in range(draw.randrange(6))] for _ in range(100)]
    cases = [
        {"lengths": drawn, "padded_rows": 1500 if i == 50 else 1 + i % 16, "sm_scale": i / 7}
        for i, drawn in enumerate(shapes)
    ]
    assert compiled_variants(cases)[-1] == len(["short", "short, all", "lone", "prefill", "merge"])


def test_dtypes_and_layouts_are_the_only_variants():
    case = {"lengths": [(3, 5)], "padded_rows": 0, "sm_scale": 0.1}
    changes = [{}, {"columns": 513}, {"columns": 514}, {"columns": 520}, {"dtype": "float16"}]
    cases = [case | change for change in changes]
    assert compiled_variants(cases) == [1, 2, 2, 2, 3]


def _compile_for_hopper(cases: list[dict]) -> list[int]:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from kernel import host, plan

    class AbsentHopper:
        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    kernels, variants = set(), set()

    def compile_only(kernel, programs, device, variant, tensors, numbers, constants, options):
        kernel.warmup(*tensors, *numbers, **constants, grid=(programs,), **options)
        kernels.add(kernel)
        variants.add((kernel, *variant))

    driver.set_active(AbsentHopper())
    host.launch = compile_only
    counts = []
    for case in cases:
        inputs = make_inputs(
            case["lengths"],
            padded_rows=case["padded_rows"],
            sm_scale=case["sm_scale"],
            dtype=getattr(torch, case.get("dtype", "bfloat16")),
        )
        output = torch.empty(inputs.total_q, 16, case.get("columns", 512), dtype=inputs.q_nope.dtype)[..., :512]
        lse = torch.empty(inputs.total_q, 16)
        host._launch(inputs, inputs.sm_scale, output, lse, lambda device, listable: plan.plan_for((9, 0)))
        # What Triton tells apart is what `launch` is told apart by.
        counts.append(sum(len(kernel.device_caches[0][0]) for kernel in kernels))
        assert counts[-1] == len(variants)
    return counts


if __name__ == "__main__":
    print(json.dumps(_compile_for_hopper(json.load(sys.stdin))))
