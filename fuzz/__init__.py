"""How a kernel is proved: cases, checks, verdicts, reproducers.

`fuzz.verify(kernel, contract="serving")` is the whole of it in one call, for the tests of anyone's kernel.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.verification import verify

__all__ = ["verify"]


def __getattr__(name: str) -> object:
    """`verify`, imported when it is asked for: the commands start without torch."""
    if name == "verify":
        from fuzz.names import check_packages

        check_packages()
        from fuzz.verification import verify

        return verify
    raise AttributeError(f"module 'fuzz' has no attribute {name!r}")
