"""Cases drawn for one kernel: every pair of what its arguments can express occurs together, in small tensors.

The suites' cases have fixed shapes, and many features never meet in them. Here each feature is a factor with levels; a
covering array has a row for each pair of levels, as far as the kernel can express it. The seed decides the numbers
behind some levels, and which levels meet besides. A few large cases come on top.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from allpairspy import AllPairs

from ..config import RopeConfig
from ..errors import BuildError, ConfigError, UnsupportedError
from ..kernels.launch import BoundNumber, BoundRows, ConstantBytes
from ..kernels.problem import AngleForm, PairLayout, Problem
from ..layout import DTYPES
from ..suite.case import Case
from ..suite.wide_values import WIDE_TYPES
from .contract import expression_of
from .expressions import Expression
from .lab_kernel import LabFile
from .lab_launch import spec_of

Row = dict[str, Any]
Strides = tuple[int, int, int, int]

#: The name of the drawn cases where suites are named.
DRAWN = "drawn"
#: Elements of a tensor of the covering array, so that a case takes milliseconds.
MOST_ELEMENTS = 1 << 18
#: Cases that are enough where fewer have all pairs.
_ENOUGH = 224
#: Factors on which what a kernel can express depends most.
_SHAPES = ("head_dim", "part", "heads", "tokens", "batch", "place")
#: Rows that are tried for a level, or a pair, that the plainest row does not show to be expressible.
_TRIES = 24
#: The largest lengths that are looked through if `requires` lines leave few of the levels.
_LONGEST = 1024
#: Positions that float32 angles hold well enough for the limit, that they hold with base 1, beyond 16 bits, and the
#: largest of 32 bits that leave room for tokens.
_NEAR, _WHOLE, _BEYOND, _FAR = 300, 1 << 20, 40000, (1 << 31) - (1 << 20)
#: In a filter: what no drawn case has, so that none has to be drawn to see that.
_NEVER = re.compile(
    rf"\b(?:lo|o|angles)=|\bv=[1-9]|\bpt=(?!int64)\w|\bn_ctx=(?!(?:{_NEAR}|{_WHOLE}|{_BEYOND}|{_FAR}),)\d+,"
)
_VISION = 24
#: Levels of YaRN: ext_factor, n_ctx_orig, beta_fast, beta_slow.
_PLAIN = (0.0, 0, 32.0, 1.0)
#: Factors that decide each by itself what can be expressed, unless a condition in `requires` has one of these meanings.
_APART = {
    "values": frozenset[str](), "x_offset": frozenset[str](), "y_offset": frozenset[str](),
    "forward": frozenset(("forward", "direction")), "base": frozenset(("freq_base", "theta_scale")),
    "scale": frozenset(("freq_scale", "magnitude")), "magnitude": frozenset(("attn_factor", "magnitude")),
    "yarn": frozenset(("ext_factor", "beta_fast", "beta_slow", "n_ctx_orig", "magnitude")),
    "factors": frozenset(("has_factors",)), "sections": frozenset(("sections",)),
}  # fmt: skip
#: The plainest levels of the output. Those of a call in place are all `_SAME`: it must not stand in for other calls.
_OUTPUT = {"y_order": "bsnd", "y_batch": "dense", "y_token": "dense", "y_head": "dense", "y_element": 1, "y_offset": 0}
_SAME = "x"


def may_match(text: str) -> bool:
    """Whether drawn cases may have each of some words."""
    return not _NEVER.search(text)


def draw(file: LabFile, seed: int, alive: Callable[[], None] = lambda: None) -> tuple[list[Case], list[Case]]:
    """Return small cases that cover all pairs, and the large ones, for a kernel file. alive: called now and then."""
    space = Space(file, seed, alive)
    small, large = space.covering(), space.large()
    # Once more, quickly, with other rows: two features that do harm only together with a third meet it by chance.
    space.most = 1 << 15
    more = space.covering(complete=False)[: max(0, _ENOUGH - len(small))]
    plain = [case_of(space.base)] if space.base else []
    # A failure can be explained best in a plain case, and with values of one magnitude.
    return sorted(dict.fromkeys([*plain, *small, *more]), key=lambda case: case.vals != "uniform"), large


class Space:
    """The levels of each factor that a kernel can express.

    base: a row that can be expressed, {} if none was found. The first level of a factor is its plainest. most: elements
    of a tensor.
    """

    def __init__(self, file: LabFile, seed: int, alive: Callable[[], None] = lambda: None) -> None:
        self._file, self._rng, self._alive = file, np.random.default_rng([seed, 2]), alive
        self.most = MOST_ELEMENTS
        self._known: dict[tuple[Any, ...], bool] = {}
        self.levels = _levels(file, self._rng)
        #: Factors that decide together whether a row can be expressed.
        self._deciding = list(self.levels)
        self.base = self._find_base()
        if self.base:
            self._prune()
            self._known.clear()
            told = _required(file)
            self._deciding = [n for n in self.levels if n not in _APART or _APART[n] & told]

    # -- what can be expressed ------------------------------------------------------------------------------------

    def fits(self, row: Row) -> bool:
        """Whether the kernel can express a row."""
        if clash(row, self.most):
            return False
        key = tuple(row[name] for name in self._deciding)
        known = self._known.get(key)
        if known is None:
            if len(self._known) % 64 == 0:
                self._alive()
            known = self._known[key] = arguments(self._file, case_of(row)) is not None
        return known

    def _any(self, fixed: Row, tries: int = _TRIES) -> Row:
        """Return a row with some levels that fits, {} if none was found: the base, or one that differs from it."""
        names = [name for name in self.levels if name not in fixed]
        outputs = [fixed[name] for name in _OUTPUT if name in fixed]
        if outputs and "place" not in fixed:
            fixed = fixed | {"place": "in" if _SAME in outputs else "out"}
        partial = [part for part in self.levels["part"] if part != "whole"]
        if fixed.get("window", "first") != "first" and "part" not in fixed and partial:
            fixed = fixed | {"part": partial[0]}
        row = _settled(self.base | fixed, fixed)
        near = [{n: v} for n in _SHAPES if n not in fixed for v in self.levels[n]] if tries == _TRIES else []
        for change in near:
            if self.fits(row):
                return row
            row = _settled(self.base | change | fixed, fixed)
        for k in range(tries):
            if self.fits(row):
                return row
            changed = self._rng.choice(names, min(len(names), 1 + k % 6), replace=False)
            row = self.base | {name: self._one(self.levels[name]) for name in changed} | fixed
            row = _settled(row, fixed)
        return {}

    def _one(self, values: list[Any]) -> Any:
        return values[int(self._rng.integers(len(values)))]

    def _find_base(self) -> Row:
        row = {name: values[0] for name, values in self.levels.items()}
        if self.fits(row):
            return row
        plain = ("kind", *_SHAPES)
        for name, most in (("heads", 97), ("tokens", 97), ("batch", 17), ("head_dim", _LONGEST)):
            for length in range(1, most):
                if self.fits(row | {name: length}):
                    return row | {name: length}
        for k in range(2000):
            tried = _settled(row | {name: self._one(self.levels[name]) for name in plain})
            if k > 1000:
                lengths = self._rng.integers(1, (_LONGEST, 64, 64, 8), endpoint=True)
                tried |= dict(zip(("head_dim", "heads", "tokens", "batch"), map(int, lengths), strict=True))
            if self.fits(tried):
                return tried
        return {}

    def _prune(self) -> None:
        """Leave the levels that can be expressed, and look for lengths where that leaves few."""
        for name, values in self.levels.items():
            kept = [value for value in values if self._any({name: value})]
            if name in ("head_dim", "heads", "tokens", "batch"):
                kept += [self.base[name]] if self.base[name] not in kept else []
                others = self._rng.permutation(np.arange(1, _LONGEST + 1 if name == "head_dim" else 97))
                for length in map(int, others):
                    if len(kept) >= 3:
                        break
                    if length not in kept and self.fits(self.base | {name: length}):
                        kept.append(length)
            self.levels[name] = kept
        for name, values in self.levels.items():
            values.sort(key=lambda value, name=name: value != self.base[name])  # type: ignore[misc]

    # -- covering all pairs -----------------------------------------------------------------------------------------

    def covering(self, complete: bool = True) -> list[Case]:
        """Return cases in which each pair of levels occurs, as far as the kernel can express both.

        complete: also the pairs that are hard to express.
        """
        if not self.base:
            return []
        varied = {name: values for name, values in self.levels.items() if len(values) > 1}
        if len(varied) < 2:
            rows = [self.base | {name: value} for name, values in varied.items() for value in values] or [self.base]
            return [case_of(row) for row in rows if self.fits(row)]
        names = list(varied)
        # The base's levels can always follow a row that fits with them, so that the search never has to go back far.
        found = AllPairs(
            [self._shuffled(values) for values in varied.values()],
            filter_func=lambda levels: self.fits(self._completed(dict(zip(names, levels, strict=False)))),
        )
        rows = [self.base | dict(zip(names, levels, strict=True)) for levels in found]
        rows += self._missing(rows, varied) if complete else []
        return [case_of(row) for row in rows]

    def _completed(self, row: Row) -> Row:
        return _settled(self.base | row, row)

    def _shuffled(self, values: list[Any]) -> list[Any]:
        return [values[k] for k in self._rng.permutation(len(values))]

    def _missing(self, rows: list[Row], varied: dict[str, list[Any]]) -> list[Row]:
        """Return rows with the pairs that do not occur in others yet, if there are rows that fit."""
        names = list(varied)
        seen = {pair for row in rows for pair in _pairs(row, names)}
        added: list[Row] = []
        for one, two in combinations(names, 2):
            for a in varied[one]:
                for b in varied[two]:
                    if ((one, a), (two, b)) in seen:
                        continue
                    row = self._any({one: a, two: b}, tries=6)
                    if not row:
                        continue
                    for name in map(str, self._rng.permutation(names)):
                        if name in (one, two):
                            continue
                        gain = dict.fromkeys(varied[name], 0)
                        for value in gain:
                            other = row | {name: value}
                            gain[value] = sum(p not in seen for p in _pairs_of(other, names, name))
                        best = max(gain, key=lambda value: gain[value])
                        if gain[best] > gain[row[name]] and self.fits(row | {name: best}):
                            row[name] = best
                    added.append(row)
                    seen.update(_pairs(row, names))
        return added

    # -- large tensors ------------------------------------------------------------------------------------------------

    def large(self) -> list[Case]:
        """Return cases of more than 65,536 rows, of more than 2**24 elements, and of positions beyond 16 bits."""
        if not self.base:
            return []
        rows = 65537 + int(self._rng.integers(999))
        found = []
        if not precise(self._file):  # float32 holds these angles: the positions, with base 1 or one pair
            far = {"reach": _WHOLE, "positions": "random", "scale": 1.0, "factors": False, "yarn": _PLAIN}
            found = [self._large_row(far | {"base": 1.0}), self._large_row(far | {"head_dim": 2})]
        for head_dim in (2, 4, 8, 16, 64):
            some = [
                self._large_row({"head_dim": head_dim, "heads": 1 + k % 2, "tokens": -(-rows // batch), "batch": batch})
                for k, batch in enumerate((2, 1, 2, 1))
            ]
            if any(some):
                found += some
                break
        # Odd heads: float32 holds the places of even ones beyond 2**24, too.
        for head_dim in (*(n for n in self.levels["head_dim"] if n % 2), 127, 128, 64, 256, 512):
            lengths = {"head_dim": head_dim, "heads": 9, "tokens": -(-(9 << 21) // (head_dim * 9)), "batch": 1}
            if one := self._large_row(lengths, plain=True):
                found.append(one)
                break
        return list(dict.fromkeys(case for case in found if case))

    def _large_row(self, lengths: Row, plain: bool = False) -> Case | None:
        """Return a case of some lengths, otherwise drawn, or as the base where that takes too much memory."""
        names = ("place", "forward", "part") if plain else tuple(self.levels)
        for k in range(_TRIES):
            row = self.base | ({} if k == _TRIES - 1 else {n: self._one(self.levels[n]) for n in names}) | lengths
            row = _settled(row)
            if not clash(row, most=1 << 26) and arguments(self._file, case_of(row)) is not None:
                return case_of(row)
        return None


def _pairs(row: Row, names: list[str]) -> Iterable[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return the pairs of a row's levels."""
    return combinations([(name, row[name]) for name in names], 2)


