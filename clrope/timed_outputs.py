"""Outputs of timed calls on a device: damaged before every call, and all that the calls wrote compared after it.

A kernel that finds a right output may leave work out. So before each timed call the output is filled with poison, all
of it or all but some values, or in place the input is restored; afterwards a digest of all bits says whether they are
known to be right.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import BuildError, DeviceError
from .kernels.build import build
from .testing import POISON

if TYPE_CHECKING:
    import pyopencl

    from .device import DeviceInfo

#: In `digest` each step is a bijection of the sum, so a single difference always shows; four sums hide its latency.
SOURCE = """
#ifdef NONTEMPORAL
#define STORE(v, p) __builtin_nontemporal_store(v, p)
#else
#define STORE(v, p) (*(p) = (v))
#endif
#define MIX(sum, x) sum = (sum ^ (x)) * 0x9E3779B1u; sum ^= sum >> 15

// Keeps the words whose number, mixed with the seed, is below `kept`.
__kernel void damage(__global uint8 *to, const uint poison, const uint kept, const uint seed, const ulong each) {
  const ulong first = get_global_id(0) * each;
  if (!kept) {  // without reading what is there
    for (ulong k = first; k < first + each; ++k) STORE((uint8)(poison), to + k);
    return;
  }
  for (ulong k = first; k < first + each; k += 2) {  // whole lines of 64 bytes, for non-temporal stores
    uint8 lot = (uint8)(0, 1, 2, 3, 4, 5, 6, 7) + (uint)k * 8 + seed, more = lot + 8;
    MIX(lot, seed);
    MIX(more, seed);
    MIX(lot, seed);
    MIX(more, seed);
    const uint8 keep = as_uint8(lot < (uint8)(kept)), keep_more = as_uint8(more < (uint8)(kept));
    const uint8 a = (to[k] & keep) | ((uint8)(poison) & ~keep);
    const uint8 b = (to[k + 1] & keep_more) | ((uint8)(poison) & ~keep_more);
    STORE(a, to + k);
    STORE(b, to + k + 1);
  }
}
__kernel void restore(__global uint8 *to, __global const uint8 *from, const ulong each) {
  const ulong first = get_global_id(0) * each;
  for (ulong k = first; k < first + each; ++k) STORE(from[k], to + k);
}
__kernel void digest(__global const uint8 *from, __global uint8 *sums, const ulong each) {
  const ulong first = get_global_id(0) * each, last = first + each;
  uint8 a = 1, b = 2, c = 3, d = 4;
  ulong k = first;
  for (; k + 4 <= last; k += 4) {
    MIX(a, from[k]);
    MIX(b, from[k + 1]);
    MIX(c, from[k + 2]);
    MIX(d, from[k + 3]);
  }
  for (; k < last; ++k) { MIX(a, from[k]); }
  MIX(a, b);
  MIX(a, c);
  MIX(a, d);
  sums[get_global_id(0)] = a;
}
"""
VECTOR_BYTES = 32
#: Bytes of a work-item, at most.
ITEM_BYTES = {"cpu": 16384}
OTHER_ITEM_BYTES = 128


class TimedOutputs:
    """Damages the first `nbytes` bytes of buffers, a multiple of 64, and compares them with `guard` bytes behind them.

    streaming: by stores that leave none of the buffer in a cache, as calls on large tensors find it; otherwise it is
    there as if its last reader had just finished. The same is done for every entry, copies included.
    Raises `BuildError`, or `DeviceError` if the kernels do nothing on this device.
    """

    def __init__(
        self, queue: pyopencl.CommandQueue, device: DeviceInfo, nbytes: int, guard: int = 0, *, streaming: bool
    ) -> None:
        import pyopencl as cl

        self._queue, self._nbytes, self._item = queue, nbytes, ITEM_BYTES.get(device.kind, OTHER_ITEM_BYTES)
        while nbytes % self._item or guard % self._item:
            self._item //= 2
        # A fixed size keeps PoCL from compiling the kernels again for every number of items.
        self._local = (1,) if device.kind == "cpu" else None
        program = self._build(device.cl_device, streaming)
        self._damage, self._restore, self._digest = (cl.Kernel(program, n) for n in ("damage", "restore", "digest"))
        self._host_sums = np.empty((nbytes + guard) // self._item * VECTOR_BYTES, np.uint8)
        self._sums = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, self._host_sums.nbytes)

    def _build(self, device: pyopencl.Device, streaming: bool) -> Any:
        if streaming:
            try:
                return build(self._queue.context, device, SOURCE, ("-DNONTEMPORAL",))
            except BuildError:  # no such stores
                pass
        return build(self._queue.context, device, SOURCE)

    def check(self, buffer: Any) -> bytes:
        """Return the digest of a damaged buffer; `DeviceError` if it is not damaged, or another byte has the same."""
        import pyopencl as cl

        self.damage(buffer)
        damaged, found = self.digest(buffer), np.empty(self._nbytes, np.uint8)
        cl.enqueue_copy(self._queue, found, buffer)
        last = np.full(1, ~POISON & 0xFF, np.uint8)
        cl.enqueue_copy(self._queue, buffer, last, dst_offset=self._nbytes - 1)
        if not (found == POISON).all() or self.digest(buffer) == damaged:
            raise DeviceError("the kernels that damage and compare outputs of timed calls do nothing on this device")
        return damaged

    def damage(self, output: Any, byte: int = POISON, kept: float = 0.0, seed: int = 0) -> None:
        """Fill a buffer with bytes of poison, and wait. kept: the share of its words, drawn by a seed, to leave."""
        word = np.full(4, byte, np.uint8).view(np.uint32)[0]
        self._run(self._damage, self._nbytes, output, word, np.uint32(int(kept * (1 << 32))), np.uint32(seed))

    def restore(self, buffer: Any, original: Any) -> None:
        """Copy a buffer's original contents into it, and wait."""
        self._run(self._restore, self._nbytes, buffer, original)

    def digest(self, buffer: Any) -> bytes:
        """Return a digest of all bits of a buffer."""
        import pyopencl as cl

        self._run(self._digest, self._host_sums.nbytes // VECTOR_BYTES * self._item, buffer, self._sums)
        cl.enqueue_copy(self._queue, self._host_sums, self._sums)
        return hashlib.blake2b(self._host_sums.data, digest_size=16).digest()

    def _run(self, kernel: Any, nbytes: int, *arguments: Any) -> None:
        import pyopencl as cl

        kernel.set_args(*arguments, np.uint64(self._item // VECTOR_BYTES))
        cl.enqueue_nd_range_kernel(self._queue, kernel, (nbytes // self._item,), self._local)
        self._queue.finish()
