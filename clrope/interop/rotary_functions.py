"""Which convention a model's own rotary function follows, found by calling it on small random inputs.

A function gets random q, k, cos and sin, these in every shape that models give them, and has to agree bit by bit with
one convention wherever it returns anything. Names decide nothing but which argument is cos and which is sin.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

#: What the columns of cos and sin are for: one for each rotated element; the same, but only their first half is used,
#: one for each pair; one for each pair.
Tables = Literal["element", "first half", "pair"]
#: Which elements of a head are passed where cos has too few columns for all: none may be, those behind, those before.
Rest = Literal["none", "behind", "before"]
Function = Callable[..., Any]

AXIS = "unsqueeze_dim"
#: Sizes that cannot be broadcast to each other.
_BATCH, _TOKENS, _HEADS, _HEAD_DIM = 2, 5, (3, 4, 6), 12
#: Columns of cos: of all elements and of some, of all pairs and of some.
_COLUMNS = (12, 8, 6, 4)
#: (axes of q, axes of cos, where q's axis of heads is): what functions without `unsqueeze_dim` may take.
_PLACES = ((4, 3, 1), (4, 3, 2), (4, 2, 1), (4, 2, 2), (3, 2, 0), (3, 2, 1))


class Pairs(NamedTuple):
    """The arithmetic of a convention: the modes of the pairs in input and output, the tables, what is passed."""

    mode: str
    out_mode: str
    tables: Tables
    rest: Rest

    def size(self, columns: int, head_dim: int) -> int | None:
        """Return how many elements of a head are rotated; None if such tables are not for such heads."""
        n = 2 * columns if self.tables == "pair" else columns
        return n if n % 2 == 0 and (n == head_dim or (n < head_dim and self.rest != "none")) else None


@dataclass(frozen=True)
class Convention:
    """How a rotary function rotates.

    parameters: the names of its parameters in order. tensors: those that it rotates. ignored: those without effect.
    defaults:   values that the other parameters have to keep.
    places:     (axes of q, axes of cos, q's axis of heads); with a parameter `unsqueeze_dim` this one decides.
    keeps_dtype: whether results have the dtype of q where that of cos is wider.
    contiguous: whether results are in C order; otherwise their memory is ordered as that of q.
    """

    parameters: tuple[str, ...]
    tensors: tuple[str, ...]
    ignored: frozenset[str]
    defaults: Mapping[str, Any]
    pairs: Pairs
    places: tuple[tuple[int, int, int], ...]
    keeps_dtype: bool
    contiguous: bool

    def __str__(self) -> str:
        mode, out_mode, tables, rest = self.pairs
        words = ["halves" if mode == "neox" else "neighbours"]
        if out_mode != mode:
            words = [f"{words[0]} in, {'halves' if out_mode == 'neox' else 'neighbours'} out"]
        words.append({"element": "cos per element", "pair": "cos per pair"}.get(tables, "first half of cos"))
        if rest != "none":
            words.append("partial" if rest == "behind" else "partial at the end")
        if len(self.tensors) != 2:
            words.append("one tensor" if len(self.tensors) == 1 else f"{len(self.tensors)} tensors")
        return ", ".join(words)


class UnnamedError(Exception):
    """A function follows no known convention; the text is the reason."""


def candidates(module: ModuleType) -> dict[str, Function]:
    """Return the functions among a module's globals that take tensors with cos and sin, or with complex factors.

    Functions that others of these call are not among them, unless they are called by models, too.
    """
    functions = {
        name: value for name, value in vars(module).items() if inspect.isroutine(value) and _takes_angles(value)
    }
    helpers = {
        called
        for name, value in functions.items()
        for called in getattr(inspect.unwrap(value), "__code__", _takes_angles.__code__).co_names
        if called != name and called in functions and AXIS not in _parameters(functions[called])
    }
    return {name: value for name, value in functions.items() if name not in helpers}


def _takes_angles(function: Function) -> bool:
    names = set(_parameters(function))
    angles = {name for name in names if name in ("cos", "sin") or name.startswith("freqs_ci")}
    return len(names - angles - {AXIS}) > 0 and (len(angles) == 1) != ({"cos", "sin"} <= angles)


def _parameters(function: Function) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def probe(function: Function) -> Convention:
    """Return the convention of a function that takes cos and sin; raises `UnnamedError`."""
    parameters = _parameters(function)
    if not {"cos", "sin"} <= parameters.keys():
        raise UnnamedError("it takes complex factors in place of cos and sin")
    kinds = inspect.Parameter
    named = {name: p for name, p in parameters.items() if p.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)}
    others = {name: p for name, p in named.items() if name not in ("cos", "sin", AXIS, "position_ids")}
    tensors = tuple(name for name, p in others.items() if p.default is kinds.empty or name == "k")
    if not 1 <= len(tensors) <= len(_HEADS):
        raise UnnamedError(f"it takes {len(tensors)} tensors besides cos and sin")
    trial = _Trial(function, tensors, AXIS in named)
    if named.get("position_ids", inspect.Parameter("p", kinds.KEYWORD_ONLY, default=None)).default is kinds.empty:
        trial.fixed["position_ids"] = _random_ids()
    pairs, places = _matching(trial)
    if _passes_tokens(trial, places[0]):
        raise UnnamedError("it rotates some of the tokens only")
    ignored = _ignored(trial, places[0], named)
    defaults = {n: p.default for n, p in others.items() if n not in tensors}
    if "position_ids" in named and "position_ids" not in ignored:
        raise UnnamedError("its result depends on position_ids")
    if AXIS in named:
        defaults[AXIS] = named[AXIS].default
    columns = _HEAD_DIM if pairs.tables != "pair" else _HEAD_DIM // 2
    keeps_dtype, contiguous = trial.kinds_of_results(places[0], columns if pairs.rest == "none" else columns - 2)
    return Convention(
        tuple(named), tensors, ignored, defaults, pairs, () if AXIS in named else places, keeps_dtype, contiguous
    )


def _random_ids() -> Tensor:
    return torch.randint(0, _TOKENS, (_BATCH, _TOKENS), generator=torch.Generator().manual_seed(1))


class _Trial:
    """Calls of one function on random inputs."""

    def __init__(self, function: Function, tensors: tuple[str, ...], has_axis: bool) -> None:
        self.function, self.tensors, self.has_axis = function, tensors, has_axis
        self.fixed: dict[str, Any] = {}
        self._random = torch.Generator().manual_seed(0)

    def inputs(self, place: tuple[int, int, int], columns: int, rows: int = _TOKENS) -> dict[str, Any]:
        """Return arguments: tensors [.., heads, .., head_dim] with the axis of heads at its place, cos and sin."""
        rank, table_rank, heads_axis = place
        given: dict[str, Any] = {}
        for name, heads in zip(self.tensors, _HEADS, strict=False):
            shape = [_BATCH, _TOKENS][4 - rank :]
            shape.insert(heads_axis, heads)
            given[name] = self._normal(*shape, _HEAD_DIM)
        for name in ("cos", "sin"):
            given[name] = self._normal(*[_BATCH, rows][3 - table_rank :], columns)
        if self.has_axis:
            given[AXIS] = heads_axis
        return {**given, **self.fixed}

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._random)

    def results(self, given: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
        """Return what the function makes of arguments; None if it raises, or returns anything but its tensors."""
        before = {name: given[name].clone() for name in self.tensors}
        try:
            with torch.no_grad():
                made = self.function(**given)
        except Exception:  # whatever a model's code raises where shapes are not for it
            return None
        if any(not torch.equal(given[name], old) for name, old in before.items()):
            raise UnnamedError("it changes its inputs")
        single = len(self.tensors) == 1
        results = (made,) if single and isinstance(made, Tensor) else made
        whole = isinstance(results, tuple) and len(results) == len(self.tensors)
        if not whole or not all(isinstance(r, Tensor) for r in results):
            raise UnnamedError(f"it returns {type(made).__name__}, not its rotated tensors")
        return tuple(results)

    def kinds_of_results(self, place: tuple[int, int, int], columns: int) -> tuple[bool, bool]:
        """Return (whether results keep a narrow dtype of q, whether they are in C order), for transposed tensors."""
        given = self.inputs(place, columns)
        for name in self.tensors:
            x = given[name].transpose(-2, -3)
            given[name] = x.contiguous().transpose(-2, -3)
        made = self.results(given)
        half = self.results({n: v.bfloat16() if n in self.tensors else v for n, v in given.items()})
        if made is None or half is None:
            raise UnnamedError("it takes no transposed tensors, or none of bfloat16")
        return half[0].dtype == torch.bfloat16, all(r.is_contiguous() for r in made)


def _matching(trial: _Trial) -> tuple[Pairs, tuple[tuple[int, int, int], ...]]:
    """Return the arithmetic that agrees with all results, and the places for which there are any."""
    named: set[Pairs] = set()
    places = []
    for place in _PLACES[:2] if trial.has_axis else _PLACES:
        inputs = [trial.inputs(place, columns) for columns in _COLUMNS]
        calls = [(given, made) for given in inputs if (made := trial.results(given)) is not None]
        if not calls:
            continue
        matching = [pairs for pairs in _all_pairs() if all(_agrees(trial, place, pairs, *call) for call in calls)]
        if matching:
            # Where only whole heads are taken, it does not matter which elements would be passed.
            named.add(matching[0])
            places.append(place)
        elif trial.has_axis:
            raise UnnamedError("it follows no known convention")
    if len(named) != 1:
        raise UnnamedError("it follows no known convention")
    return named.pop(), tuple(places)


def _all_pairs() -> Iterator[Pairs]:
    modes = (("neox", "neox"), ("normal", "normal"), ("normal", "neox"))
    for rest, (mode, out_mode), tables in itertools.product(get_args(Rest), modes, get_args(Tables)):
        if tables != "element" or mode == out_mode:
            yield Pairs(mode, out_mode, tables, rest)


def _agrees(
    trial: _Trial, place: tuple[int, int, int], pairs: Pairs, given: Mapping[str, Any], made: tuple[Tensor, ...]
) -> bool:
    cos, sin = (_with_heads(given[name], place) for name in ("cos", "sin"))
    for name, result in zip(trial.tensors, made, strict=True):
        right = rotated(given[name], cos, sin, pairs)
        if right is None or result.shape != right.shape or not torch.equal(result, right):
            return False
    return True


def _with_heads(table: Tensor, place: tuple[int, int, int]) -> Tensor:
    rank, table_rank, heads_axis = place
    return table.unsqueeze(heads_axis - (rank - 1 - table_rank)) if heads_axis >= rank - 1 - table_rank else table


def rotated(x: Tensor, cos: Tensor, sin: Tensor, pairs: Pairs) -> Tensor | None:
    """Rotate x by cos and sin that broadcast to it; None if they are not for heads of that size."""
    n = pairs.size(cos.shape[-1], x.shape[-1])
    if n is None:
        return None
    start = x.shape[-1] - n if pairs.rest == "before" else 0

    def split(t: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        return (t[..., : n // 2], t[..., n // 2 : n]) if mode == "neox" else (t[..., 0:n:2], t[..., 1:n:2])

    x1, x2 = split(x[..., start:], pairs.mode)
    if pairs.tables == "element":
        (c1, c2), (s1, s2) = split(cos, pairs.mode), split(sin, pairs.mode)
    else:
        c1, s1 = cos[..., : n // 2], sin[..., : n // 2]
        c2, s2 = c1, s1
    first, second = x1 * c1 - x2 * s1, x2 * c2 + x1 * s2
    joined = (
        torch.cat([first, second], -1) if pairs.out_mode == "neox" else torch.stack([first, second], -1).flatten(-2)
    )
    return torch.cat([x[..., :start], joined, x[..., start + n :]], -1)


def _passes_tokens(trial: _Trial, place: tuple[int, int, int]) -> bool:
    """Whether the function takes more tokens than cos has rows."""
    calls = (trial.inputs(place, columns, rows=_TOKENS - 1) for columns in _COLUMNS)
    return any(trial.results(given) is not None for given in calls)


def _ignored(trial: _Trial, place: tuple[int, int, int], named: Mapping[str, Any]) -> frozenset[str]:
    """Return `position_ids` if it has no effect."""
    if "position_ids" not in named or "position_ids" in trial.fixed:
        return frozenset()
    for columns in _COLUMNS:
        given = trial.inputs(place, columns)
        plain, other = trial.results(given), trial.results({**given, "position_ids": _random_ids()})
        if (plain is None) != (other is None):
            return frozenset()
        if plain is not None and other is not None and not all(map(torch.equal, plain, other)):
            return frozenset()
    return frozenset(["position_ids"])
