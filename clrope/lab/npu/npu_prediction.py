"""`predict`: how long a machine would take for recorded copies and their computing, under plain assumptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .npu_machine import NpuMachine
from .recorder import CoreTrace

#: What the prediction assumes, for people.
ASSUMPTIONS = (
    "a core's copies run one after another, each for latency_ns and its bytes at core_gb_s",
    "a rotated or copied element takes 3 vector instructions' share (two products, one sum), with 16-bit or narrower "
    "storage 5 (conversions); computing is in 4 bytes, for f64 in 8",
    "overlapped: the longer of copying and computing, and a tile's share of the shorter; otherwise their sum",
    "all cores together are limited by total_gb_s; launch, scalar code and synchronisation take nothing",
)


@dataclass(frozen=True)
class Prediction:
    """Seconds: of the slowest core, its copying and computing, and what the whole memory traffic takes at least."""

    seconds: float
    copying: float
    computing: float
    memory: float


def predict(machine: NpuMachine, cores: Iterable[CoreTrace], itemsize: int) -> Prediction:
    """Return the prediction for the traces of all cores. itemsize: of an element of y."""
    slowest, copying, computing, traffic = 0.0, 0.0, 0.0, 0
    for core in cores:
        copies = core.copies
        nbytes = sum(c.nbytes for c in copies)
        copy = sum(c.runs for c in copies) * machine.latency_ns * 1e-9 + nbytes / (machine.core_gb_s * 1e9)
        elements = core.bytes_out // itemsize
        instructions = elements * (3 if itemsize >= 4 else 5) * max(itemsize, 4) / machine.vector_bytes
        compute = instructions / (machine.clock_ghz * 1e9)
        whole = copy + compute
        if core.overlapped:
            whole = max(copy, compute) + min(copy, compute) / core.tiles
        if whole >= slowest:
            slowest, copying, computing = whole, copy, compute
        traffic += nbytes
    memory = traffic / (machine.total_gb_s * 1e9)
    return Prediction(max(slowest, memory), copying, computing, memory)
