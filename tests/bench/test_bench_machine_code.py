"""Loops in machine code: of a made-up listing, of a made-up binary, and of what a CPU's compiler makes."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace

import pytest
from tools.machine_code import elf_files, kernel_code, loops

from clrope import DeviceError
from clrope.benchmark.workloads import select

#: A loop over heads (10 to 3e) with a loop that prefetches in it, and a way back to its start that is seldom taken.
LISTING = """
x.o:     file format elf64-x86-64

0000000000000000 <other>:
   0:\tvmovups (%rdi),%zmm0
   6:\tret

0000000000000008 <rotate>:
   8:\txor    %eax,%eax
  10:\tvmovups (%rdi,%rax,1),%ymm0
  16:\tprefetcht1 0x40(%rcx)
  1a:\tadd    $0x40,%rcx
  1e:\tjb     16 <rotate+0xe>
  20:\tvcvtph2ps %ymm0,%zmm1
  26:\tvcvtps2ph $0x4,%zmm1,(%rsi)
  2d:\tvmovntps %zmm1,0x40(%rsi)  # a remark (%rip)
  34:\tvmovups %zmm1,%zmm2
  3e:\tjne    10 <rotate+0x8>
  40:\tret
  42:\tnop
  44:\tjmp    10 <rotate+0x8>
"""


def test_loops_of_a_listing():
    whole, ahead = loops(LISTING)
    # Without the loop in it; the way back from behind the end makes no second one.
    assert (whole.function, whole.instructions, whole.vectors) == ("rotate", 6, 5)
    assert (whole.stored, whole.non_temporal, whole.prefetches) == (32 + 64, 64, 0)
    assert (ahead.instructions, ahead.vectors, ahead.prefetches, ahead.stored) == (3, 0, 1, 0)
    assert loops("") == []


def test_elf_files_of_a_binary():
    def elf(length):
        header = bytearray(64)
        header[:7] = b"\x7fELF\x02\x01\x01"
        struct.pack_into("<Q", header, 40, length - 64)  # one section header of 64 bytes, at the end
        struct.pack_into("<HH", header, 58, 64, 1)
        return bytes(header) + bytes(length - 64)

    first, second = elf(200), elf(128)
    assert elf_files(b"wrapped" + first + b"between" + second + b"behind") == [first, second]
    assert elf_files(b"nothing") == []
    assert elf_files(first[:150]) == [], "cut off"


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_a_head_is_stored_by_vectors(device):
    (workload,) = select(["prompt/f16/neox/out/forward"])
    small = replace(workload, tensors=((1, 64, 8, 128),))
    if device.kind != "cpu":
        with pytest.raises(DeviceError, match="kind"):
            kernel_code(small, device)
        return
    listing, variants = kernel_code(small, device)
    assert len(variants) == 1
    # A platform that nothing is known of has OpenCL's own functions as its default, which may be calls, a vector each.
    stored = 128 * 2 / 2 if variants[0].access == "clang" else 16
    assert any(loop.stored >= stored and loop.vectors for loop in loops(listing)), (variants, loops(listing))
