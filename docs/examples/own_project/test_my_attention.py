"""The kernel keeps what its README promises."""

from my_attention import prefill

import fuzz


def test_prefill_keeps_its_promises():
    fuzz.verify(prefill, contract="serving")
