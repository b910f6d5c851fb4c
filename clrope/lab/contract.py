"""`Contract`: what the arguments of a kernel mean, how it is launched, and which calls it can express.

A contract maps argument names to expressions over `MEANINGS`. What a kernel leaves out limits the calls that it can
express: a kernel without an argument for the direction rotates forward only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .expressions import Expression

if TYPE_CHECKING:
    from ..kernels.problem import Problem


#: A value of a tunable parameter.
ParameterValue = int | float | str


@dataclass(frozen=True)
class Contract:
    """What a family of kernels expects.

    arguments:   argument's name -> expression; a name may also be that of a meaning itself if `own_words`.
    function:    the kernel's name, with {dtype} and {pairing} filled in; '' for the only kernel of the file.
    global_size, local_size: expressions; local_size () leaves it to the driver.
    requires:    (expression that must be true, what to say if it is not), for each call.
    local:       __local argument's name -> expression of its bytes.
    parameters:  tunable parameter's name -> its values, the default first: a macro, and a name for expressions.
    shared_rows: rows of positions or tables are those of one batch; otherwise one for each token of each batch.
    checks_types: whether pointers to elements must be of the storage type.
    """

    name: str
    summary: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    function: str = ""
    global_size: tuple[str, ...] = ("slots", "heads", "batch * tokens")
    local_size: tuple[str, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    local: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[ParameterValue, ...]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    own_words: bool = True
    shared_rows: bool = False
    checks_types: bool = True


#: (What a call has, names one of which a kernel has to read then, what it cannot do otherwise).
_NEEDS: tuple[tuple[str, frozenset[str], str], ...] = tuple(
    (test, frozenset(names.split()), reason)
    for test, names, reason in (
        ("n_dims != head_dim and n_offs == 0", "n_dims pairs slots config_n_dims", "heads rotated in part (n_dims)"),
        ("n_offs != 0", "n_offs", "rotated elements that begin later in the head (n_offs)"),
        ("forward == 0", "forward direction", "the inverse rotation (direction, forward)"),
    )
)
_ANGLE_NEEDS: tuple[tuple[str, frozenset[str], str], ...] = tuple(
    (test, frozenset(names.split()), reason)
    for test, names, reason in (
        ("freq_base != 10000", "freq_base theta_scale omega step", "another base than 10000 (freq_base)"),
        ("freq_scale != 1", "freq_scale omega step", "scaled angles (freq_scale)"),
        ("ext_factor != 0", "ext_factor omega step", "YaRN (ext_factor)"),
        ("magnitude != 1", "attn_factor magnitude", "a factor on cos and sin (attn_factor, magnitude)"),
        ("has_factors", "freq_factors omega step", "freq_factors"),
        ("uses_sections", "sections", "section modes (sections, or tables)"),
    )
)


def expression_of(text: str, where: str) -> Expression:
    """Return a parsed expression; raises `ConfigError` that names where it stands."""
    return Expression(text, where)


def not_expressible(
    problem: Problem, values: Mapping[str, Any], read: frozenset[str], exact: bool, pairings: Sequence[str]
) -> str:
    """Return what of a call a kernel cannot express that reads these meanings; '' if it can.

    exact: whether the call asks for exact angles. pairings: those that the kernel knows.
    """
    if problem.pairs.pairing is None or problem.angles.full_tables:
        return "pairs at places of their own, or tables for both elements of a pair"
    if problem.pairs.pairing not in pairings:
        return f"{problem.pairs.pairing.upper()} pairs"
    needs = _NEEDS
    if "cos_table" not in read:
        needs = (*_NEEDS, *_ANGLE_NEEDS)
        if not exact:
            return "ggml's own angles, without tables"
    for test, names, reason in needs:
        if not names & read and Expression(test, "a rule of contracts").value(values):
            return reason
    if "xy" in read and not problem.in_place:
        return "calls that are not in place: it has one pointer for input and output"
    return _stride_not_expressible(problem, read)


def _stride_not_expressible(problem: Problem, read: frozenset[str]) -> str:
    for name, strides, view in (("x", problem.x_strides, problem.x), ("y", problem.y_strides, problem.y)):
        if name == "y" and "xy" in read:
            continue
        dense = 1
        for axis, length, stride in zip(
            ("element", "head", "token", "batch"), view.shape[::-1], strides[::-1], strict=True
        ):
            if length > 1 and stride != dense and f"{name}_{axis}" not in read:
                return f"{name} that is not contiguous ({name}_{axis})"
            dense *= length
    return ""
