"""`rotate` and `rope` for several torch tensors at once: the operator `clrope::rotate`, with autograd and export.

q and k of a model share their cos and sin and are rotated by one launch, in the memory that they are in: transposed
views are read and written as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial, reduce
from operator import attrgetter, le, or_
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..api import rope as _rope_arrays
from ..arrays import held_bytes
from ..call.events import raise_opencl_error
from ..call.memory import pointer
from ..config import RopeConfig
from ..errors import ConfigError, DeviceError, ShapeError, shown
from ..layout import parse_layout
from ..mode import parse_mode
from ..operation import Rope
from ..select import database
from ..tables import FullTables, rotate_call
from ..tables import rotate as _rotate_arrays

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rotate(
    xs: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    *,
    layout: str = "bhsd",
    mode: str = "neox",
    out_mode: str | None = None,
    n_dims: int | None = None,
    n_offs: int = 0,
    full_tables: FullTables = "halves",
    contiguous: bool = False,
    device: str | None = None,
) -> tuple[Tensor, ...]:
    """Rotate CPU tensors by given cos and sin, differentiably, and return new tensors.

    xs:         tensors that share batches, tokens and head_dim, such as (q, k), of rank 3 or 4 in the order of
                `layout`; float16, bfloat16, float32 or float64, any strides.
    cos, sin:   [S, columns] or [B, S, columns], one column per rotated element, or one per pair; differentiable, too.
    n_dims:     rotated elements of a head; None: the whole head, from n_offs on.
    mode, out_mode, n_offs, full_tables: as for `clrope.rotate`.
    contiguous: whether results are in C order; otherwise their memory is ordered as their input's.
    device:     name of the OpenCL device, as for `clrope.device`; part of an exported graph.

    Raises `ShapeError`, `ConfigError`, `DeviceError`, `BuildError`.
    """
    attributes: dict[str, Any] = {"layout": layout, "mode": mode}
    if xs and n_dims is None:
        n_dims = xs[0].shape[-1] - n_offs
    given = {"out_mode": out_mode, "n_dims": n_dims, "n_offs": n_offs, "contiguous": contiguous, "device": device}
    attributes.update((name, value) for name, value in given.items() if value)
    if full_tables != "halves":
        attributes["full_tables"] = full_tables
    return _called(xs, cos, sin, None, attributes)


def rope(
    xs: Sequence[Tensor],
    positions: Tensor,
    config: RopeConfig,
    *,
    layout: str = "bhsd",
    contiguous: bool = False,
    device: str | None = None,
) -> tuple[Tensor, ...]:
    """Rotate CPU tensors at positions by a configuration, differentiably: as `clrope.rope`, bit for bit.

    positions: integers, [S] or [B, S]; in section modes [3, S], [4, S], [3, B, S] or [4, B, S]. Others as for `rotate`.
    """
    if not isinstance(config, RopeConfig):
        raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
    attributes: dict[str, Any] = {"layout": layout, "config": json.dumps(config.to_dict())}
    given = {"contiguous": contiguous, "device": device}
    attributes.update((name, value) for name, value in given.items() if value)
    return _called(xs, None, None, positions, attributes)


def _called(
    xs: Sequence[Tensor], cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, attributes: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Call the operator, or where nothing watches, what is behind it: torch's dispatch takes longer than a token."""
    if torch.compiler.is_compiling() or _watched([*xs, cos, sin]):
        return tuple(torch.ops.clrope.rotate(list(xs), cos, sin, positions, **attributes))
    return tuple(_launched(xs, cos, sin, positions, **attributes))


