"""A launch in two steps: `LaunchSpec` says what is launched, with arguments by name; `Launch` is a kernel object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ShapeError
from .kernel import Parameters
from .problem import Problem
from .source import kernel_source, storage_options

if TYPE_CHECKING:
    import pyopencl


@dataclass(frozen=True)
class LocalBytes:
    """An argument in local memory of so many bytes."""

    size: int


@dataclass(frozen=True)
class BoundNumber:
    """A number that is bound for each call, of another type or unit than the package's own kernels take.

    dtype: of the argument. scale: what the number in elements is multiplied by.
    """

    dtype: str
    scale: int = 1


@dataclass(frozen=True)
class BoundRows:
    """Positions that are bound for each call: a buffer of integers [axes][rows], of another type than int64."""

    dtype: str
    axes: int


@dataclass(frozen=True)
class ConstantBytes:
    """A constant argument by its bytes: a vector (`buffer` False), or a read-only buffer that holds them."""

    data: bytes
    buffer: bool


#: The value of a memory argument that this launch does not use: a null pointer.
NO_BUFFER = ConstantBytes(b"", True)
#: The bytes of an int64 argument: making a NumPy scalar takes five times as long.
int64_bytes = Struct("=q").pack


@dataclass(frozen=True)
class LaunchSpec:
    """All of a launch but its memory: kernel function, options, sizes, and arguments in order.

    arguments: (name, value). A value is a NumPy scalar of the kernel's own type, `LocalBytes`, `ConstantBytes`,
    `NO_BUFFER`, or what is bound for each call: None, `BoundNumber`, `BoundRows`. A name may come twice. The names
    bound for each call, each as the kernels have them:
    memory x, y, x2, y2 with offsets in elements x_offset, y_offset, x2_offset, y2_offset (int64);
    tables cosine, sine, and, with `AngleForm.table_row`, cosine_offset, sine_offset, first_row (int64);
    or positions (a buffer of int64, with `AngleForm.counting` an int64 scalar), rows (int32),
    step, step_low, axis (buffers), magnitude (float32, float64 for f64).
    source: the program's text, None for the package's own `kernels/<file>`.
    row_repeats: how often the rows of tables or positions are repeated: for kernels that read a row for each token of
    each batch, where batches share them.
    """

    file: str
    function: str
    options: tuple[str, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    arguments: tuple[tuple[str, Any], ...]
    source: str | None = None
    row_repeats: int = 1

    @property
    def bound_names(self) -> tuple[str, ...]:
        """Names of the arguments that are bound for each call."""
        return tuple(name for name, value in self.arguments if _is_bound(value))

    @property
    def text(self) -> str:
        """The program's text."""
        return kernel_source(self.file) if self.source is None else self.source


class Launch:
    """A kernel object of its own (setting arguments is not thread-safe) with the constant arguments set."""

    def __init__(self, program: pyopencl.Program, spec: LaunchSpec) -> None:
        import pyopencl as cl

        self.spec = spec
        self.kernel = cl.Kernel(program, spec.function)
        self._enqueue = cl.enqueue_nd_range_kernel
        self._index: dict[str, list[int]] = {}
        self._constants: list[Any] = []  # a kernel does not keep its arguments alive
        # The public way tries what a number might be, 9 us each.
        self.set_number: Callable[[int, Any], None] = getattr(self.kernel, "_set_arg_buf", self.kernel.set_arg)
        for k, (name, value) in enumerate(spec.arguments):
            self._index.setdefault(name, []).append(k)
            if isinstance(value, LocalBytes):
                self.kernel.set_arg(k, cl.LocalMemory(value.size))  # type: ignore[arg-type]
            elif value is NO_BUFFER:
                # `set_arg(k, None)` is a TypeError in PyOpenCL 2024.2 to 2026.1.2.
                self.kernel._set_arg_null(k)  # type: ignore[attr-defined]
            elif isinstance(value, ConstantBytes):
                constant: Any = np.frombuffer(value.data, np.uint8)
                if value.buffer:
                    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
                    constant = cl.Buffer(self.kernel.context, flags, hostbuf=constant)
                self._constants.append(constant)
                self.kernel.set_arg(k, constant)
            elif not _is_bound(value):
                self.set_number(k, value)

    def index(self, name: str) -> int | None:
        """Return the number of an argument, None if this kernel has none of that name."""
        return next(iter(self.indices(name)), None)

    def indices(self, name: str) -> list[int]:
        """Return the numbers of all arguments of a name."""
        return self._index.get(name, [])

    def set_offset(self, k: int | None, elements: int) -> None:
        """Set the argument that is an offset of so many elements; raises `ShapeError` if the kernel takes none."""
        if k is None:
            if elements:
                raise ShapeError(
                    f"x: begins {elements} elements into its buffer, kernel {self.spec.function!r} takes no offset; "
                    "copy the array, or give a sub-buffer"
                )
            return
        value = self.spec.arguments[k][1]
        if isinstance(value, BoundNumber):
            self.set_number(k, np.dtype(value.dtype).type(elements * value.scale))
        else:
            self.set_number(k, int64_bytes(elements))

    def bind(self, arguments: Mapping[str, Any]) -> None:
        """Set those of the named arguments that this kernel has. OpenCL keeps no reference to them until the launch."""
        for name, value in arguments.items():
            for k in self._index.get(name, ()):
                if isinstance(value, np.generic):
                    self.set_number(k, value)
                else:
                    self.kernel.set_arg(k, value)

    def enqueue(self, queue: pyopencl.CommandQueue, wait_for: Sequence[Any] | None = None) -> pyopencl.Event:
        """Put the launch on the queue and return its event."""
        return self._enqueue(queue, self.kernel, self.spec.global_size, self.spec.local_size, wait_for=wait_for)

    def bound(self, queue: pyopencl.CommandQueue) -> Callable[[], pyopencl.Event]:
        """Return `enqueue` for a queue and nothing to wait for, as quick as can be."""
        return partial(self._enqueue, queue, self.kernel, self.spec.global_size, self.spec.local_size)


