"""Which RoPE convention made one tensor from another: measured phases, fitted frequencies, and a check in float64.

NumPy only; knows no devices.
"""

from .hypothesis import Hypothesis
from .identification import Identification, identify
from .parts import Part

__all__ = ["Hypothesis", "Identification", "Part", "identify"]
