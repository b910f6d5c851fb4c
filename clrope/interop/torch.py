"""RoPE for PyTorch: the module `RoPE` over the custom operator `clrope::rope`, with autograd, export and compile.

The peer is the composite operator RoPE of coreai-torch (`docs/api/composite-ops/rope.md` there): its arguments, their
priority and their shapes. Rotations run as OpenCL kernels on the memory of CPU tensors, without a copy.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..config import Mode, RopeConfig
from ..errors import ConfigError, DeviceError, ShapeError, renamed, shown
from ..io.config_values import MOST_REAL
from ..operation import Rope
from ..tables import rotate_plan

_STORAGE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_MAX_INT64 = (1 << 63) - 1


class RoPE(torch.nn.Module):
    """Rotary position embedding of the last axis, as one operator.

    scale:       factor on the positions made from `offset`: 0, or 1e-36 to 1e36 with any sign; positions stay exact.
    base:        1e-36 to 1e36, of the frequencies, `freqs[i] = base ** (-i / (dims / 2))`.
    dims:        rotate the first so many elements and pass the rest; even, at least 2. None or more than there are:
                 all of them.
    interleaved: True pairs the elements (2i, 2i + 1), False (i, i + dims / 2).

    Raises `ConfigError` for anything else.
    """

    def __init__(
        self, scale: float = 1.0, base: float = 1e4, dims: int | None = None, interleaved: bool = False
    ) -> None:
        super().__init__()
        self.scale, self.base = _real("scale", scale), _real("base", base)
        if isinstance(dims, bool) or not (dims is None or isinstance(dims, int)):
            raise ConfigError(f"dims: got {shown(dims)} of type {type(dims).__name__}, an int or None is needed")
        if not isinstance(interleaved, (bool, int)) or interleaved not in (0, 1):
            raise ConfigError(f"interleaved: got {shown(interleaved)}, allowed are True, False")
        self.dims, self.interleaved = dims, bool(interleaved)
        _check_attributes(self.scale, self.base, dims)
        self._config = ""

    @classmethod
    def from_config(cls, config: RopeConfig) -> RoPE:
        """Return a module that rotates as `clrope.rope(input, positions, config, layout="bnsd")`, bit for bit.

        Its forward takes input and position_ids or offset; cos, sin and freqs are the configuration's own.
        Raises `ConfigError` for modes with sections and for grids, whose positions have several rows.
        """
        if not isinstance(config, RopeConfig):
            raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
        if config.uses_sections:
            if config.pair_axes is not None:
                raise ConfigError("pair_axes: given, but positions have one row here; clrope.rope takes several")
            raise ConfigError(f"mode: got {config.mode!r}, allowed are 'normal', 'neox'; clrope.rope takes all modes")
        module = cls(config.freq_scale, config.freq_base, config.n_dims, config.mode == "normal")
        module._config = json.dumps(config.to_dict())
        return module

    @property
    def config(self) -> RopeConfig | None:
        """The configuration that the module was made from."""
        return _parsed_config(self._config) if self._config else None

    def forward(
        self,
        input: Tensor,
        cos: Tensor | None = None,
        sin: Tensor | None = None,
        position_ids: Tensor | None = None,
        freqs: Tensor | None = None,
        offset: Tensor | int | None = None,
    ) -> Tensor:
        """Rotate `input` and return a new tensor of its shape.

        input:        [batch, ..., seq_len, embed], rank 3 or more; float16, bfloat16, float32 or float64, on the CPU.
        cos, sin:     both or neither; broadcastable to [batch, ..., seq_len, dims / 2]. With them nothing below counts.
        position_ids: integers [seq_len], [batch, seq_len], or [batch, ..., seq_len] with all its axes; an axis of
                      length 1 broadcasts. Taken as they are (`scale` is for positions made here).
        offset:       without position_ids: `positions = (offset + arange(seq_len)) * scale`; an int, or integers [],
                      [1], [batch], [batch, 1]. None is 0.
        freqs:        [dims / 2] radians per position, -1e36 to 1e36, in place of those that follow from `base`. Each
                      is used as 1 / (1 / freqs[i]) with the inverse rounded to float64, so that an angle is right to
                      2**-53 of itself, as a float64 product is. Without them phases are exact.

        The result has the dtype that input, cos and sin promote to. Differentiable in input, cos, sin and freqs.
        Raises `ShapeError`, `ConfigError`, `DeviceError`, `BuildError`.
        """
        start: int = 0
        for name, value in _Inputs(input, cos, sin, position_ids, freqs)._asdict().items():
            # A proxy stands for a tensor while torch.fx traces.
            if not isinstance(value, (Tensor, torch.fx.Proxy)) and (value is not None or name == "input"):
                raise ShapeError(f"{name}: got {type(value).__name__}, a torch tensor is needed")
        if cos is not None and sin is not None:
            position_ids = freqs = offset = None
        elif position_ids is not None:
            offset = None
        if offset is not None and not isinstance(offset, Tensor):
            if isinstance(offset, bool) or not isinstance(offset, (int, torch.SymInt)):
                raise ShapeError(
                    f"offset: got {shown(offset)} of type {type(offset).__name__}, an int or tensor is needed"
                )
            if isinstance(offset, int) and not -_MAX_INT64 - 1 <= offset <= _MAX_INT64:
                raise ShapeError(f"offset: got {shown(offset)}, allowed are -2**63 ... 2**63 - 1")
            start, offset = offset, None
        attributes: dict[str, Any] = {
            "scale": self.scale,
            "base": self.base,
            "dims": self.dims,
            "interleaved": self.interleaved,
        }
        if start != 0:
            attributes["start"] = start
        if self._config:
            attributes["config"] = self._config
        return cast(Tensor, torch.ops.clrope.rope(input, cos, sin, position_ids, freqs, offset, **attributes))

    def extra_repr(self) -> str:
        """Return the attributes, for `repr`."""
        if self.config is not None:
            plain = RopeConfig(self.config.mode).to_dict()
            fields = {k: v for k, v in self.config.to_dict().items() if k == "mode" or v != plain[k]}
            return ", ".join(f"{k}={'[...]' if isinstance(v, list) else repr(v)}" for k, v in fields.items())
        return f"scale={self.scale}, base={self.base}, dims={self.dims}, interleaved={self.interleaved}"


class _Inputs(NamedTuple):
    """The operator's positional arguments, and the order of its gradients."""

    input: Any
    cos: Any = None
    sin: Any = None
    position_ids: Any = None
    freqs: Any = None
    offset: Any = None


