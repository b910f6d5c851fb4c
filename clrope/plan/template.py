"""`CallTemplate`: what calls with arrays of one description share, checked once; holds their compiled calls."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, Literal

import numpy as np

from ..arrays import Operand, note_writes, operand, tensor_address
from ..buffer_place import HOST, buffer_place
from ..errors import ShapeError, shown
from ..host_memory import SMALLEST_KEPT, empty
from ..kernels.problem import BUFFER_ALIGNMENT, PairLayout
from ..kernels.variant import Variant
from ..layout import TensorView
from ..runtime import QueueState, Runtime, pending
from .angle_sources import ConfigAngles, PositionForm, Positions
from .compiled import AngleKind, CompiledCall, PartSignature
from .transfer import COPY_CHUNK_BYTES

Transfer = Literal["auto", "map", "copy"]
TRANSFERS = ("auto", "map", "copy")
#: Alignment of an address, at most 64, by its last six bits.
_ALIGNMENTS = tuple(gcd(BUFFER_ALIGNMENT, k) for k in range(BUFFER_ALIGNMENT))
#: CL_MEM_USE_HOST_PTR.
_USE_HOST_PTR = 1 << 3
#: Bytes that NumPy's and torch's own memory is aligned to at least.
_SMALL_ALIGNMENT = 16


def check_transfer(transfer: Any) -> None:
    """Raise `ShapeError` for anything but a `Transfer`."""
    if not isinstance(transfer, str) or transfer not in TRANSFERS:
        raise ShapeError(f"transfer: got {shown(transfer)}, allowed are 'auto', 'map', 'copy'")


def alignment_of(address: int) -> int:
    """Return the bytes, up to 64, that an address is aligned to."""
    return _ALIGNMENTS[address & (BUFFER_ALIGNMENT - 1)]


def buffer_alignment(buffer: Any) -> int:
    """Return the bytes, up to 64, that the start of a buffer is aligned to: over host memory, the memory's own."""
    try:
        flags = buffer.flags
    except AttributeError:
        return 1  # shared virtual memory of a caller's allocator
    if not flags & _USE_HOST_PTR:
        return BUFFER_ALIGNMENT
    return alignment_of(buffer.get_host_array((1,), np.dtype(np.uint8)).__array_interface__["data"][0])


