"""Which RoPE convention made one tensor from another: measured phases, fitted frequencies, and a check in float64.

NumPy only; knows no devices.
"""

from .identification import Hypothesis, Identification, identify

__all__ = ["Hypothesis", "Identification", "identify"]
