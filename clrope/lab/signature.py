"""The kernels of a program with their arguments, as a device's compiler tells them.

A build may crash a driver or never end, so `facts_of_program` builds in a child process; `build_facts` builds here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..call.runtime import runtime_for
from ..device import DeviceInfo, child, devices
from ..errors import BuildError, DeviceError
from ..kernels.build import build, includes_files

if TYPE_CHECKING:
    import pyopencl

#: The types of numbers in OpenCL C, as NumPy has them.
SCALARS = {
    "char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32",
    "long": "int64", "ulong": "uint64", "float": "float32", "double": "float64", "half": "float16",
}  # fmt: skip
_LENGTHS = (2, 3, 4, 8, 16)
_BUILT_IN = [f"{scalar}{length}" for scalar in SCALARS for length in ("", *_LENGTHS)]
#: 1.25 in the types with fractions, the longest first.
_FRACTIONS = {name: struct.pack(form, 1.25) for name, form in (("double", "<d"), ("float", "<f"), ("half", "<e"))}
_INTEGERS = {1: "char", 2: "short", 4: "int", 8: "long"}
_FUNCTION = "clrope_lab_numbers"
#: Stores whether a macro is a whole number, and the number.
_NUMBER = """#ifdef NAME
to[0] = (NAME) == (long)(NAME);
to[1] = (long)(NAME);
#endif"""
#: Stores the place of a type in `_BUILT_IN`, from 1. By pointers: a device without the type half knows those.
_SAME = "\n".join(
    f"#if {'defined(cl_khr_fp64)' if 'double' in name else 'defined(cl_khr_fp16)' if 'half' in name[:-1] else '1'}\n"
    f"if (__builtin_types_compatible_p(NAME *, {name} *)) to[0] = {place};\n#endif"
    for place, name in enumerate(_BUILT_IN, 1)
)
#: Stores the size of a type, its first bytes if its first number is 1.25, and how many bytes -1 sets.
_FIRST = """const NAME fraction = {1.25f}, ones = {-1};
const uchar *first = (const uchar *)&fraction, *set = (const uchar *)&ones;
to[0] = sizeof(NAME);
for (uint k = 0; k < 8 && k < sizeof(NAME); k++) to[1] |= (long)first[k] << 8 * k;
while (to[2] < 8 && to[2] < sizeof(NAME) && set[to[2]] == 255) to[2]++;"""


class KernelArgument(msgspec.Struct, frozen=True):
    """One argument of a kernel.

    type: without qualifiers and the star of a pointer. Typedefs, enumerations and structs are resolved to the type of
    OpenCL C that they consist of, such as float or int4, where there is one. written: the type as the file has it.
    space: 'global', 'constant' or 'local' for pointers, otherwise ''.
    """

    name: str
    type: str
    pointer: bool
    space: str
    written: str

    def __str__(self) -> str:
        return f"{self.space} {self.written} *{self.name}" if self.pointer else f"{self.written} {self.name}"


class KernelSignature(msgspec.Struct, frozen=True):
    """A kernel function and its arguments in order. group: the size of work-group that it requires, () for any."""

    name: str
    arguments: tuple[KernelArgument, ...]
    group: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


class ProgramFacts(msgspec.Struct, frozen=True):
    """The kernels of a program, and those of the macros asked for that are whole numbers."""

    kernels: tuple[KernelSignature, ...]
    numbers: dict[str, int]


class SignatureJob(msgspec.Struct, frozen=True):
    """What a child has to do."""

    device: str  # its key
    source: str
    options: tuple[str, ...]
    macros: tuple[str, ...]


def facts_of_program(
    usable: Sequence[DeviceInfo], source: str, options: tuple[str, ...], macros: tuple[str, ...] = ()
) -> ProgramFacts:
    """Return the facts of a program from the first device that builds it, in a child process.

    Raises `BuildError` of the first device, or `DeviceError` if no device gave an answer.
    """
    read = _in_child.__wrapped__ if includes_files(source) else _in_child  # what is included may have changed
    failed: BuildError | None = None
    reasons = []
    for device in usable:
        try:
            return read(device, source, options, macros)
        except BuildError as error:
            failed = failed or error
        except DeviceError as error:
            reasons.append(str(error))
    raise failed or DeviceError(f"kernel: its arguments cannot be read: {'; '.join(reasons)}")


@lru_cache(maxsize=64)
def _in_child(device: DeviceInfo, source: str, options: tuple[str, ...], macros: tuple[str, ...]) -> ProgramFacts:
    job = SignatureJob(device.key, source, options, macros)
    result = child.run(msgspec.to_builtins(job), module=__name__)
    if result.outcome == "unavailable":
        return build_facts(device, source, options, macros)
    if result.outcome != "ok":
        raise DeviceError(f"{device.name}: {result.reason}")
    if "failed" in result.answer:
        raise BuildError(*result.answer["failed"])
    return msgspec.convert(result.answer, ProgramFacts)


def main() -> None:
    """Do one job in this process, which the driver may end."""
    child.serve(_work)