def _is_bound(value: Any) -> bool:
    return value is None or isinstance(value, (BoundNumber, BoundRows))


def tensor_arguments(name: str, strides: Sequence[int] | None) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of a tensor: memory and offset (bound for each call), and strides in elements.

    strides: of batch, token, head and, if the kernel takes it, element. None: a launch without this tensor, which gets
    a null pointer; on Intel's runtime each buffer makes a launch 0.2 to 0.3 us longer.
    """
    axes = ("batch", "token", "head", "element")
    numbers = zip(axes, (0, 0, 0) if strides is None else strides, strict=False)
    memory, offset = (None, None) if strides is not None else (NO_BUFFER, np.int64(0))
    strides_by_name = ((f"{name}_{axis}", np.int64(stride)) for axis, stride in numbers)
    return ((name, memory), (f"{name}_offset", offset), *strides_by_name)


def head_options(problem: Problem, p: Parameters, width: int, **numbers: Any) -> tuple[str, ...]:
    """Return the compiler's options of kernels that rotate contiguous heads by vectors; numbers: further ones."""
    pairs, fused = problem.pairs, p.get("angles") == "fused"
    numbers = {
        "PAIRS": pairs.pairs, "HEAD_DIM": pairs.head_dim, "WINDOW": pairs.window,
        "NEIGHBOURS": pairs.pairing == "normal", "FUSED": fused, **numbers,
    }  # fmt: skip
    clang = ["-DCLANG_VECTORS"] if p.get("access") == "clang" else []
    angles = problem.angles.options(problem.dtype) if fused else ()
    return (
        *storage_options(problem.dtype, width), *(f"-D{name}={int(n)}" for name, n in numbers.items()), *clang, *angles
    )  # fmt: skip


def head_tensors(suffix: str, problem: Problem | None) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of a tensor with contiguous heads: input, output, and their number. None: no tensor."""
    x, y = (None, None) if problem is None else (problem.x_strides[:3], problem.y_strides[:3])
    heads = np.int32(0 if problem is None else problem.shape[2])
    return (*tensor_arguments(f"x{suffix}", x), *tensor_arguments(f"y{suffix}", y), (f"heads{suffix}", heads))


def head_arguments(first: Problem, second: Problem | None, angles: str) -> tuple[tuple[str, Any], ...]:
    """Return the arguments with which kernels begin that rotate contiguous heads of one or two tensors."""
    return (
        *head_tensors("", first), *head_tensors("2", second),
        *(FUSED_ANGLES if angles == "fused" else table_arguments(first)),
        ("row_stride", np.int64(first.row_stride)), ("tokens", np.int32(first.shape[1])),
    )  # fmt: skip


#: The arguments of `angles.clh` with which a kernel computes angles, bound for each call.
FUSED_ANGLES = tuple((name, None) for name in ("positions", "rows", "step", "step_low", "axis", "magnitude"))


def table_arguments(problem: Problem) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of `angles.clh` with which a kernel reads tables: made for it, or the caller's."""
    row, pairs = problem.angles.table_row, problem.pairs.pairs
    place = np.int64(0) if row is None else None
    width = (2 * pairs if problem.angles.full_tables else pairs) if row is None else row
    return (
        ("cosine", None), ("cosine_offset", place), ("sine", None), ("sine_offset", place), ("first_row", place),
        ("table_row", np.int64(width)),
    )  # fmt: skip


def local_size_for(kind: str, dimensions: int) -> tuple[int, ...] | None:
    """Return the work-group's size: one work-item on a CPU, where each does a whole row, else the driver's choice.

    A fixed size keeps PoCL from compiling the kernel again for every shape.
    """
    return (1,) * dimensions if kind == "cpu" else None
