"""`Contract`: what the arguments of a kernel mean, how it is launched, and which calls it can express.

A contract maps argument names to expressions over `MEANINGS`. What a kernel leaves out limits the calls that it can
express: a kernel without an argument for the direction rotates forward only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import ConfigError
from .expressions import Expression

if TYPE_CHECKING:
    from ..kernels.problem import Problem


#: A value of a tunable parameter.
ParameterValue = int | float | str

_PLACEHOLDER = re.compile(r"\{(dtype|pairing|ggml_kind)\}")


@dataclass(frozen=True)
class Contract:
    """What a family of kernels expects. Raises `ConfigError` for a field of another type.

    arguments:   argument's name -> expression; a name may also be that of a meaning itself if `own_words`.
    function:    the kernel's name, with {dtype}, {pairing} and {ggml_kind} filled in; '' for the file's only kernel.
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

    def __post_init__(self) -> None:
        for name, (fits, wanted) in _FIELDS.items():
            if not fits(value := getattr(self, name)):
                raise ConfigError(f"{name}: got {_short(value)}, {wanted} is needed")
        if self.local_size and len(self.local_size) != len(self.global_size):
            raise ConfigError(
                f"local_size: got {len(self.local_size)} expressions, as many as of global_size "
                f"({len(self.global_size)}) are needed, or none"
            )
        require_placeholders("function", self.function)

    def function_name(self, **known: str) -> str:
        """Return `function` with its placeholders filled in."""
        return _PLACEHOLDER.sub(lambda found: known[found[1]], self.function)


def require_placeholders(name: str, function: str) -> None:
    """Raise `ConfigError` that names a key for a kernel's name with anything else in braces than placeholders."""
    if set("{}") & set(_PLACEHOLDER.sub("", function)):
        raise ConfigError(
            f"{name}: got {function[:200]!r}, allowed in braces are {{dtype}}, {{pairing}}, {{ggml_kind}}"
        )


def are_texts(value: object) -> TypeGuard[Sequence[str]]:
    """Whether a value is a tuple or list of str; a str alone would be one of characters."""
    return isinstance(value, (tuple, list)) and all(isinstance(part, str) for part in value)


def _are_pairs(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(are_texts(part) and len(part) == 2 for part in value)


def _are_named_texts(value: object) -> bool:
    return isinstance(value, Mapping) and are_texts([*value, *value.values()])


def _are_parameters(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and name.isascii() and name.isidentifier()
        and isinstance(values, (tuple, list)) and values and all(map(_is_parameter_value, values))
        for name, values in value.items()
    )  # fmt: skip


def _is_parameter_value(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() <= 1024
    return isinstance(value, (float, str))


def _short(value: object) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # Python refuses to print very long integers
        return f"{type(value).__name__} with an integer beyond float64"


#: What a field has to be, and how that is said.
_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("name", "summary", "function"), (lambda value: isinstance(value, str), "a str")),
    "global_size": (lambda value: are_texts(value) and 1 <= len(value) <= 3, "a tuple of one to three str"),
    **dict.fromkeys(("local_size", "options"), (are_texts, "a tuple of str")),
    "requires": (_are_pairs, "a tuple of pairs (expression, what to say) of str"),
    **dict.fromkeys(("arguments", "local"), (_are_named_texts, "a dict from str to str")),
    "parameters": (_are_parameters, "a dict from macros' names to tuples of one or more int, float or str"),
    **dict.fromkeys(("own_words", "shared_rows", "checks_types"), (lambda value: isinstance(value, bool), "a bool")),
}


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


@lru_cache(maxsize=1024)
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
        if not names & read and expression_of(test, "a rule of contracts").value(values):
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
