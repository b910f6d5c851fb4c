"""Prototyping for NPUs: a machine's description, a tiling for it, and a check of a kernel file against its rules."""

from .npu_check import NpuReport, check
from .npu_machine import NpuMachine, machine, machine_names
from .tile_plan import Tiling, tiling

__all__ = ["NpuMachine", "NpuReport", "Tiling", "check", "machine", "machine_names", "tiling"]
