"""Sets of input and output memory: so many that a set has left every cache when its turn comes again.

All tensors of a set are contiguous in one block. Ceilings copy the block, rotations use the tensors.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..device.cache import host_cache_bytes, largest_cache, sets_beyond
from ..layout import DTYPES
from ..testing import POISON, poisoned
from ..timed_outputs import TimedOutputs
from .entry import SetCursor
from .workloads import LINE, Shape, Workload

if TYPE_CHECKING:
    import pyopencl

    from ..device import DeviceInfo

Bytes = npt.NDArray[np.uint8]
#: Bytes of poison behind each block of a device.
GUARD = 4096


def sets_needed(workload: Workload, cache_bytes: int) -> int:
    """Return the number of sets for a cache of that size; 1 if data may stay in the cache."""
    if workload.sets is not None:
        return workload.sets
    if workload.cached:
        return 1
    return sets_beyond(cache_bytes, sides(workload) * block_bytes(workload))


def block_bytes(workload: Workload) -> int:
    """Return the bytes of one side of a set, rounded up to whole cache lines."""
    return -(-workload.tensor_bytes // LINE) * LINE


def sides(workload: Workload) -> int:
    """Return 1 in place, 2 out of place."""
    return 1 if workload.in_place else 2


def _places(workload: Workload) -> Iterator[tuple[Shape, int]]:
    """Yield the shape and the byte offset of each tensor in a block."""
    at = 0
    for shape in workload.tensors:
        yield shape, at
        at += math.prod(shape) * workload.itemsize


def tensors_of(workload: Workload, block: Bytes) -> list[npt.NDArray[Any]]:
    """Return the tensors [B, S, N, D] in a block."""
    return [np.ndarray(shape, DTYPES[workload.dtype], block, at) for shape, at in _places(workload)]


@dataclass(frozen=True)
class Change:
    """Another input made of a workload's: every value times `sign`, heads moved by `heads`; so is the result.

    start: positions are moved by this many.
    """

    sign: int = 1
    heads: int = 0
    start: int = 0

    @staticmethod
    def drawn(draw: random.Random, workload: Workload) -> Change:
        """Draw a change."""
        return Change(draw.choice((1, -1)), draw.randrange(min(shape[2] for shape in workload.tensors)))

    def of(self, tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a tensor [B, S, N, ...] changed; the tensor itself if nothing changes."""
        if (self.sign, self.heads) == (1, 0):
            return tensor
        changed = np.empty_like(tensor)
        self.put(tensor, changed)
        return changed

    def put(self, tensor: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Write a tensor [B, S, N, ...] changed into another one, in one pass."""
        kept = tensor.shape[2] - self.heads
        for to, part in (
            (out[:, :, self.heads :], tensor[:, :, :kept]),
            (out[:, :, : self.heads], tensor[:, :, kept:]),
        ):
            if self.sign > 0:
                to[...] = part
            else:
                np.negative(part, out=to)


#: The input as it is.
UNCHANGED = Change()


@dataclass(eq=False)
class Inputs:
    """The block of input values of a workload, made once from a seed; every set begins as a copy of it."""

    workload: Workload
    block: Bytes

    @property
    def tensors(self) -> list[npt.NDArray[Any]]:
        """The tensors, views of the block."""
        return tensors_of(self.workload, self.block)

    def changed(self, change: Change) -> Bytes:
        """Return a new block of the changed values."""
        block = np.empty_like(self.block)
        block[self.workload.tensor_bytes :] = self.block[self.workload.tensor_bytes :]
        for to, tensor in zip(tensors_of(self.workload, block), self.tensors, strict=True):
            change.put(tensor, to)
        return block


def make_inputs(workload: Workload, seed: int) -> Inputs:
    """Return uniform values in [-1, 1] in the workload's type."""
    rng = np.random.default_rng(seed)
    block = aligned(block_bytes(workload))
    values = block[: workload.tensor_bytes].view(DTYPES[workload.dtype])
    for first in range(0, values.size, 1 << 22):
        part = values[first : first + (1 << 22)]
        part[...] = (rng.random(part.shape, dtype=np.float32) * 2 - 1).astype(part.dtype)
    return Inputs(workload, block)


def aligned(size: int, to: int = 4096) -> Bytes:
    """Return poisoned bytes that begin on a page."""
    raw = poisoned(size + to)
    first = -raw.__array_interface__["data"][0] % to
    return raw[first : first + size]


class HostSets:
    """Sets in the host's memory: `x[i]` and `y[i]` are lists of tensors (the same lists in place)."""

    def __init__(self, inputs: Inputs) -> None:
        workload = inputs.workload
        self.inputs = inputs
        self.count = sets_needed(workload, host_cache_bytes())
        self.cursor = SetCursor()
        self.x_blocks = [aligned(inputs.block.size) for _ in range(self.count)]
        self.y_blocks = self.x_blocks if workload.in_place else [aligned(inputs.block.size) for _ in range(self.count)]
        self.x = [tensors_of(workload, block) for block in self.x_blocks]
        self.y = self.x if workload.in_place else [tensors_of(workload, block) for block in self.y_blocks]
        for number in range(self.count):
            self.reset(number)

    def reset(self, number: int) -> None:
        """Put the input values into a set and poison into its output."""
        if self.y_blocks[number] is not self.x_blocks[number]:
            self.y_blocks[number].fill(POISON)
        self.x_blocks[number][...] = self.inputs.block


class DeviceSets:
    """Sets in a device's memory: lists of OpenCL arrays `x[i]`, `y[i]` in the buffers `x_blocks[i]`, `y_blocks[i]`.

    Behind the block of each buffer is a guard of poison.
    """

    def __init__(self, queue: pyopencl.CommandQueue, device: DeviceInfo, inputs: Inputs) -> None:
        import pyopencl as cl

        workload = inputs.workload
        self.queue, self.inputs, self._device = queue, inputs, device
        self.count = sets_needed(workload, largest_cache(device))
        self.cursor = SetCursor()

        def buffers() -> list[Any]:
            flags = cl.mem_flags.READ_WRITE
            return [cl.Buffer(queue.context, flags, inputs.block.size + GUARD) for _ in range(self.count)]

        self.changes = [UNCHANGED] * self.count
        self.x_blocks = buffers()
        self.y_blocks = self.x_blocks if workload.in_place else buffers()
        self.x, self.y = self.on_queue(queue)
        for number in range(self.count):
            self.reset(number)

    def on_queue(self, queue: pyopencl.CommandQueue) -> tuple[list[list[Any]], list[list[Any]]]:
        """Return (x, y) as arrays of the same buffers on a queue of the context."""
        import pyopencl.array as cla

        workload = self.inputs.workload

        def arrays(blocks: list[Any]) -> list[list[Any]]:
            dtype, places = DTYPES[workload.dtype], list(_places(workload))
            return [[cla.Array(queue, shape, dtype, data=b, offset=at) for shape, at in places] for b in blocks]

        x = arrays(self.x_blocks)
        return x, x if workload.in_place else arrays(self.y_blocks)

    def reset(self, number: int) -> None:
        """Put the input values into a set and poison into its output."""
        self.changes[number] = UNCHANGED
        self._write(number, self.inputs.block, poisoned(self.inputs.block.size))

    @cached_property
    def _outputs(self) -> TimedOutputs:
        size = self.inputs.block.size
        outputs = TimedOutputs(self.queue, self._device, size, GUARD, streaming=self.count > 1)
        outputs.check(self.y_blocks[0])
        self.reset(0)
        return outputs

    @cached_property
    def _original(self) -> Any:
        """The input of a workload in place."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(self.queue.context, flags, hostbuf=self.inputs.block)

    def damage(self, number: int, byte: int = POISON, kept: float = 0.0, seed: int = 0) -> None:
        """Make a set ready for a timed call, on the device: poison in its output; in place its input as it was.

        kept: the share of the output's words, drawn by the seed, that are left as they are.
        """
        if self.inputs.workload.in_place:
            self._outputs.restore(self.x_blocks[number], self._original)
        else:
            self._outputs.damage(self.y_blocks[number], byte, kept, seed)

    def digest(self, number: int) -> bytes:
        """Return a digest of the output block of a set and its guard."""
        return self._outputs.digest(self.y_blocks[number])

    def change(self, number: int, change: Change, output: Bytes) -> None:
        """Put changed input values into a set, and what is given into its output."""
        self.changes[number] = change
        self._write(number, self.inputs.changed(change), output)

    def _write(self, number: int, x: Bytes, y: Bytes) -> None:
        import pyopencl as cl

        guard = poisoned(GUARD)
        for block, values in ((self.y_blocks[number], y), (self.x_blocks[number], x)):  # in place, x is the last
            cl.enqueue_copy(self.queue, block, values)
            cl.enqueue_copy(self.queue, block, guard, dst_offset=values.size)
        self.queue.finish()

    def read(self, number: int) -> Bytes:
        """Return the output block of a set."""
        return self._read(self.y_blocks[number], self.inputs.block.size, 0)

    def read_input(self, number: int) -> Bytes:
        """Return the input block of a set."""
        return self._read(self.x_blocks[number], self.inputs.block.size, 0)

    def guards_changed(self, number: int) -> int:
        """Return how many bytes behind the blocks of a set are no longer poison."""
        size = self.inputs.block.size
        guards = [self._read(blocks[number], GUARD, size) for blocks in (self.x_blocks, self.y_blocks)]
        return sum(int(np.count_nonzero(guard != POISON)) for guard in guards)

    def _read(self, block: Any, size: int, at: int) -> Bytes:
        import pyopencl as cl

        out = np.empty(size, np.uint8)
        cl.enqueue_copy(self.queue, out, block, src_offset=at)
        return out


def check_sets(
    sets: HostSets | DeviceSets,
    result: Callable[[int], Sequence[npt.NDArray[Any]]],
    validate: Callable[[Sequence[npt.NDArray[Any]]], float],
) -> float:
    """Return the largest error of `result` on the first and the last set, which are reset before and after."""
    worst = 0.0
    for number in {0, sets.count - 1}:
        sets.reset(number)
        worst = max(worst, validate(result(number)))
        sets.reset(number)
    return worst