def _pairs_of(row: Row, names: list[str], name: str) -> Iterable[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Yield those pairs that one level is in."""
    own, before = (name, row[name]), True
    for other in names:
        if other == name:
            before = False
        else:
            yield ((other, row[other]), own) if before else (own, (other, row[other]))


def precise(file: LabFile) -> bool:
    """Whether a kernel that computes angles from positions does so in more than float32."""
    if "cos_table" in file.reads() or "step" in file.reads():
        return True
    return any(
        argument.type == "double" and {"omega", "freq_base", "theta_scale"} & _meaning(file, argument.name).names
        for argument in file.check().arguments
        if argument.space != "local"
    )


def _meaning(file: LabFile, argument: str) -> Expression:
    return expression_of(file.contract.arguments.get(argument, argument), f"argument {argument}")


def _levels(file: LabFile, rng: np.random.Generator) -> dict[str, list[Any]]:
    """Return the levels of each factor, the plainest first, before it is known which of them can be expressed."""

    def one_of(*values: int) -> int:
        return int(rng.choice(values))

    tables = "cos_table" in file.reads()
    axis = ["dense", "odd", "double", "back"]
    levels: dict[str, list[Any]] = {
        "kind": [(kind, mode) for kind in dict.fromkeys(("f32", "f16", "f64", *DTYPES)) for mode in (2, 0)]
        + [("f32", 8), ("f16", 8), ("f32", 40), ("f32", _VISION)],
        "head_dim": [64, 128, 80, 2, one_of(7, 33, 65, 129), one_of(20, 36, 44, 72), one_of(96, 192), 256, 512],
        "part": ["whole", "half", "few", "most"], "window": ["first", "next", "last"],
        "heads": [3, 1, 2, 8, 33, one_of(257, 263, 300)], "tokens": [2, 1, 5, 41, one_of(257, 271, 299)],
        "batch": [2, 1, 3, one_of(5, 7, 9)], "place": ["out", "in"], "forward": [True, False],
        "positions": ["batch", "random", "each", "offset", "offsets", "back", "signed"],
        "reach": [_NEAR, _BEYOND, _FAR] if precise(file) else [_NEAR], "values": ["uniform", "wide"],
    }  # fmt: skip
    for name in "xy":
        levels[f"{name}_order"] = ["bsnd", "bnsd", "sbnd", "dnsb"]
        levels |= {f"{name}_{word}": list(axis) for word in ("batch", "token", "head")}
        levels[f"{name}_element"] = [1, 2, 3, -1]
        levels[f"{name}_offset"] = [0, one_of(1, 3, 7), one_of(64, 1024, 4096)]
    for name in _OUTPUT:
        levels[name].append(_SAME)
    levels |= {
        "base": [10000.0, 500000.0, 123.0, 1.0], "magnitude": [1.0, 0.7, -1.5],
        "sections": [(3, 5, 7, 2)], "scale": [1.0], "yarn": [_PLAIN], "factors": [False, True],
    }  # fmt: skip
    if not tables:
        levels |= {
            "scale": [1.0, 0.25, 2.5], "sections": [(3, 5, 7, 2), (1, 1, 1, 0), (40, 40, 40, 40)],
            "yarn": [_PLAIN, (1.0, 4096, 32.0, 1.0), (0.6, 2048, 16.0, 2.0), (1.0, 512, 4.0, 0.5)],
        }  # fmt: skip
    return levels


def _settled(row: Row, fixed: Iterable[str] = ()) -> Row:
    """Return a row with levels of the output, but for fixed ones, that go with its place."""
    if row["place"] == "in":
        return row | {name: _SAME for name in _OUTPUT if name not in fixed}
    return row | {name: level for name, level in _OUTPUT.items() if name not in fixed and row[name] == _SAME}


def _pairs_of_row(row: Row) -> tuple[int, int]:
    """Return (n_dims as a case has it, n_offs)."""
    head = row["head_dim"]
    dims = {"whole": head // 2 * 2, "half": head // 4 * 2, "few": 2 if head < 48 else 12, "most": head // 2 * 2 - 2}[
        row["part"]
    ]
    return dims, {"first": 0, "next": 2, "last": (head - dims) // 2 * 2}[row["window"]]


def clash(row: Row, most: int) -> bool:
    """Whether levels of a row exclude each other for every kernel, or make too large a tensor."""
    head, (dims, window) = row["head_dim"], _pairs_of_row(row)
    return bool(
        not 2 <= dims <= head or window > head - dims or (row["window"] == "last" and window < 4)
        or (row["kind"][1] == _VISION and (dims != head or head % 4))
        or (row["values"] == "wide" and row["kind"][0] not in WIDE_TYPES)
        or any((row[name] == _SAME) != (row["place"] == "in") for name in _OUTPUT)
        or (row["yarn"][0] and row["base"] == 1.0)
        or head * row["heads"] * row["tokens"] * row["batch"] > most
    )  # fmt: skip


def case_of(row: Row) -> Case:
    """Return a row without a clash as a case."""
    lengths = (row["head_dim"], row["heads"], row["tokens"], row["batch"])
    dims, window = _pairs_of_row(row)
    (kind, mode), in_place = row["kind"], row["place"] == "in"
    ext, context, fast, slow = row["yarn"]
    return Case(
        kind, lengths, dims, mode, row["reach"], row["scale"], ext, row["magnitude"], row["factors"], 0,
        inplace=in_place, n_offs=window, base=row["base"], n_ctx_orig=context, bf=fast, bs=slow,
        sections=row["sections"] if mode >= 8 else None, pos=row["positions"], pt="int64", vals=row["values"],
        xs=strides(row, "x", lengths), ys=None if in_place else strides(row, "y", lengths), xo=row["x_offset"],
        yo=-1 if in_place else row["y_offset"], forward=row["forward"],
    )  # fmt: skip


def strides(row: Row, name: str, lengths: tuple[int, ...]) -> Strides:
    """Return the strides of x or y in the order of ne_a: those of dense memory where no level asks for others."""
    length = dict(zip("dnsb", lengths, strict=True))
    words = {"d": "element", "n": "head", "s": "token", "b": "batch"}
    steps: dict[str, int] = {}
    extent = 1
    for letter in reversed(row[f"{name}_order"]):
        level = row[f"{name}_{words[letter]}"]
        if letter == "d":
            step, back = extent * abs(level), level < 0
        else:
            step, back = {"odd": extent + 3, "double": 2 * extent}.get(level, extent), level == "back"
        extent = step * length[letter]
        steps[letter] = -step if back else step
    return steps["d"], steps["n"], steps["s"], steps["b"]


# -- what a kernel gets for a case --------------------------------------------------------------------------------


def arguments(file: LabFile, case: Case) -> tuple[tuple[str, Any], ...] | None:
    """Return the kernel's arguments for a case, by their own names and in order; None if it cannot express the case.

    Of memory that is bound for each call only the kind is given. () for a file with an error, which a run will report.
    """
    config = case.config((1.0,) * case.config(None).n_pairs(None) if case.ff else None).for_head_dim(case.shape["d"])
    try:
        spec = spec_of(file.for_config(config), _problem(case, config))
    except UnsupportedError:
        return None
    except (ConfigError, BuildError):
        return ()
    low, high = _reach(case)
    found = []
    names = [argument.name for argument in file.signature(case.type, config.mode).arguments]
    for name, (bound, value) in zip(names, spec.arguments, strict=True):
        if isinstance(value, BoundRows) and not _holds(value.dtype, low, high):
            return None
        if isinstance(value, BoundNumber):
            value = {"x_offset": case.xo, "y_offset": case.xo if case.inplace else case.yo}[bound]
        found.append((name, value))
    offsets = {bound for bound, _ in spec.arguments if bound.endswith("_offset")}
    if (case.xo > 0 and "x_offset" not in offsets) or (case.yo > 0 and "y_offset" not in offsets):
        return None
    return tuple(found)


def _problem(case: Case, config: RopeConfig) -> Problem:
    """Return what a drawn case has to rotate, as `problem_of` does, without memory."""
    d, n, s, b = case.ne_a
    dense = (1, d, n * d, s * n * d)
    x = case.xs or dense
    y = x if case.inplace else case.ys or dense
    own = case.pos in ("batch", "each") or (case.pos == "offsets" and b != s)
    return Problem(
        (b, s, n, d), case.type, x[::-1], y[::-1], PairLayout.of_config(config, d), case.inplace, case.forward,
        AngleForm(config.angles == "exact", sections=config.uses_sections), s if own and b > 1 else 0,
    )  # fmt: skip


def _reach(case: Case) -> tuple[int, int]:
    """Return bounds of a case's positions."""
    low = -case.n_ctx - case.shape["s"] if case.pos in ("back", "signed", "each") else 0
    return low, case.n_ctx + case.shape["s"]


def _holds(kind: str, low: int, high: int) -> bool:
    limits = np.iinfo(kind)
    return int(limits.min) <= low and high <= int(limits.max)


# -- what was varied ----------------------------------------------------------------------------------------------

#: Meanings that are memory, or follow from the storage type: nothing has to vary but what is in it.
_GIVEN = {"x", "y", "xy", "cos_table", "sin_table", "positions", "row_numbers", "itemsize", "dtype"}
#: Meanings with two values.
_BINARY = {"neox", "normal", "forward", "direction", "in_place", "has_factors", "freq_factors", "uses_sections", "mode"}
#: Meanings that one condition can pin together.
_RELATED = tuple(
    frozenset(words.split())
    for words in (
        "neox normal mode", "head_dim n_dims pairs slots n_offs config_n_dims", "forward direction",
        "batch tokens rows row_stride x_batch y_batch x_token y_token", "in_place y_offset y_offset_bytes",
        "ext_factor beta_fast beta_slow n_ctx_orig magnitude attn_factor freq_scale", "mode uses_sections sections",
        "freq_base theta_scale omega step", "has_factors freq_factors", "heads x_head y_head",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Coverage:
    """What a run varied too little.

    missing: argument -> (values that it had, values that it needs). pinned: arguments that the file's or the contract's
    `requires` lines leave too few values, with these.
    """

    missing: dict[str, tuple[int, int]] = field(default_factory=dict)
    pinned: dict[str, list[Any]] = field(default_factory=dict)


def coverage(file: LabFile, cases: Iterable[Case]) -> Coverage:
    """Return which arguments had too few values in cases that were right."""
    needed: dict[str, int] = {}
    values: dict[str, set[Any]] = {}
    names: dict[str, frozenset[str]] = {}
    for case in cases:
        given = arguments(file, case)
        signature = file.signature(case.type, case.config(None).mode)
        for argument in signature.arguments:
            if argument.space != "local" and argument.name not in needed:
                expression = _meaning(file, argument.name)
                names[argument.name] = expression.names
                needed[argument.name] = _needed(expression.names - set(file.contract.parameters), expression.text)
        for name, value in given or ():
            values.setdefault(name, set()).add(_hashable(value))
        if needed and all(len(values.get(name, ())) >= need for name, need in needed.items()):
            return Coverage()
    if not needed:
        return Coverage({a.name: (0, 1) for a in file.check().arguments if a.space != "local"})
    found = Coverage()
    told = _required(file)
    for name, need in needed.items():
        if len(seen := values.get(name, set())) < need:
            related = names[name].union(*(group for group in _RELATED if group & names[name]))
            if related & told and seen:
                found.pinned[name] = sorted(seen, key=str)[:4]
            else:
                found.missing[name] = len(seen), need
    return found


def _needed(meanings: frozenset[str], text: str) -> int:
    """Return how many values an argument has to have."""
    if meanings <= _GIVEN:
        return 0
    return 2 if meanings & _BINARY or text not in meanings else 3


def _hashable(value: Any) -> Any:
    if isinstance(value, ConstantBytes):
        return value.data.hex()
    return value.item() if isinstance(value, np.generic) else value


def _required(file: LabFile) -> set[str]:
    """Return the meanings in the conditions of `requires`."""
    found: set[str] = set()
    for test, _ in file.contract.requires:
        for name in expression_of(test, "requires").names:
            text = file.contract.arguments.get(name)
            found |= {name} if text is None else {name, *expression_of(text, name).names}
    return found
