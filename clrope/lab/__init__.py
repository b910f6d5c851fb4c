"""The kernel lab: `.cl` files of your own as kernels of this package, checked and diagnosed on every device."""

from .contract import Contract
from .lab_kernel import load

__all__ = ["Contract", "load"]
