"""`patch`: the models of transformers rotate q and k by clrope.

The rotary functions among the globals of a model's Python modules are replaced. How they rotate is found by probing
(`rotary_functions.py`); one that follows no known convention is left as it is.
"""

from __future__ import annotations

import functools
import itertools
import operator
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..device import DeviceInfo
from ..device import device as chosen_device
from ..errors import ConfigError, DeviceError, shown
from ..integers import is_integer
from ..tables import FullTables
from .rotary_functions import AXIS, Convention, Function, UnnamedError, candidates, probe
from .rotary_modules import exact_forward, exact_tables, rotary_modules
from .torch_rotate import Repeated, rotate

#: Tokens that are measured, and how often; heads of q and k, and their elements: a small model's, so that others gain
#: from fewer tokens on.
_TOKENS, _ROUNDS = (1, 4, 16, 64, 128, 256, 512, 1024), 25
_HEADS, _HEAD_DIM = (9, 3), 64
#: Numbers that are read before each measured call, as a model reads its weights: then none of ours is in the caches.
_WEIGHTS = 1 << 24
#: How many times as fast clrope has to be there: in a model it gains less.
_GAIN = 1.3
#: `min_tokens` where clrope was slower for all of them.
_NEVER = sys.maxsize
_LAYOUTS = {(4, 1): "bhsd", (4, 2): "bshd", (3, 0): "hsd", (3, 1): "shd"}
_is_compiling = torch.compiler.is_compiling
#: torch's versions before 2.7 do not tell the two apart.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", _is_compiling)


class Row(NamedTuple):
    """What became of one function or rotary module: its convention, or the reason why it is unchanged.

    module: a Python module, or the name of a rotary module in the model. min_tokens: as used; None if unchanged.
    """

    module: str
    name: str
    convention: str | None
    min_tokens: int | None
    reason: str | None

    def __str__(self) -> str:
        what = f"unchanged: {self.reason}" if self.convention is None else self.convention
        least = f", from {self.min_tokens} tokens on" if self.min_tokens else ""
        if self.min_tokens == _NEVER:
            least = f", but not used: slower here than the model's own function, up to {_TOKENS[-1]} tokens"
        return f"{self.module}.{self.name}: {what}{least}"


@dataclass(eq=False)
class _Site:
    """An attribute that is replaced, of a Python module or a rotary module. replacements: those in use, newest last."""

    owner: Any
    name: str
    original: Any
    replacements: list[Function] = field(default_factory=list)

    def put(self, replacement: Function) -> None:
        self.replacements.append(replacement)
        setattr(self.owner, self.name, replacement)

    def remove(self, replacement: Function) -> None:
        """Take a replacement away; what was there before comes back with the last one."""
        current = vars(self.owner).get(self.name)
        left = [r for r in self.replacements if r is not replacement]
        if current not in self.replacements:
            where = getattr(self.owner, "__name__", type(self.owner).__name__)
            warnings.warn(
                f"{where}.{self.name} was replaced after clrope's patch, it stays", RuntimeWarning, stacklevel=3
            )
        elif left:
            setattr(self.owner, self.name, left[-1])
        elif self.original is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        self.replacements = left
        if not left:
            del _patched_here.sites[id(self.owner), self.name]


