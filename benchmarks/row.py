"""What was measured of one kernel on one workload: a row of the benchmark's JSON."""

from typing import TypedDict


class Row(TypedDict):
    """us          microseconds on the GPU; host_us: that the host spends in the call
    of_roof       the workload's roofline time over `us`
    output_error  of the checked rows, relative to the norm of the golden ones
    lse_error     the largest, absolute; None for a kernel that gives no lse
    outside       checked rows and heads with an element outside the bound
    speedup       each peer's time over `us`
    """

    name: str
    kernel: str
    us: float
    host_us: float
    tflops: float
    of_roof: float
    output_error: float
    lse_error: float | None
    outside: int
    speedup: dict[str, float]