class Repeated:
    """`rotate` for tensors like those of an earlier call, without its checks: a model does the same in every layer.

    Next to a model's work nothing of ours is in the caches, and each line of Python takes three times as long. So all
    that a call depends on is one key, made without a loop in Python. Calls are kept with all others, by the runtime.
    """

    def __init__(self, device: str | None, contiguous: bool, in_place: bool) -> None:
        self._op = Rope(RopeConfig("neox"), device)
        self._new = partial(torch.empty_like, memory_format=torch.contiguous_format) if contiguous else torch.empty_like
        self._in_place = in_place

    def run(self, tensors: Sequence[Any]) -> Any:
        """Return rotated tensors, new ones or in place; None, and nothing done, where `rotate` is needed.

        tensors: x, ..., cos, sin.
        """
        found = self._signed(tensors)
        if found is None:
            return None
        key, addresses = found
        state = self._op.target_of_memories((), True)
        call = state.runtime.calls.get(key)
        if call is None or not all(map(le, call.reach, map(held_bytes, tensors))):
            return None
        xs = ys = [*tensors[:-2]]
        if not self._in_place:
            ys = [*map(self._new, xs)]
            addresses += map(_ADDRESS, ys)
        if reduce(or_, addresses) & _ALIGNED:
            return None
        pointers, count = [*map(pointer, addresses)], len(xs)
        memories = pointers[:count] * 2 + pointers[count : count + 2]
        memories[: 2 * count : 2] = pointers[:count]
        memories[1 : 2 * count : 2] = pointers[:count] if self._in_place else pointers[count + 2 :]
        if self._in_place and not call.are_apart(addresses) and call.overlap(memories):
            return None
        try:
            return call.run(xs, ys, memories, 0)
        except Exception as error:
            raise_opencl_error(error, self._op.device_name)
            raise

    def learn(self, tensors: Sequence[Any], columns: int, **options: Any) -> None:
        """Let `run` take such tensors; those that cannot be rotated in place are left to `rotate`.

        columns: those of cos and sin that are used. options: of `clrope.rotate`.
        """
        found = self._signed(tensors)
        *xs, cos, sin = tensors
        if found is None or reduce(or_, found[1]) & _ALIGNED or not all(map(Tensor.numel, xs)):
            return
        ys = xs if self._in_place else [*map(self._new, xs)]
        with suppress(ShapeError):
            call = rotate_call(self._op, xs, cos[..., :columns], sin[..., :columns], ys, **options)
            self._op.target_of_memories((), True).runtime.calls.put(found[0], call)

    def _signed(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], list[int]] | None:
        """Return (key of the call, addresses) of tensors; None if `rotate` has to look at them."""
        if {*map(type, tensors)} != _PLAIN or torch._C._len_torch_dispatch_stack() or _in_forward_mode():
            return None
        try:
            facts = *map(_FACTS, tensors), *map(_STRIDES, tensors), *map(_IS_NEGATIVE, tensors)
            addresses = [*map(_ADDRESS, tensors)]
        except RuntimeError:  # of what is not strided, or wrapped by `torch.func`
            return None
        return ((self, database.snapshot.rereads, *facts), addresses) if all(addresses) else None


_PLAIN = {Tensor}
_FACTS = attrgetter("shape", "dtype", "requires_grad", "is_cpu")
_STRIDES, _IS_NEGATIVE, _ADDRESS = Tensor.stride, Tensor.is_neg, Tensor.data_ptr
#: Bits of an address that are 0 in memory of torch's own.
_ALIGNED = 63


def _watched(tensors: Sequence[Tensor | None]) -> bool:
    """Whether autograd, a mode, `torch.func` or a subclass of Tensor takes part in a call."""
    return _in_a_mode() or any(isinstance(t, Tensor) and (t.requires_grad or type(t) is not Tensor) for t in tensors)


def _in_a_mode() -> bool:
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return _in_forward_mode()


def _in_forward_mode() -> bool:
    return bool(getattr(forward_ad, "_current_level", -1) >= 0)


#: config: a `RopeConfig` as JSON, with positions, in place of cos, sin and what says how they are used.
_SCHEMA = (
    "(Tensor[] xs, Tensor? cos, Tensor? sin, Tensor? positions, *, str layout, str mode='neox', str? out_mode=None, "
    "int? n_dims=None, int n_offs=0, str full_tables='halves', bool forward=True, bool contiguous=False, "
    "str config='', str? device=None) -> Tensor[]"
)


