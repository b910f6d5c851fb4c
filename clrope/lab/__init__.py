"""The kernel lab: `.cl` files of your own as kernels of this package, checked and diagnosed on every device."""

from .lab_kernel import load

__all__ = ["load"]