def _work(data: dict[str, Any], write: child.Write) -> dict[str, Any]:
    job = msgspec.convert(data, SignatureJob)
    write(stage="looking for the device")
    device = next((d for d in devices() if d.key == job.device), None)
    if device is None:
        raise DeviceError(f"device {job.device!r} is not there in a fresh process")
    write(stage="building the program")
    try:
        facts = build_facts(device, job.source, job.options, job.macros)
    except BuildError as error:
        return {"failed": [error.device, error.options, error.log, error.source_path]}
    answer: dict[str, Any] = msgspec.to_builtins(facts)
    return answer


def build_facts(device: DeviceInfo, source: str, options: Sequence[str], macros: Sequence[str] = ()) -> ProgramFacts:
    """Build a program on a device in this process, and return its facts. Raises `BuildError`, `DeviceError`.

    macros: names to look up. Those that are no macros, or no whole numbers, are left out.
    """
    import pyopencl as cl

    runtime = runtime_for(device)
    program = build(runtime.context, runtime.cl_device, source, [*options, "-cl-kernel-arg-info"])
    try:
        names = [name for name in str(program.get_info(cl.program_info.KERNEL_NAMES)).split(";") if name]
    except cl.LogicError:
        names = []  # Intel's runtime says that of a program without kernels
    try:
        kernels = [_signature(cl.Kernel(program, name), name, runtime.cl_device) for name in names]
    except cl.Error as error:
        raise DeviceError(f"{device.name} does not tell the arguments of kernels: {error}") from error
    evaluate = _Evaluator(device, source, options)
    written = {argument.written for kernel in kernels for argument in kernel.arguments}
    types = _resolved(sorted(written - {*_BUILT_IN, "void"}), evaluate)
    replace = msgspec.structs.replace
    kernels = [
        replace(k, arguments=tuple(replace(a, type=types.get(a.written, a.written)) for a in k.arguments))
        for k in kernels
    ]
    values = evaluate(macros, _NUMBER)
    return ProgramFacts(tuple(kernels), {name: number for name, (whole, number, _) in values.items() if whole})


def _signature(kernel: pyopencl.Kernel, function: str, device: pyopencl.Device) -> KernelSignature:
    import pyopencl as cl

    info: Any = cl.kernel_arg_info
    spaces = cl.kernel_arg_address_qualifier
    words: dict[Any, str] = {spaces.GLOBAL: "global", spaces.CONSTANT: "constant", spaces.LOCAL: "local"}
    arguments = []
    for index in range(kernel.num_args):
        # PoCL renames what is named like a function of its library, such as `step`.
        name = str(kernel.get_arg_info(index, info.NAME)).removeprefix("_cl_")
        kind = str(kernel.get_arg_info(index, info.TYPE_NAME)).strip()
        space = words.get(kernel.get_arg_info(index, info.ADDRESS_QUALIFIER), "")
        written = kind.removesuffix("*").strip()
        arguments.append(KernelArgument(name, written, kind.endswith("*"), space, written))
    group = kernel.get_work_group_info(cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, device)
    return KernelSignature(function, tuple(arguments), tuple(map(int, group)) if all(group) else ())


class _Evaluator:
    """Asks a program's compiler about names, by a kernel of one work-item behind the program's text."""

    def __init__(self, device: DeviceInfo, source: str, options: Sequence[str]) -> None:
        self._runtime, self._source, self._options = runtime_for(device), source, options

    def __call__(self, names: Sequence[str], statements: str) -> dict[str, list[int]]:
        """Return the three numbers that statements store for each name, `NAME` in them, from `to` on.

        A name for which they do not compile is left out.
        """
        if not names:
            return {}
        try:
            values = self._run([statements.replace("NAME", name) for name in names])
        except BuildError:
            if len(names) == 1:
                return {}
            return {name: numbers for one in names for name, numbers in self([one], statements).items()}
        return dict(zip(names, values, strict=True))

    def _run(self, blocks: Sequence[str]) -> list[list[int]]:
        import pyopencl as cl

        body = "\n".join(f"{{\n{block}\n}}\nto += 3;" for block in blocks)
        text = f"{self._source}\n\n__kernel void {_FUNCTION}(__global long *to) {{\n{body}\n}}\n"
        context, queue = self._runtime.context, self._runtime.queue
        kernel = cl.Kernel(build(context, self._runtime.cl_device, text, self._options), _FUNCTION)
        values = np.zeros((len(blocks), 3), np.int64)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffer = cl.Buffer(context, flags, hostbuf=values)
        kernel.set_arg(0, buffer)
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), None)
        cl.enqueue_copy(queue, values, buffer)
        return [[int(number) for number in row] for row in values]


def _resolved(names: Sequence[str], evaluate: _Evaluator) -> dict[str, str]:
    """Return what typedefs, enumerations and structs consist of; names for which that is unknown are left out."""
    types = {name: _BUILT_IN[number[0] - 1] for name, number in evaluate(names, _SAME).items() if number[0]}
    for name, (size, first, ones) in evaluate([n for n in names if n not in types], _FIRST).items():
        data = first.to_bytes(8, "little", signed=True)
        again = data.find(1, 1)  # each number of a vector is set to 1
        integer = _INTEGERS.get(again if 0 < again < ones else ones, "")
        kind = next((kind for kind, begin in _FRACTIONS.items() if data.startswith(begin)), integer)
        if kind:
            count = size // np.dtype(SCALARS[kind]).itemsize
            types[name] = f"{kind}{count}" if count in _LENGTHS else kind
    return types