def _launched(
    xs: Sequence[Tensor],
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    *,
    layout: str,
    mode: str = "neox",
    out_mode: str | None = None,
    n_dims: int | None = None,
    n_offs: int = 0,
    full_tables: FullTables = "halves",
    forward: bool = True,
    contiguous: bool = False,
    config: str = "",
    device: str | None = None,
) -> list[Tensor]:
    if _in_forward_mode():
        # torch gives a tangent of 0 where it finds no rule.
        raise ConfigError("xs: clrope::rotate has no rule for forward-mode differentiation")
    for name, tensor in (*_named(xs), ("cos", cos), ("sin", sin), ("positions", positions)):
        if tensor is not None:
            check_memory(name, tensor)
    inputs = [x.detach().resolve_neg() if x.requires_grad or x.is_neg() else x for x in xs]
    out = tuple(_result(x, contiguous) for x in inputs)
    if config:
        assert positions is not None
        _rope_arrays(tuple(inputs), positions.numpy(), parsed_config(config), forward, out, layout, device)
    else:
        assert cos is not None
        assert sin is not None
        if n_dims is None:
            raise ConfigError("n_dims: not given, the operator needs it with cos and sin")
        cos, sin = (t.detach().resolve_neg() if t.requires_grad or t.is_neg() else t for t in (cos, sin))
        _rotate_arrays(
            tuple(inputs), cos, sin, None, mode, out, layout, device,
            n_dims=n_dims, n_offs=n_offs, forward=forward, full_tables=full_tables, out_mode=out_mode,
        )  # fmt: skip
    return list(out)


_rotate = torch.library.custom_op("clrope::rotate", _launched, mutates_args=(), schema=_SCHEMA)


@_rotate.register_fake
def _rotate_fake(
    xs: list[Tensor],
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    *,
    layout: str,
    mode: str = "neox",
    out_mode: str | None = None,
    contiguous: bool = False,
    **others: Any,
) -> list[Tensor]:
    for given in (mode, mode if out_mode is None else out_mode):
        parse_mode(given)
    for name, x in _named(xs):
        if x.dtype not in _FLOATS:
            raise ShapeError(f"{name}: got {x.dtype}, allowed are float16, bfloat16, float32, float64")
        parse_layout(layout, x.dim(), name)
    return [_result(x, contiguous) for x in xs]


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: list[Tensor]
) -> None:
    xs, cos, sin, positions = inputs
    # Only the gradients of cos and sin need the inputs again.
    tables = any(t is not None and t.requires_grad for t in (cos, sin))
    ctx.save_for_backward(cos, sin, positions, *(xs if tables else ()))
    ctx.attributes, ctx.count = keyword_only_inputs, len(xs)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    """Return the gradients: of the tensors, the rotation back by the same operator; of cos and sin, sums."""
    cos, sin, positions, *xs = ctx.saved_tensors
    turned = {**ctx.attributes, "forward": not ctx.attributes.get("forward", True)}
    if turned.get("out_mode") is not None:
        turned["mode"], turned["out_mode"] = turned["out_mode"], turned.get("mode", "neox")
    turned_sin = sin
    if cos is not None and cos.shape[-1] == turned["n_dims"]:
        # The transpose of [[c1, -s1], [s2, c2]] has the sines of a pair in each other's place.
        turned_sin = _exchanged(sin, turned.get("full_tables", "halves"))
    wanted = [i for i, grad in enumerate(grads) if grad is not None]
    back = torch.ops.clrope.rotate([grads[i] for i in wanted], cos, turned_sin, positions, **turned)
    out: list[Tensor | None] = [None] * ctx.count
    for i, grad in zip(wanted, back, strict=True):
        out[i] = grad
    if not xs:
        return out, None, None, None
    d_cos, d_sin = _table_gradients(xs, grads, cos, ctx.attributes)
    return out, d_cos.to(cos.dtype), d_sin.to(sin.dtype), None


_rotate.register_autograd(_backward, setup_context=_setup_context)