#: scale, base, dims, interleaved have no default, so that every exported node carries them. start: the offset where it
#: is an int; a tensor wins over it. transpose: the sign of sin flipped, which is the gradient. config: a `RopeConfig`
#: as JSON, in place of scale, base, dims and interleaved.
_SCHEMA = (
    "(Tensor input, Tensor? cos=None, Tensor? sin=None, Tensor? position_ids=None, Tensor? freqs=None, "
    "Tensor? offset=None, *, float scale, float base, int? dims, bool interleaved, SymInt start=0, "
    'bool transpose=False, str config="") -> Tensor'
)


@torch.library.custom_op("clrope::rope", mutates_args=(), schema=_SCHEMA)
def _rope(
    *tensors: Tensor | None,
    scale: float,
    base: float,
    dims: int | None,
    interleaved: bool,
    start: int = 0,
    transpose: bool = False,
    config: str = "",
) -> Tensor:
    given = _Inputs(*tensors)
    if getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0:
        # torch gives a tangent of 0 where it finds no rule.
        raise ConfigError(
            "input: clrope::rope has no rule for forward-mode differentiation (dual_level, torch.func.jvp)"
        )
    n, dtype = _check(given, scale, base, dims, config)
    for name, tensor in given._asdict().items():
        if tensor is not None:
            _check_memory(name, tensor)
    x = given.input.detach().resolve_neg().to(dtype)
    cos, sin, freqs = given.cos, given.sin, given.freqs
    y = torch.empty(x.shape, dtype=dtype)
    if cos is not None and sin is not None:
        mode = "normal" if interleaved else "neox"
        table_dtype = cos.dtype if cos.dtype == sin.dtype else dtype
        rows = [
            _broadcast(name, table.detach().resolve_neg().to(table_dtype), (*x.shape[:-1], n // 2))
            for name, table in (("cos", cos), ("sin", sin))
        ]
        if y.numel():
            with renamed({"n_dims": "dims"}):
                for x4, y4, (c, s) in _calls(x, y, rows):
                    rotate_plan(x4, c, s, None, mode, y4, "bnsd", n_dims=n, forward=not transpose).run()
        return y
    if config:
        parsed = _parsed_config(config)
    else:
        factors = None if freqs is None else tuple(cast("list[float]", freqs.detach().to(torch.float64).tolist()))
        parsed = _config(n, 1.0 if given.position_ids is not None else scale, base, interleaved, factors)
    positions = _positions(x, given.position_ids, given.offset, start)
    if y.numel():
        op = Rope(parsed)
        for x4, y4, (p,) in _calls(x, y, [positions]):
            op(x4, p.numpy(), forward=not transpose, out=y4, layout="bnsd")
    return y


@_rope.register_fake
def _rope_fake(
    *tensors: Tensor | None, scale: float, base: float, dims: int | None, config: str = "", **others: Any
) -> Tensor:
    given = _Inputs(*tensors)
    _, dtype = _check(given, scale, base, dims, config)
    return cast(Tensor, given.input.new_empty(given.input.shape, dtype=dtype))


def _needs(ctx: Any) -> _Inputs:
    """Return which gradients are wanted; None where the dispatcher left a trailing argument out."""
    return _Inputs(*ctx.needs_input_grad[:6])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Tensor) -> None:
    given = _Inputs(*inputs)
    needs = _needs(ctx)
    # Only cos and sin need the input again, and only freqs the output.
    x = given.input if needs.cos or needs.sin else None
    ctx.save_for_backward(x, *given[1:], output if needs.freqs else None)
    ctx.input_dtype = given.input.dtype
    ctx.attributes = keyword_only_inputs


def _backward(ctx: Any, grad: Tensor) -> _Inputs:
    """Return the gradients, made of rotations by the same operator, so that they can be differentiated again.

    Of the input: the transpose. Of cos and sin, d cos = g1 x1 + g2 x2 and d sin = g2 x1 - g1 x2, which is the transpose
    applied to the gradient with x1 and x2 as tables. Of an angle, g2 y1 - g1 y2: the second half with y1 and y2.
    """
    x, cos, sin, position_ids, freqs, offset, y = ctx.saved_tensors
    needs, attributes = _needs(ctx), ctx.attributes
    turned = {**attributes, "transpose": not attributes["transpose"]}
    d = _Inputs(None)
    if needs.input:
        d_input = torch.ops.clrope.rope(grad, cos, sin, position_ids, freqs, offset, **turned)
        d = d._replace(input=d_input.to(ctx.input_dtype))
    if not (needs.cos or needs.sin or needs.freqs):
        return d
    dims, interleaved = attributes["dims"], attributes["interleaved"]
    n = grad.shape[-1] if dims is None else min(dims, grad.shape[-1])
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    sign = -1 if attributes["transpose"] else 1
    tables = _halves((x if y is None else y)[..., :n].to(wide), interleaved)
    products = torch.ops.clrope.rope(
        grad[..., :n].to(wide), *tables, scale=1.0, base=1e4, dims=None, interleaved=interleaved, transpose=True
    )
    first, second = _halves(products, interleaved)
    if needs.cos:
        d = d._replace(cos=first.sum_to_size(cos.shape).to(cos.dtype))
    if needs.sin:
        d = d._replace(sin=(sign * second).sum_to_size(sin.shape).to(sin.dtype))
    if needs.freqs:
        if position_ids is None:
            where = torch.arange(grad.shape[-2], dtype=wide) + attributes["start"]
            if offset is not None:
                where = where - attributes["start"] + offset.to(wide).reshape(-1, 1)
            where = where * attributes["scale"]
        else:
            where = position_ids.to(wide)
        where = _over_lead(where, grad.dim())
        weighted = second * (sign * where).unsqueeze(-1)
        d = d._replace(freqs=weighted.sum_to_size(freqs.shape).to(freqs.dtype))
    return d


_rope.register_autograd(_backward, setup_context=_setup_context)


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ConfigError(f"{name}: got {shown(value)} of type {type(value).__name__}, a real number is needed")
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{name}: got {shown(value)}, it must be finite") from None


def _check_attributes(scale: float, base: float, dims: int | None) -> None:
    if not math.isfinite(scale):
        raise ConfigError(f"scale: got {scale}, it must be finite")
    if not (math.isfinite(base) and base > 0):
        raise ConfigError(f"base: got {base}, it must be finite and greater than 0")
    if dims is not None and (dims < 2 or dims % 2):
        raise ConfigError(f"dims: got {shown(dims)}, it must be even and at least 2 (or None for all)")
    if dims is not None and dims > _MAX_INT64:
        raise ConfigError(f"dims: got {shown(dims)}, at most 2**63 - 1 is allowed")


def _check(given: _Inputs, scale: float, base: float, dims: int | None, config: str) -> tuple[int, torch.dtype]:
    """Check what can be checked without data; return the number of rotated elements and the result's dtype."""
    _check_attributes(scale, base, dims)
    input, cos, sin, position_ids, freqs, offset = given
    if input.dim() < 3:
        raise ShapeError(f"input: got shape {list(input.shape)}, [batch, ..., seq_len, embed] of rank 3 or more needed")
    embed = input.shape[-1]
    n = embed if dims is None or dims >= embed else dims
    if n < 2 or n % 2:
        raise ShapeError(f"input: got embed {embed}, it must be even and at least 2 where all of it is rotated")
    if (cos is None) != (sin is None):
        raise ShapeError(f"{'cos' if cos is None else 'sin'}: not given, cos and sin are needed both or neither")
    if config and not (cos is None and freqs is None):
        raise ShapeError(
            f"{'freqs' if cos is None else 'cos, sin'}: given to a module made from a configuration, which has its own"
        )
    dtype = input.dtype
    for name, tensor in (("input", input), ("cos", cos), ("sin", sin), ("freqs", freqs)):
        if tensor is None:
            continue
        if tensor.dtype not in _STORAGE:
            raise ShapeError(f"{name}: got {tensor.dtype}, allowed are float16, bfloat16, float32, float64")
        if name != "freqs":
            dtype = torch.promote_types(dtype, tensor.dtype)
    for name, tensor in (("position_ids", position_ids), ("offset", offset)):
        if tensor is not None and tensor.dtype not in _INTEGERS:
            raise ShapeError(f"{name}: got {tensor.dtype}, integers are needed")
    if freqs is not None and (freqs.dim() != 1 or freqs.shape[0] != n // 2):
        raise ShapeError(f"freqs: got shape {list(freqs.shape)}, one per pair is needed: [{n // 2}]")
    return n, dtype


def _check_memory(name: str, tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        raise DeviceError(
            f"{name}: got a tensor on {tensor.device}; only CPU tensors share memory with OpenCL, use .cpu() first"
        )
    if tensor.layout != torch.strided:
        raise ShapeError(f"{name}: got layout {tensor.layout}, only torch.strided is allowed; use .to_dense() first")


def _broadcast(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    try:
        return tensor.expand(*shape)
    except RuntimeError as error:
        raise ShapeError(
            f"{name}: got shape {list(tensor.shape)}, it must be broadcastable to {list(shape)}"
        ) from error


def _positions(x: Tensor, position_ids: Tensor | None, offset: Tensor | None, start: int) -> Tensor:
    """Return the positions of every token before the scale, int64, expanded to [batch, ..., seq_len]."""
    batch, seq = int(x.shape[0]), int(x.shape[-2])
    if position_ids is not None:
        wide = _int64("position_ids", position_ids, 0)
        if wide.dim() in (1, 2, x.dim() - 1):
            try:
                return _over_lead(wide, x.dim()).expand(*x.shape[:-1])
            except RuntimeError:
                pass
        raise ShapeError(
            f"position_ids: got shape {list(position_ids.shape)}, allowed are [{seq}], [{batch}, {seq}] and "
            f"{list(x.shape[:-1])}, each with axes of length 1 for others"
        )
    first = torch.tensor(start, dtype=torch.int64) if offset is None else offset
    if list(first.shape) not in ([], [1], [batch], [batch, 1]):
        raise ShapeError(f"offset: got shape {list(first.shape)}, allowed are [], [1], [{batch}], [{batch}, 1]")
    wide = _int64("offset", first, max(0, seq - 1))
    where = wide.reshape(-1, 1) + torch.arange(seq, dtype=torch.int64)
    return _over_lead(where, x.dim()).expand(*x.shape[:-1])


def _over_lead(positions: Tensor, rank: int) -> Tensor:
    """Put axes of length 1 between batch and seq_len, for an input of that rank."""
    if positions.dim() == 2:
        return positions.reshape(positions.shape[0], *[1] * (rank - 3), positions.shape[1])
    return positions


def _int64(name: str, tensor: Tensor, above: int) -> Tensor:
    """Return integers as int64; `ShapeError` where they, or they plus `above`, do not fit."""
    values = tensor.detach().numpy()
    if values.size and int(values.max()) > _MAX_INT64 - above:
        raise ShapeError(f"{name}: got {int(values.max())}, positions must not go beyond 2**63 - 1")
    return torch.from_numpy(np.array(values, dtype=np.int64))


@lru_cache(maxsize=256)
def _parsed_config(text: str) -> RopeConfig:
    return RopeConfig.from_dict(json.loads(text))


@lru_cache(maxsize=256)
def _config(n: int, scale: float, base: float, interleaved: bool, freqs: tuple[float, ...] | None) -> RopeConfig:
    """Return the configuration whose phases are `position * scale * freqs`, in every sign and zero.

    Those that follow from `base` are exact. A configuration has divisors of angles in place of `freqs`; a divisor is
    the inverse rounded to float64, which leaves 2**-53 of an angle.
    """
    mode: Mode = "normal" if interleaved else "neox"
    sign = math.copysign(1.0, scale)
    factors: tuple[float, ...] | None = (sign,) * (n // 2) if sign < 0 else None
    if freqs is not None:
        for i, f in enumerate(freqs):
            if not abs(f) <= MOST_REAL:
                raise ConfigError(f"freqs[{i}]: got {f}, it must be finite and at most {MOST_REAL}")
        base, factors = 1.0, tuple(_inverse(f) * sign for f in freqs)
    if scale == 0:
        # The largest divisor leaves a step of 2**-1026 turns, which is 0 in the 128 bits of a phase.
        scale, base, factors = 1.0, 1e4, (_inverse(0.0),) * (n // 2)
    with renamed({"n_dims": "dims", "freq_base": "base", "freq_scale": "scale", "freq_factors": "freqs"}):
        return RopeConfig(mode, n, freq_base=base, freq_scale=abs(scale), freq_factors=factors)


def _inverse(frequency: float) -> float:
    """Return 1 / frequency, or the largest number where that is beyond all numbers."""
    most = np.finfo(np.float64).max
    if frequency == 0 or abs(1 / frequency) > most:
        return float(math.copysign(most, frequency))
    return 1 / frequency


def _halves(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Return views of the first and the second elements of all pairs."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


class _Axis(NamedTuple):
    """One axis before the tokens: its length, and its stride in x, y and each of the rows."""

    length: int
    strides: tuple[int, ...]

    @property
    def varies(self) -> bool:
        """Whether the rows differ along it."""
        return any(self.strides[2:])


def _calls(x: Tensor, y: Tensor, rows: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
    """Cut x, y of [..., seq, embed] and rows expanded to [..., seq(, pairs)] into calls, as views: no data moves.

    Yields x and y as [b, n, seq, embed] and rows as [b, seq(, pairs)] or, where they are the same for all b,
    [seq(, pairs)]. Neighbouring axes become one where the strides allow it; mostly one call is left.
    """
    tensors = [x, y, *rows]
    axes: list[_Axis] = []
    for i, length in enumerate(x.shape[:-2]):
        axis = _Axis(int(length), tuple(t.stride(i) for t in tensors))
        if length == 1:
            continue
        if axes and axes[-1].strides == tuple(s * axis.length for s in axis.strides):
            axis = _Axis(axes.pop().length * axis.length, axis.strides)
        axes.append(axis)
    none = _Axis(1, (0,) * len(tensors))
    varying = sorted((a for a in axes if a.varies), key=lambda a: a.length)
    shared = sorted((a for a in axes if not a.varies), key=lambda a: a.length)
    heads = shared.pop() if shared else none
    batch = varying.pop() if varying else shared.pop() if shared else none
    outer = varying + shared
    for place in itertools.product(*(range(a.length) for a in outer)):

        def view(k: int, kept: Sequence[_Axis], place: tuple[int, ...] = place) -> Tensor:
            tensor = tensors[k]
            start = tensor.storage_offset() + sum(i * a.strides[k] for i, a in zip(place, outer, strict=True))
            sizes = (*(a.length for a in kept), *tensor.shape[x.dim() - 2 :])
            return tensor.as_strided(sizes, (*(a.strides[k] for a in kept), *tensor.stride()[x.dim() - 2 :]), start)

        own_rows = [batch] if batch.varies else []
        yield view(0, [batch, heads]), view(1, [batch, heads]), [view(k, own_rows) for k in range(2, len(tensors))]