class _Patched:
    """What is patched in this process: sites by owner and name.

    crossovers: tokens from which on clrope is faster, by device, mode of the input and mode of the output.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sites: dict[tuple[int, str], _Site] = {}
        self.crossovers: dict[tuple[str, str, str], int] = {}

    def site(self, owner: Any, name: str) -> _Site:
        """Return the site of an attribute, the same one while it is replaced."""
        return self.sites.setdefault((id(owner), name), _Site(owner, name, vars(owner).get(name, _ABSENT)))


_ABSENT = object()
_patched_here = _Patched()


class Patch:
    """What `patch` has changed, until `unpatch`; as a context manager it is undone at the end of the block.

    report: a `Row` for each rotary function, and with exact angles for each rotary module.
    """

    def __init__(self) -> None:
        self.report: tuple[Row, ...] = ()
        self._replaced: list[tuple[_Site, Function]] = []

    def unpatch(self) -> None:
        """Put back what was there before; a second call does nothing.

        What another patch replaced too stays so; the last one brings back the model's own function. A function that
        something else has replaced since is left alone, with a `RuntimeWarning`.
        """
        with _patched_here.lock:
            replaced, self._replaced = self._replaced, []
            for site, replacement in replaced:
                site.remove(replacement)

    def _replace(self, site: _Site, replacement: Function) -> None:
        self._replaced.append((site, replacement))
        site.put(replacement)

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unpatch()

    def __str__(self) -> str:
        return "\n".join(map(str, self.report))


def patch(
    model: torch.nn.Module,
    angles: Literal["model", "exact"] = "model",
    min_tokens: int | Literal["auto"] = "auto",
    device: str | DeviceInfo | None = None,
    in_place: bool = False,
) -> Patch:
    """Let a model of transformers on the CPU rotate q and k by clrope; return what undoes it.

    angles:     'model': by the model's own cos and sin. float32 results have the same bits as before; float16 and
                bfloat16 are rounded once, where most models round after each operation. 'exact': by cos and sin from
                the model's configuration, for every rotary module whose configuration is understood.
    min_tokens: calls with fewer tokens (batch times length) go to the model's own function, except when exporting.
                'auto': as many as clrope needs to be faster, measured once per device and kept in the process.
    device:     the OpenCL device, by a name as for `clrope.device`; None: CLROPE_DEVICE or the fastest one.

    in_place:   rotate q and k in their own memory where nothing differentiates or traces. Only for models that read
                neither of them, nor what they are views of, after the call: not for keys that are the values, too
                (Gemma 4), nor with hooks that keep what the projections return.

    The functions are globals of Python modules, so all models of the same classes use clrope; of several patches, the
    newest decides. Works with autograd, `torch.compile(fullgraph=True)` and `torch.export`.

    Raises `ConfigError`, `DeviceError`.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model: got {type(model).__name__}, a torch.nn.Module is needed")
    if angles not in ("model", "exact"):
        raise ConfigError(f"angles: got {shown(angles)}, allowed are 'model', 'exact'")
    automatic = isinstance(min_tokens, str) and min_tokens == "auto"
    if not automatic and (not is_integer(min_tokens) or int(min_tokens) < 0):
        raise ConfigError(f"min_tokens: got {shown(min_tokens)}, allowed are 'auto' and integers from 0 on")
    if not (device is None or isinstance(device, (str, DeviceInfo))):
        raise ConfigError(f"device: got {type(device).__name__}, a name or a DeviceInfo is needed")
    if not isinstance(in_place, bool):
        raise ConfigError(f"in_place: got {shown(in_place)}, allowed are True, False")
    name = device.index if isinstance(device, DeviceInfo) else device
    chosen_device(name)
    elsewhere = sorted({str(p.device) for p in model.parameters() if p.device.type != "cpu"})
    if elsewhere:
        raise DeviceError(f"model: its parameters are on {', '.join(elsewhere)}; only CPU tensors can be rotated")
    made, least = Patch(), None if automatic else int(min_tokens)
    with _patched_here.lock:
        try:
            rows = [
                _patched(made, module, function, least, name, in_place)
                for module in _modules(model)
                for function in candidates(module)
            ]
            if angles == "exact":
                rows += [_made_exact(made, part, module, name) for part, module in rotary_modules(model)]
        except BaseException:
            made.unpatch()
            raise
    made.report = tuple(rows)
    return made


def _modules(model: torch.nn.Module) -> list[ModuleType]:
    """Return the Python modules of the model's classes, but those of torch."""
    names = dict.fromkeys(base.__module__ for part in model.modules() for base in type(part).__mro__)
    return [
        sys.modules[name] for name in names if name in sys.modules and name.split(".")[0] not in ("torch", "builtins")
    ]