@_rotate.register_vmap
def _each(info: Any, in_dims: tuple[Any, ...], *tensors: Any, **attributes: Any) -> tuple[list[Tensor], list[int]]:
    """One call for each element."""

    def part(tensor: Any, dim: Any, i: int) -> Any:
        return tensor if tensor is None or dim is None else tensor.select(dim, i)

    xs, *others = tensors
    results = [
        torch.ops.clrope.rotate(
            [part(x, dim, i) for x, dim in zip(xs, in_dims[0] or [None] * len(xs), strict=True)],
            *(part(t, dim, i) for t, dim in zip(others, in_dims[1:], strict=True)), **attributes,
        )
        for i in range(info.batch_size)
    ]  # fmt: skip
    return [torch.stack(same) for same in zip(*results, strict=True)], [0] * len(xs)


def _exchanged(table: Tensor, full_tables: str) -> Tensor:
    if full_tables == "halves":
        return table.roll(table.shape[-1] // 2, -1)
    return torch.stack([table[..., 1::2], table[..., 0::2]], -1).flatten(-2)


def _table_gradients(
    xs: Sequence[Tensor], grads: Sequence[Tensor | None], cos: Tensor, attributes: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of cos and sin: sums over heads, and over batches where they share rows."""
    mode, n, start = attributes.get("mode", "neox"), attributes["n_dims"], attributes.get("n_offs", 0)
    out_mode, sign = attributes.get("out_mode") or mode, 1 if attributes.get("forward", True) else -1
    letters = parse_layout(attributes["layout"], xs[0].dim())
    wide = torch.float64 if xs[0].dtype == torch.float64 else torch.float32
    sums: list[Tensor] = [torch.zeros((), dtype=wide)] * 4
    for x, grad in zip(xs, grads, strict=True):
        if grad is None:
            continue
        (x1, x2), (g1, g2) = (
            _pairs(t.to(wide)[..., start : start + n], m) for t, m in ((x, mode), (grad, out_mode))
        )  # fmt: skip
        for i, product in enumerate((g1 * x1, g2 * x2, -sign * g1 * x2, sign * g2 * x1)):
            by_token = product.permute([letters.index(a) for a in "bsdn" if a in letters]).sum(-1)
            shape = (*cos.shape[:-1], n // 2)
            sums[i] = sums[i] + by_token.sum_to_size(shape if by_token.dim() == 3 or len(shape) == 2 else shape[1:])
    halves = attributes.get("full_tables", "halves") == "halves"

    def columns(first: Tensor, second: Tensor) -> Tensor:
        if cos.shape[-1] != n:
            return (first + second).reshape(cos.shape)
        both = torch.cat([first, second], -1) if halves else torch.stack([first, second], -1).flatten(-2)
        return both.reshape(cos.shape)

    return columns(sums[0], sums[1]), columns(sums[2], sums[3])


def _pairs(x: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Return views of the first and the second elements of all pairs."""
    if parse_mode(mode) == "normal":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _result(x: Tensor, contiguous: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format if contiguous else torch.preserve_format)


def _named(xs: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"xs[{i}]", x) for i, x in enumerate(xs)]


def check_memory(name: str, tensor: Any) -> None:
    """Raise `ShapeError` or `DeviceError` for anything but a strided CPU tensor."""
    if not isinstance(tensor, Tensor):
        raise ShapeError(f"{name}: got {shown(tensor)} of type {type(tensor).__name__}, a torch tensor is needed")
    if not tensor.is_cpu:
        raise DeviceError(
            f"{name}: got a tensor on {tensor.device}; only CPU tensors share memory with OpenCL, use .cpu() first"
        )
    if tensor.layout != torch.strided:
        raise ShapeError(f"{name}: got layout {tensor.layout}, only torch.strided is allowed; use .to_dense() first")


@lru_cache(maxsize=256)
def parsed_config(text: str) -> RopeConfig:
    """Return the configuration that an operator's attribute holds as JSON."""
    return RopeConfig.from_dict(cast("dict[str, Any]", json.loads(text)))
