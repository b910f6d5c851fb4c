"""What is put before a kernel's source to record its asynchronous copies, and the records.

Records go to memory of the program itself, which a second kernel hands out: the kernel's own arguments stay the same.
Program-scope memory needs OpenCL C 2.0. PoCL gives each kernel its own; there records are printed (`PRINTING`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

#: Records that a run has place for.
MOST_RECORDS = 1 << 17
#: Numbers of a record: kind, work-group, work-groups, runs, bytes of a run, global address, local address.
WORDS = 7
READER = "clrope_npu_read"
COPY_IN, COPY_OUT, WAIT = 1, 2, 3
#: The option with which records are printed, and how their lines begin.
PRINTING, PRINTED = "-DCLROPE_NPU_PRINTING", "clrope-npu-copy"

# Each macro evaluates its arguments once, as the function does. A run is what is contiguous: one element if strided.
SHIM = f"""\
#ifndef CLROPE_NPU_PRINTING
__global uint clrope_npu_count;
__global ulong clrope_npu_log[{MOST_RECORDS * WORDS}];
__kernel void {READER}(__global ulong *out, __global uint *count, uint most) {{
  if (get_global_id(0) == 0) *count = clrope_npu_count;
  if (get_global_id(0) < most) out[get_global_id(0)] = clrope_npu_log[get_global_id(0)];
}}
#endif
void clrope_npu_record(ulong kind, ulong runs, ulong bytes, ulong far, ulong near) {{
  if (get_local_id(0) + get_local_id(1) + get_local_id(2)) return;
  const ulong group = get_group_id(0) + get_num_groups(0) * (get_group_id(1) + get_num_groups(1) * get_group_id(2));
  const ulong groups = get_num_groups(0) * get_num_groups(1) * get_num_groups(2);
#ifdef CLROPE_NPU_PRINTING
  printf("{PRINTED} %lu %lu %lu %lu %lu %lu %lu\\n", kind, group, groups, runs, bytes, far, near);
#else
  const uint at = atomic_inc((volatile __global uint *)&clrope_npu_count);
  if (at >= {MOST_RECORDS}) return;
  __global ulong *record = clrope_npu_log + (ulong)at * {WORDS};
  record[0] = kind;
  record[1] = group;
  record[2] = groups;
  record[3] = runs;
  record[4] = bytes;
  record[5] = far;
  record[6] = near;
#endif
}}
void __attribute__((overloadable)) clrope_npu_copy(__local const void *to, __global const void *from, ulong runs,
                                                   ulong bytes) {{
  clrope_npu_record({COPY_IN}, runs, bytes, (ulong)from, (ulong)to);
}}
void __attribute__((overloadable)) clrope_npu_copy(__global const void *to, __local const void *from, ulong runs,
                                                   ulong bytes) {{
  clrope_npu_record({COPY_OUT}, runs, bytes, (ulong)to, (ulong)from);
}}
// PoCL's functions are macros for names of its own.
#ifdef async_work_group_copy
#define CLROPE_NPU_NAME(name) _cl_##name
#undef async_work_group_copy
#undef async_work_group_strided_copy
#else
#define CLROPE_NPU_NAME(name) name
#endif
#define async_work_group_copy(to, from, count, event) \\
  ({{ __typeof__(&(to)[0]) clrope_to = (to); __typeof__(&(from)[0]) clrope_from = (from); \\
     const size_t clrope_n = (count); \\
     clrope_npu_copy(clrope_to, clrope_from, 1, clrope_n * sizeof(*clrope_to)); \\
     CLROPE_NPU_NAME(async_work_group_copy)(clrope_to, clrope_from, clrope_n, event); }})
#define async_work_group_strided_copy(to, from, count, stride, event) \\
  ({{ __typeof__(&(to)[0]) clrope_to = (to); __typeof__(&(from)[0]) clrope_from = (from); \\
     const size_t clrope_n = (count); \\
     clrope_npu_copy(clrope_to, clrope_from, clrope_n, sizeof(*clrope_to)); \\
     CLROPE_NPU_NAME(async_work_group_strided_copy)(clrope_to, clrope_from, clrope_n, stride, event); }})
#define wait_group_events(count, events) \\
  (clrope_npu_record({WAIT}, 0, 0, 0, 0), wait_group_events(count, events))
"""


@dataclass(frozen=True)
class CopyRecord:
    """One call: `COPY_IN`, `COPY_OUT` or `WAIT`. runs: contiguous pieces, each of run_bytes."""

    kind: int
    runs: int = 1
    run_bytes: int = 0
    global_address: int = 0
    local_address: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.runs * self.run_bytes


@dataclass
class CoreTrace:
    """The records of one work-group in the order of its calls."""

    records: list[CopyRecord] = field(default_factory=list)

    @property
    def copies(self) -> list[CopyRecord]:
        """The records that are copies."""
        return [r for r in self.records if r.kind != WAIT]

    @property
    def bytes_in(self) -> int:
        """Bytes copied to the scratchpad."""
        return sum(r.nbytes for r in self.records if r.kind == COPY_IN)

    @property
    def bytes_out(self) -> int:
        """Bytes copied from the scratchpad."""
        return sum(r.nbytes for r in self.records if r.kind == COPY_OUT)

    @property
    def tiles(self) -> int:
        """Groups of copies out that nothing parts; of copies in where there are none."""
        kind = COPY_OUT if any(r.kind == COPY_OUT for r in self.records) else COPY_IN
        kinds = [0, *(r.kind for r in self.records)]
        return sum(now == kind != before for before, now in itertools.pairwise(kinds))

    @property
    def overlapped(self) -> bool:
        """Whether each tile but the last is copied out only after copies of the next one have begun."""
        tiles, issued, tile, before = self.tiles, 0, 0, 0
        copies_in = sum(r.kind == COPY_IN for r in self.records)
        if tiles < 2 or not copies_in:
            return False
        for record in self.records:
            issued += record.kind == COPY_IN
            if record.kind == COPY_OUT != before:
                if tile < tiles - 1 and issued * tiles < (tile + 2) * copies_in:
                    return False
                tile += 1
            before = record.kind
        return tile == tiles


def printed_records(text: str) -> list[list[int]]:
    """Return the records that a kernel printed; other lines are its own."""
    lines = (line.split() for line in text.splitlines() if line.startswith(PRINTED))
    return [[int(word) for word in words[1:]] for words in lines if len(words) == WORDS + 1]


def traces(log: npt.NDArray[Any] | Iterable[Iterable[int]]) -> tuple[dict[int, CoreTrace], int]:
    """Return each work-group's trace, and the number of work-groups; 0 without records."""
    made: dict[int, CoreTrace] = {}
    groups = 0
    for kind, group, number, *rest in np.asarray(log, dtype=np.uint64).reshape(-1, WORDS).tolist():
        groups = max(groups, number)
        made.setdefault(group, CoreTrace()).records.append(CopyRecord(kind, *rest))
    return made, groups
