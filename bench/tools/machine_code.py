"""The machine code of a kernel on a CPU device, and its loops: what a head costs in instructions."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clrope.benchmark.buffers import DeviceSets, make_inputs
from clrope.benchmark.workloads import Workload
from clrope.call.runtime import context_for, runtime_for
from clrope.errors import ConfigError, DeviceError
from clrope.operation import Rope

if TYPE_CHECKING:
    from clrope.device import DeviceInfo
    from clrope.kernels.variant import Variant

_ELF = b"\x7fELF\x02\x01\x01"  # of 64 bits, little endian
_SYMBOL = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"^ +([0-9a-f]+):\t([a-z]\S*)\s*(.*)$")
_VECTOR_BYTES = {"zmm": 64, "ymm": 32, "xmm": 16}


@dataclass(frozen=True)
class Instruction:
    """One line of a listing: address, mnemonic, operands (the destination last)."""

    address: int
    name: str
    operands: str

    @property
    def jump(self) -> int | None:
        """Where it jumps to within the listing, None if it does not."""
        found = re.match(r"([0-9a-f]+) <", self.operands) if self.name.startswith("j") else None
        return int(found[1], 16) if found else None

    @property
    def vector_bytes(self) -> int:
        """Bytes of the longest register it names; 0 without vectors."""
        return max((n for word, n in _VECTOR_BYTES.items() if word in self.operands), default=0)

    @property
    def stored_bytes(self) -> int:
        """Bytes of a vector that it writes to memory."""
        if not self.operands.endswith(")") or not self.name.startswith(
            ("vmov", "movnt", "movap", "movup", "vcvtps2ph")
        ):
            return 0
        return self.vector_bytes // (2 if self.name.startswith("vcvtps2ph") else 1)


@dataclass(frozen=True)
class Loop:
    """A loop, without the loops in it: how many instructions, how many of them with vectors, how many prefetch.

    stored: bytes that its vector stores write; non_temporal: of these, the bytes of non-temporal stores.
    Branches that are not taken count too.
    """

    function: str
    instructions: int
    vectors: int
    prefetches: int
    stored: int
    non_temporal: int

    def __str__(self) -> str:
        return (
            f"{self.instructions:4d} instructions, {self.vectors:3d} with vectors, {self.prefetches:2d} prefetch, "
            f"{self.stored:4d} bytes stored, {self.non_temporal:4d} non-temporal, in {self.function}"
        )


def elf_files(blob: bytes) -> list[bytes]:
    """Return the ELF files in a program's binary, as drivers wrap them."""
    out = []
    for found in re.finditer(re.escape(_ELF), blob):
        at = found.start()
        if at + 64 > len(blob):
            continue
        (sections,) = struct.unpack_from("<Q", blob, at + 40)
        size, count = struct.unpack_from("<HH", blob, at + 58)
        end = at + sections + size * count
        if sections and end <= len(blob):
            out.append(blob[at:end])
    return out


def loops(listing: str) -> list[Loop]:
    """Return the loops of what objdump printed that store vectors or prefetch, the one that stores most first.

    Of loops with equal counts only the shortest is returned: PoCL compiles a kernel several times, and compilers place
    rarely reached parts of a loop far behind it. Jumps back from there look like outer loops.
    """
    out: dict[tuple[int, ...], Loop] = {}
    for function, code in _functions(listing):
        spans = {(i.jump, i.address) for i in code if i.jump is not None and code[0].address <= i.jump <= i.address}
        for first, last in sorted(spans):
            # Spans with the same beginning are shorter ways round the same loop.
            within = [(a, b) for a, b in spans if first < a and b <= last]
            body = [
                i for i in code
                if first <= i.address <= last and not any(a <= i.address <= b for a, b in within)
            ]  # fmt: skip
            stored = sum(i.stored_bytes for i in body)
            non_temporal = sum(i.stored_bytes for i in body if "movnt" in i.name)
            prefetches = sum(i.name.startswith("prefetch") for i in body)
            vectors = sum(bool(i.vector_bytes) for i in body)
            made = Loop(function, len(body), vectors, prefetches, stored, non_temporal)
            alike = (vectors, prefetches, stored, non_temporal)
            if (stored or prefetches) and (alike not in out or len(body) < out[alike].instructions):
                out[alike] = made
    return sorted(out.values(), key=lambda loop: (-loop.non_temporal, -loop.stored, loop.instructions))


def _functions(listing: str) -> Iterator[tuple[str, list[Instruction]]]:
    name, code = "", list[Instruction]()
    for line in listing.splitlines():
        symbol, instruction = _SYMBOL.match(line), _LINE.match(line)
        if symbol:
            if code:
                yield name, code
            name, code = symbol[1], []
        elif instruction:
            code.append(Instruction(int(instruction[1], 16), instruction[2], instruction[3].split("#")[0].strip()))
    if code:
        yield name, code


def disassemble(blob: bytes) -> str:
    """Return objdump's listing of every ELF file in a program's binary. Raises `DeviceError` if there is none."""
    tool = shutil.which("objdump")
    if tool is None:
        raise ConfigError("objdump: not found; it is part of binutils (`apt-get install binutils`)")
    files = elf_files(blob)
    if not files:
        raise DeviceError("the driver's binary of the program holds no machine code of a CPU")
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(files):
            path = Path(folder) / f"{number}.o"
            path.write_bytes(content)
            done = subprocess.run(
                [tool, "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True
            )
            out.append(done.stdout)
    return "\n".join(out)


def kernel_code(workload: Workload, device: DeviceInfo, variant: Variant | None = None) -> tuple[str, Sequence[Any]]:
    """Return (listing of the first launch's program, the variants of all launches) of a workload that has been run.

    variant: the variant to use; the chosen one, if None. Raises `ConfigError` without objdump, `DeviceError` for a
    device that is no CPU.
    """
    import pyopencl as cl

    if device.kind != "cpu":
        raise DeviceError(
            f"device {device.name!r} is of kind {device.kind!r}, only what runs on a CPU can be disassembled"
        )
    inputs = make_inputs(replace(workload, sets=1), 0)
    sets = DeviceSets(cl.CommandQueue(context_for(device)), device, inputs)
    pack: Any = (lambda arrays: arrays[0]) if len(workload.tensors) == 1 else tuple
    plan = Rope(workload.config, sets.queue, variant=variant).plan(
        pack(sets.x[0]), workload.position_array(), forward=workload.forward, out=pack(sets.y[0])
    )
    plan.run()
    sets.queue.finish()
    spec = plan.specs[0]
    program = runtime_for(sets.queue).program(spec)
    binaries: Any = program.get_info(cl.program_info.BINARIES)
    return disassemble(binaries[0]), plan.variants