def _patched(
    made: Patch, module: ModuleType, name: str, min_tokens: int | None, device: str | None, in_place: bool
) -> Row:
    site = _patched_here.sites.get((id(module), name))
    original: Function = getattr(module, name) if site is None else site.original
    try:
        convention = probe(original)
    except UnnamedError as error:
        return Row(module.__name__, name, None, None, str(error))
    if min_tokens is None:
        min_tokens = _crossover(original, convention, device)
    made._replace(_patched_here.site(module, name), _replacement(original, convention, min_tokens, device, in_place))
    return Row(module.__name__, name, str(convention), min_tokens, None)


def _made_exact(made: Patch, part: str, module: Any, device: str | None) -> Row:
    try:
        tables = exact_tables(module)
    except ConfigError as error:
        return Row(part, "forward", None, None, str(error))
    made._replace(_patched_here.site(module, "forward"), exact_forward(module, tables, device))
    return Row(part, "forward", f"exact angles, cos {_FORMS[tables.form]}", None, None)


_FORMS = {"pair": "per pair", "halves": "per element, two equal halves", "neighbours": "per element, neighbours equal"}


def _replacement(
    original: Function, convention: Convention, min_tokens: int, device: str | None, in_place: bool = False
) -> Function:
    """Return a function like the model's own that rotates by clrope what it can, and calls that one for the rest."""
    names, pairs = convention.parameters, convention.pairs
    full_tables: FullTables = "halves" if pairs.mode == "neox" else "interleaved"
    out_mode = None if pairs.out_mode == pairs.mode else pairs.out_mode
    contiguous = convention.contiguous
    in_place = in_place and out_mode is None and not contiguous
    wanted = (*convention.tensors, "cos", "sin")
    repeated, count = Repeated(device, contiguous, in_place), len(wanted)
    leading = {*wanted} == {*names[:count]}
    in_order = operator.itemgetter(*(names.index(name) for name in wanted))

    @functools.wraps(original)
    def rotary(*args: Any, **kwargs: Any) -> Any:
        usual = leading and len(args) == count and not kwargs and not _is_compiling()
        if usual:
            tensors = in_order(args)
            if _are_few(tensors[0], tensors[-1], min_tokens):
                return original(*args)
            results = repeated.run(tensors)
            if results is not None:
                return results[0] if len(results) == 1 else results
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        layout = None if len(args) > len(names) else _layout(convention, given)
        if layout is None:
            return original(*args, **kwargs)
        xs, cos, sin = [given[name] for name in convention.tensors], given["cos"], given["sin"]
        if not _is_exporting() and _tokens(xs[0], cos) < min_tokens:
            return original(*args, **kwargs)
        head_dim = xs[0].shape[-1]
        n = pairs.size(cos.shape[-1], head_dim) or 0
        columns = n // 2 if pairs.tables == "first half" else cos.shape[-1]
        if not convention.keeps_dtype:
            xs = [x.to(torch.promote_types(x.dtype, cos.dtype)) for x in xs]
            usual = usual and all(map(operator.is_, xs, tensors))
        options: dict[str, Any] = {
            "layout": layout, "mode": pairs.mode, "out_mode": out_mode, "n_dims": n,
            "n_offs": head_dim - n if pairs.rest == "before" else 0, "full_tables": full_tables,
        }  # fmt: skip
        tables = cos[..., :columns], sin[..., :columns]
        results = rotate(xs, *tables, contiguous=contiguous, device=device, **options)
        if usual:
            repeated.learn(tensors, columns, **options)
        return results[0] if len(results) == 1 else results

    return rotary


def _are_few(x: Any, cos: Any, min_tokens: int) -> bool:
    if not type(x) is type(cos) is Tensor:
        return False
    # Next to a model's work nothing of torch's bindings is in the caches, so each is asked once.
    shape, rows = x.shape, cos.shape
    return len(rows) > 1 and len(shape) > 2 and rows[-2] * (shape[0] if len(shape) == 4 else 1) < min_tokens