def describe(array: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Return (all that a compiled call depends on, address or OpenCL array); None if a closer look is needed."""
    kind = type(array)
    if kind is np.ndarray:
        address = address_of(array)
        return (array.dtype, array.shape, array.strides, array.flags.writeable, _ALIGNMENTS[address & 63]), address
    modules = sys.modules
    torch = modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        if array.requires_grad or not array.is_cpu or array.layout is not torch.strided or array.is_neg():
            return None
        if array.is_nested:
            return None
        address = tensor_address(array)
        if not address:
            return None
        return ("torch", array.dtype, array.shape, array.stride(), _ALIGNMENTS[address & 63]), address
    arrays = modules.get("pyopencl.array")
    if arrays is not None and kind is arrays.Array:
        if array.offset % array.dtype.itemsize:
            return None
        own = array.allocator is None
        alignment = gcd(buffer_alignment(array.base_data), array.offset)
        return ("opencl", array.dtype, array.shape, array.strides, own, alignment), array
    return None


def address_of(array: Any) -> int:
    """Return the address of a NumPy array's first element."""
    import pyopencl as cl

    try:
        # Five times as quick as `array.ctypes`, where the memory is contiguous and may be written.
        address: int = cl.SVM(array).svm_ptr
    except (ValueError, cl.Error):
        address = array.__array_interface__["data"][0]
    return address


class CallTemplate:
    """Calls with arrays of one description.

    operands: (input, output or None for a new one) as the first such call had them; only their layout is used.
    batch, seq: tokens that positions are for.
    """

    def __init__(
        self,
        runtime: Runtime,
        operands: Sequence[tuple[Operand, Operand | None]],
        pairs: Sequence[PairLayout],
        source: AngleKind,
        *,
        forward: bool,
        several: bool,
        variant: Variant | None,
        transfer: Transfer = "auto",
        copy_chunk_bytes: int = COPY_CHUNK_BYTES,
    ) -> None:
        check_transfer(transfer)
        self.runtime = runtime
        self.several = several
        self.forward = forward
        self.variant = variant
        self.source = source
        self.batch, self.seq = operands[0][0].view.shape[:2]
        self.transfer = transfer
        self._pairs = list(pairs)
        self._copy_chunk_bytes = copy_chunk_bytes
        self.parts: list[PartSignature] = []
        #: For each part how a new result is made; None where the caller gave one.
        self.makers: list[Maker | None] = []
        #: The parts whose given output is a torch tensor.
        self.tensors = [k for k, (_, out) in enumerate(operands) if out is not None and out.kind == "torch"]
        #: Bytes that each side touches, from its element [0, 0, 0, 0] on: inputs and outputs in turn.
        self.spans: list[tuple[int, int]] = []
        for (x, out), layout in zip(operands, pairs, strict=True):
            access = self._access(x, transfer)
            x_view = _unplaced(x.view)
            if out is None:
                maker, y_view, alignment = _maker(x)
            else:
                maker, y_view, alignment = None, _unplaced(out.view), _alignment(out)
            self.makers.append(maker)
            part = PartSignature(x_view, y_view, _alignment(x), alignment, out is x, access, layout)
            self.parts.append(part)
            for view in (x_view, y_view):
                first, last = view.span
                self.spans.append((first * view.itemsize, last * view.itemsize))
        self._copy_what_is_too_large()
        self.in_place = [part.in_place for part in self.parts]
        #: Whether a written side may share memory with another one, which then has to be looked at.
        self.may_overlap = any(maker is None for maker in self.makers) and (
            len(self.parts) > 1 or not all(self.in_place)
        )
        self.on_device = [part.access == "device" for part in self.parts]
        self.all_on_device, self.all_on_host = all(self.on_device), not any(self.on_device)
        self._calls: dict[PositionForm, CompiledCall] = {}

    def _copy_what_is_too_large(self) -> None:
        """Let mapped tensors be copied if one buffer might not hold them: those that overlap get one together."""
        mapped = [part.access == "mapped" for part in self.parts]
        sizes = [
            last - first
            for k, (first, last) in enumerate(self.spans)
            if mapped[k // 2] and not (k % 2 and self.parts[k // 2].in_place)
        ]
        if sum(sizes) > self.runtime.info.max_alloc - BUFFER_ALIGNMENT:
            self.parts = [
                part._replace(access="copied") if is_mapped else part
                for part, is_mapped in zip(self.parts, mapped, strict=True)
            ]

    def _access(self, x: Operand, transfer: Transfer) -> Any:
        if x.kind == "opencl":
            return "device"
        if transfer == "copy" or (self.variant is not None and self.variant.implementation.needs_copies):
            return "copied"
        access = self.runtime.host_access
        return "mapped" if transfer == "map" and access == "copied" else access

    def compiled(self, form: PositionForm) -> CompiledCall:
        """Return the compiled call for a form of positions, made at most once."""
        found = self._calls.get(form)
        if found is None:
            with self.runtime.lock:
                found = self._calls.get(form)
                if found is None:
                    found = self._calls[form] = CompiledCall(
                        self.runtime, self.parts, self.source, form, self.forward, self.variant, self._copy_chunk_bytes
                    )
        return found

    def for_operands(self, operands: Sequence[tuple[Operand, Operand]]) -> CallTemplate:
        """Return the template for other operands of the same shapes, strides and dtypes: alignments may differ."""
        same = all(
            _alignment(x) == part.x_alignment and (part.in_place or _alignment(out) == part.y_alignment)
            for (x, out), part in zip(operands, self.parts, strict=True)
        )
        if same:
            return self
        return CallTemplate(
            self.runtime, operands, self._pairs, self.source, forward=self.forward, several=self.several,
            variant=self.variant, transfer=self.transfer, copy_chunk_bytes=self._copy_chunk_bytes,
        )  # fmt: skip

    def run(
        self,
        call: CompiledCall,
        state: QueueState,
        inputs: list[Any],
        given: Sequence[Any],
        memories: list[Any],
        positions: Positions | int,
        waits: Sequence[Any] = (),
        layout: str = "",
    ) -> Any:
        """Launch a compiled call of this template on arrays of its description, and return the result.

        given: outputs, None for new ones. memories: what `describe` or `RecentCall` found, None for new outputs; inputs
        and outputs in turn. positions: an int counts within ±2**31. layout: for host memory without a quick way.
        """
        source, outputs = self.source, list(given)
        assert isinstance(source, ConfigAngles)
        for k, make in enumerate(self.makers):
            if make is not None:
                outputs[k], memories[2 * k + 1] = make(inputs[k], state)
        bound = call.take()
        if not self.all_on_host:
            bound.bind_arrays(memories)
        elif not bound.bind_addresses(memories):
            bound.bind(state, operands_of(inputs, outputs, layout))
        if isinstance(positions, int):
            bound.place_first(state, source, positions)
        else:
            bound.place(state, source, positions)
        if self.all_on_host:
            if self.tensors:
                note_writes([outputs[k] for k in self.tensors])
            bound.run_on_host(state, (inputs, outputs))
        else:
            before = [*waits, *state.before_writing([b for b in given if b is not None])]
            for array in memories:
                if array.events:
                    before += array.events
            bound.launch_on_arrays(state, pending(before) if before else None, outputs, memories)
        call.give_back(bound)
        return tuple(outputs) if self.several else outputs[0]

    def overlap(self, memories: Sequence[Any]) -> bool:
        """Whether a written side may share memory with another one.

        memories: addresses or OpenCL arrays, None for new results; inputs and outputs in turn.
        """
        spans: list[tuple[int, int, int, bool]] = []
        for k, (memory, (first, last)) in enumerate(zip(memories, self.spans, strict=True)):
            in_place = self.in_place[k // 2]
            if memory is None or (k % 2 and in_place):
                continue
            if type(memory) is int:
                space, start = HOST, memory
            else:
                space, start = buffer_place(memory.base_data)
                start += memory.offset
            spans.append((space, start + first, start + last, k % 2 == 1 or in_place))
        return any(
            (a[3] or b[3]) and a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
            for i, a in enumerate(spans)
            for b in spans[:i]
        )


def operands_of(inputs: Sequence[Any], outputs: Sequence[Any], layout: str) -> list[tuple[Operand, Operand]]:
    """Return (input, output) of each part as operands, one object in place."""
    pairs = []
    for a, b in zip(inputs, outputs, strict=True):
        x = operand(a, layout)
        pairs.append((x, x if b is a else operand(b, layout, "out", writable=True)))
    return pairs


def template_key(what: Any, operands: Sequence[tuple[Operand, Operand | None]], *others: Any) -> tuple[Any, ...]:
    """Return a key of checked operands and all else that a template depends on."""
    sides = [
        None if o is None else "in place" if number and o is x else
        (o.kind, _unplaced(o.view), o.layout, _alignment(o), o.kind != "opencl" or o.array.allocator is None)
        for x, out in operands
        for number, o in enumerate((x, out))
    ]  # fmt: skip
    return (what, *sides, *others)


def _unplaced(view: TensorView) -> TensorView:
    return view.moved(-view.offset)


def _alignment(operand: Operand) -> int:
    """Return the alignment of element [0, 0, 0, 0] in bytes, at most 64."""
    if operand.kind == "opencl":
        return gcd(buffer_alignment(operand.array.base_data), operand.view.offset * operand.view.itemsize)
    return alignment_of(operand.address)


Maker = Callable[[Any, QueueState], tuple[Any, Any]]


def _maker(x: Operand) -> tuple[Maker, TensorView, int]:
    """Return what makes a result like x with its memory, its view and its alignment: C order, same kind and dtype."""
    if x.kind == "opencl":
        shape = x.array.shape
        view = TensorView.dense(shape, x.view.dtype, x.layout)
        return _opencl_maker(x), view, BUFFER_ALIGNMENT if x.array.allocator is None else 1
    assert x.host is not None
    shape, dtype = x.host.shape, x.host.dtype
    view = TensorView.dense(shape, x.view.dtype, x.layout)
    small = math.prod(shape) * dtype.itemsize < SMALLEST_KEPT
    alignment = _SMALL_ALIGNMENT if small else BUFFER_ALIGNMENT
    if x.kind == "numpy":
        if small:
            return (lambda _, __: _with_address(np.empty(shape, dtype))), view, alignment
        return (lambda _, __: _with_address(empty(shape, dtype))), view, alignment
    import torch

    torch_shape, torch_dtype, new = x.original.shape, x.original.dtype, torch.empty
    if small and x.original.is_contiguous():
        return _torch_maker(torch.empty_like), view, alignment
    if small:
        return _torch_maker(lambda _: new(torch_shape, dtype=torch_dtype, device="cpu")), view, alignment
    integers = {"bf16": np.int16}.get(x.view.dtype)

    def from_numpy(_: Any) -> Any:
        made = empty(shape, dtype)
        if integers is None:
            return torch.from_numpy(made)
        return torch.from_numpy(made.view(integers)).view(torch_dtype)

    return _torch_maker(from_numpy), view, alignment


def _with_address(made: Any) -> tuple[Any, int]:
    return made, address_of(made)


def _torch_maker(new: Callable[[Any], Any]) -> Maker:
    """Return what makes a tensor with its address by `new`, which torch's modes and default device may change."""

    def make(a: Any, _: QueueState) -> tuple[Any, int]:
        try:
            made = new(a)
            address = made.is_cpu and made.data_ptr()
        except MemoryError:
            raise
        except Exception as error:
            raise ShapeError(f"x: torch makes no result for it: {type(error).__name__}: {error}") from error
        if not address:
            raise ShapeError(
                "x: torch makes results without memory on the CPU here, as under FakeTensorMode; give `out`, or call "
                "outside of it"
            )
        return made, address

    return make


def _opencl_maker(x: Operand) -> Maker:
    import pyopencl.array as cla

    steps = [x.view.itemsize]
    for length in reversed(x.array.shape[1:]):
        steps.append(steps[-1] * length)
    strides, nbytes = tuple(reversed(steps)), x.view.nbytes
    kind = cla.Array

    def make(array: Any, queue: QueueState) -> tuple[Any, Any]:
        allocator = array.allocator
        data = queue.allocate(nbytes) if allocator is None else allocator(nbytes)
        # The constructor takes 30 us, more than all the rest of a small call.
        fields = array.__dict__.copy()
        fields["base_data"], fields["offset"], fields["events"] = data, 0, []
        fields["strides"], fields["_flags"] = strides, None
        own = array.queue
        if own is not None and own is not queue.queue and own != queue.queue:
            fields["queue"] = queue.queue  # whose pool the memory goes back to
        made = object.__new__(kind)
        made.__dict__ = fields
        return made, made

    return make
