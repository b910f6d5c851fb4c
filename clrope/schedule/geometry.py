"""The pairs of a head under their former name."""

from ..kernels.problem import PairLayout as Geometry

__all__ = ["Geometry"]