def _layout(convention: Convention, given: dict[str, Any]) -> str | None:
    """Return the letters of the tensors' axes; None for a call that clrope cannot take over, or that is an error."""
    probed = ("cos", "sin", AXIS, *convention.tensors, *convention.ignored)
    if any(name not in probed and value is not convention.defaults.get(name, _ABSENT) for name, value in given.items()):
        return None
    xs: list[Any] = [given.get(name) for name in convention.tensors]
    x, cos, sin = xs[0], given.get("cos"), given.get("sin")
    if not all(isinstance(t, Tensor) and t.dtype in _DTYPES for t in (*xs, cos, sin)):
        return None
    assert cos is not None
    assert sin is not None
    rank = cos.dim()
    if convention.places:
        heads = next((h for r, t, h in convention.places if (r, t) == (x.dim(), rank)), -1)
    else:
        axis = given.get(AXIS, convention.defaults[AXIS])
        heads = (axis if axis >= 0 else axis + rank + 1) + x.dim() - rank - 1
    letters = _LAYOUTS.get((x.dim(), heads))
    if letters is None or rank not in (2, 3) or rank >= x.dim():
        return None
    shared = [i for i, letter in enumerate(letters) if letter != "h"]
    if any(y.dim() != x.dim() or any(y.shape[i] != x.shape[i] for i in shared) for y in xs):
        return None
    if cos.shape != sin.shape or cos.dtype != sin.dtype or cos.shape[-2] != x.shape[letters.index("s")]:
        return None
    if rank == 3 and cos.shape[0] not in (1, x.shape[letters.index("b")]):
        return None
    # The kernels compute in float64 for float64 tensors only.
    if cos.dtype == torch.float64 and convention.keeps_dtype and any(y.dtype != cos.dtype for y in xs):
        return None
    return None if convention.pairs.size(cos.shape[-1], x.shape[-1]) is None else letters


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _tokens(x: Tensor, cos: Tensor) -> int:
    # No `int()`: a compiled length may be a symbol.
    return cos.shape[-2] * (x.shape[0] if x.dim() == 4 else 1)


def _crossover(original: Function, convention: Convention, device: str | None) -> int:
    """Return the number of tokens from which on clrope is faster than the model's own function here."""
    key = (chosen_device(device).key, convention.pairs.mode, convention.pairs.out_mode)
    if key not in _patched_here.crossovers:
        ours = _replacement(original, convention, 0, device)
        least = _NEVER
        for tokens in reversed(_TOKENS):
            given = _sample(convention, tokens)
            # As models call it: by position, which is quicker.
            leading = [*itertools.takewhile(given.__contains__, convention.parameters)]
            args = [given.pop(name) for name in leading]
            if _faster(functools.partial(ours, *args, **given), functools.partial(original, *args, **given)):
                least = tokens
            else:
                break
        _patched_here.crossovers[key] = least
    return _patched_here.crossovers[key]


def _faster(ours: Callable[[], Any], theirs: Callable[[], Any]) -> bool:
    """Whether the first is faster by `_GAIN`, in the median of rounds with one call of each."""
    gains = []
    weights = torch.ones(_WEIGHTS)
    with torch.no_grad():
        ours(), theirs()
        for _ in range(_ROUNDS):
            seconds = []
            for call in (ours, theirs):
                weights.sum()
                start = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - start)
            gains.append(seconds[1] / seconds[0])
    return statistics.median(gains) > _GAIN


def _sample(convention: Convention, tokens: int) -> dict[str, Any]:
    """Return arguments for a call with so many tokens."""
    rank, table_rank, heads_axis = convention.places[0] if convention.places else (4, 3, 1)
    given: dict[str, Any] = {}
    for name, heads in zip(convention.tensors, (*_HEADS, _HEADS[1]), strict=False):
        x = torch.randn(1, tokens, heads, _HEAD_DIM) if rank == 4 else torch.randn(tokens, heads, _HEAD_DIM)
        given[name] = x.movedim(-2, heads_axis)
    columns = _HEAD_DIM // 2 if convention.pairs.tables == "pair" else _HEAD_DIM
    for name in ("cos", "sin"):
        given[name] = torch.randn(tokens, columns) if table_rank == 2 else torch.randn(1, tokens, columns)
    return given
