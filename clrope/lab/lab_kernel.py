"""`load`: a `.cl` file with a contract as a `Kernel`, to be run by `Rope(config, kernel=...)`, suites and benchmark."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..bounded_read import path_argument, read_bounded_text
from ..config import RopeConfig
from ..errors import ConfigError, UnsupportedError
from ..kernels.kernel import Kernel, Parameters, Unsupported
from ..kernels.launch import BoundNumber, BoundRows, ConstantBytes, LaunchSpec, LocalBytes
from ..kernels.problem import Pairing, Problem
from .contract import Contract, ParameterValue, are_texts, expression_of, not_expressible
from .contract_files import contract_of_file
from .contracts import BY_NAME
from .directives import parameter_value, with_directives
from .expressions import Expression
from .meanings import MEANINGS, ArrayValue, BoundValue, values_of
from .signature import KernelArgument, KernelSignature, numbers_of_macros, signatures, without_comments

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from ..kernels.variant import Variant

_SCALARS = {
    "char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32",
    "long": "int64", "ulong": "uint64", "float": "float32", "double": "float64", "half": "float16",
}  # fmt: skip
_VECTOR = re.compile(r"(char|uchar|short|ushort|int|uint|long|ulong|float|double)(2|3|4|8|16)")
#: The length of a vector at the end of its type's name; pointers to vectors point to elements.
_LENGTH = re.compile(r"(?<=[a-z])(2|3|4|8|16)$")
#: The type of an element in OpenCL C by storage type.
ELEMENTS = {"f32": "float", "f16": "half", "f64": "double", "bf16": "ushort", "f8e4m3": "uchar", "f8e5m2": "uchar"}
#: Types of pointers to elements besides those: bits, or anything.
_BITS = {"f32": ("uint", "int"), "f16": ("ushort", "short"), "f64": ("ulong", "long"), "bf16": ("short",),
         "f8e4m3": ("char",), "f8e5m2": ("char",)}  # fmt: skip
_ANYTHING = ("void",)
#: Storage types that OpenCL C computes with.
_ARITHMETIC = ("f32", "f16", "f64")
_GGML_KINDS = {"normal": "norm", "neox": "neox", "mrope": "multi", "imrope": "multi", "vision": "vision"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"', re.MULTILINE)
_LARGEST_FILE = 4 << 20
#: More would take hours on any device; integers beyond 64 bits end in errors of PyOpenCL's own.
_MOST_WORK_ITEMS = 1 << 40
_MOST_LOCAL_BYTES = 1 << 40
#: Combinations of the tunable parameters' values.
_MOST_SETTINGS = 100_000


class LabReason(Enum):
    """Why a kernel of a user's cannot rotate a problem."""

    NOT_EXPRESSIBLE = "kernel {kernel} of {file} cannot express {what}"


@dataclass(frozen=True)
class LabFile:
    """A kernel file with its contract, directives applied. `options`: the user's."""

    path: Path
    source: str
    contract: Contract
    options: tuple[str, ...]
    kernel: str

    def __getstate__(self) -> dict[str, Any]:
        return {
            field.name: getattr(self, field.name) for field in fields(self)
        }  # not the kernels, which name this file

    def for_config(self, config: RopeConfig) -> Kernel:
        """Return the kernel for a configuration, the same object each time."""
        made = self._kernels.get(config)
        if made is None:
            made = self._kernels.setdefault(config, self._make(config))
        return made

    @cached_property
    def _kernels(self) -> dict[RopeConfig, Kernel]:
        return {}

    def _make(self, config: RopeConfig) -> Kernel:
        launches: dict[Problem, LaunchSpec | Unsupported] = {}

        def launch(problem: Problem) -> LaunchSpec | Unsupported:
            if problem not in launches:
                launches[problem] = self._launch(problem, config.for_head_dim(problem.pairs.head_dim))
            return launches[problem]

        def supports(problem: Problem, p: Parameters) -> Unsupported | None:
            found = launch(problem)
            return found if isinstance(found, Unsupported) else None

        def spec(problem: Problem, variant: Variant, device: DeviceInfo, second: Problem | None) -> LaunchSpec:
            found = launch(problem)
            assert isinstance(found, LaunchSpec)
            return found

        reads = self.reads("f32", config.mode)
        return replace(
            self.kernel_object(), supports=supports, spec=spec, configured=None, maker=(self.for_config, (config,)),
            angles="cached" if "cos_table" in reads else "positions",
            needs_copies=not {"x_offset", "x_offset_bytes"} & reads or "x_token" not in reads,
        )  # fmt: skip

    def kernel_object(self) -> Kernel:
        """Return the kernel that `Rope` configures."""
        name = f"lab:{self.path.stem}"

        def unconfigured(*_: Any) -> NoReturn:
            raise ConfigError(f"kernel: {name} has no configuration yet; give it to clrope.Rope(config, kernel=...)")

        def fallback(problem: Problem, variant: Variant, unsupported: Unsupported) -> Variant:
            raise UnsupportedError(str(unsupported))

        return Kernel(
            name, self.contract.summary, (), lambda pairing: (self.path.name,), unconfigured, fallback, unconfigured,
            lambda kind, dtype, pairing: [{}], lambda p: name, writes_all=False, configured=self.for_config,
            maker=(self.kernel_object, ()),
        )  # fmt: skip

    @property
    def numbered_source(self) -> str:
        """The text behind a line that names the file for compilers, with _ for what no text in C can have."""
        name = "".join(c if c.isprintable() and c not in '"\\' else "_" for c in self.path.name)
        return f'#line 1 "{name}"\n{self.source}'

    # -- reading the kernel -------------------------------------------------------------------------------------------

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\b[A-Za-z_]\w*\b", without_comments(self.source)))

    def build_options(self, dtype: str, pairing: Pairing) -> tuple[str, ...]:
        """Return the compiler options for a storage type and pairing: the user's, and macros that the file reads."""
        options = [*self.contract.options, *self.options]
        given = {option[2:].partition("=")[0] for option in options if option.startswith("-D")}
        made = {
            "T": ELEMENTS[dtype], "REAL": "double" if dtype == "f64" else "float", f"STORAGE_{dtype.upper()}": "1",
            pairing.upper(): "1",
        }  # fmt: skip
        options += [f"-D{name}={value}" for name, value in self.chosen.items() if name not in given]
        options += [
            f"-D{name}={text}"
            for name, text in made.items()
            if name in self._words and name not in given and not re.search(rf"#\s*define\s+{name}\b", self.source)
        ]
        folder = str(self.path.parent.absolute())
        if _INCLUDE.search(self.source) and " " not in folder:  # drivers split options there, quoted or not
            options.append(f"-I{folder}")
        for option in options:
            if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in option):
                raise ConfigError(f"options: got {option[:200]!r}, a text in UTF-8 without a null character is needed")
        return tuple(options)

    @cached_property
    def chosen(self) -> dict[str, ParameterValue]:
        """The value of each tunable parameter: that of an option `-DNAME=value`, else the default."""
        given = {name: value for o in self.options if o.startswith("-D") for name, _, value in [o[2:].partition("=")]}
        return {
            name: parameter_value(given[name]) if name in given else values[0]
            for name, values in self.contract.parameters.items()
        }

    def settings(self) -> list[dict[str, ParameterValue]]:
        """Return every combination of the tunable parameters' values, the chosen one first.

        Raises `ConfigError` for more than 100,000.
        """
        names = list(self.contract.parameters)
        count = math.prod(map(len, self.contract.parameters.values()))
        if count > _MOST_SETTINGS:
            raise ConfigError(
                f"{self.path}: {len(names)} tunable parameters have {count} combinations of values, at most "
                f"{_MOST_SETTINGS} are allowed"
            )
        product = itertools.product(*self.contract.parameters.values())
        rest = [s for s in (dict(zip(names, values, strict=True)) for values in product) if s != self.chosen]
        return [self.chosen, *rest]

    def with_setting(self, setting: Mapping[str, ParameterValue]) -> LabFile:
        """Return the file with other values of its tunable parameters."""
        kept = [o for o in self.options if not (o.startswith("-D") and o[2:].partition("=")[0] in setting)]
        return replace(self, options=(*kept, *(f"-D{name}={value}" for name, value in setting.items())))

    def signature(self, dtype: str = "f32", mode: str = "neox") -> KernelSignature:
        """Return the kernel for a storage type and mode. Raises `ConfigError` where there is none."""
        pairing: Pairing = "normal" if mode == "normal" else "neox"
        found = {s.name: s for s in signatures(self.source, self.build_options(dtype, pairing))}
        if not found:
            raise ConfigError(f"kernel: {self.path} has no __kernel function")
        wanted = self.kernel or self.contract.function_name(dtype=dtype, pairing=pairing, ggml_kind=_GGML_KINDS[mode])
        if wanted in found:
            return found[wanted]
        if wanted:
            raise ConfigError(f"kernel: {self.path} has no kernel {wanted!r}, only {', '.join(found)}")
        if len(found) > 1:
            raise ConfigError(
                f"kernel: {self.path} has {len(found)} kernels, {', '.join(found)}; say which, by a line "
                f"`// lab: kernel {next(iter(found))}` in the file, kernel= or --kernel"
            )
        return next(iter(found.values()))

    def expression(self, argument: KernelArgument, signature: KernelSignature) -> Expression:
        """Return what an argument means. Raises `ConfigError` with the signature that was found and what is known."""
        contract = self.contract
        text = contract.arguments.get(argument.name)
        if text is None and contract.own_words and argument.name in MEANINGS:
            text = argument.name
        if text is None and argument.name in contract.parameters:
            text = argument.name
        if text is None:
            known = [*contract.arguments, *(MEANINGS if contract.own_words else ())]
            near = difflib.get_close_matches(argument.name, known, 3)
            raise ConfigError(
                f"kernel: argument {argument.name!r} means nothing in the contract {contract.name!r}\n"
                f"  found:    {self.path.name}:{signature.line}: {signature}\n"
                f"  known:    {', '.join(known)}\n"
                f"  what to do: {'did you mean ' + ' or '.join(near) + '? Or ' if near else ''}"
                f"a line `// lab: {argument.name} = EXPRESSION` in the file"
            )
        return expression_of(text, f"{self.path.name}: argument {argument.name}")

    def reads(self, dtype: str = "f32", mode: str = "neox") -> frozenset[str]:
        """Return the meanings that the kernel for a storage type and mode reads; of any other where there is none."""
        try:
            signature = self.signature(dtype, mode)
        except ConfigError:
            signature = self._any_signature()
        found = self._reads.get(signature)
        return found if found is not None else self._reads.setdefault(signature, self._read_by(signature))

    @cached_property
    def _reads(self) -> dict[KernelSignature, frozenset[str]]:
        return {}

    def _read_by(self, signature: KernelSignature) -> frozenset[str]:
        found: set[str] = set()
        for argument in signature.arguments:
            if argument.space != "local":
                found |= self.expression(argument, signature).names
        return frozenset(found)

    def _any_signature(self) -> KernelSignature:
        problem: ConfigError | None = None
        for mode in ("neox", "normal", "mrope", "vision"):
            try:
                return self.signature("f32", mode)
            except ConfigError as error:
                problem = problem or error
        assert problem is not None
        raise problem

    @property
    def pairings(self) -> tuple[Pairing, ...]:
        """The pairings that the kernel can be told, or that its file says it has."""
        requires = " ".join(test for test, _ in self.contract.requires)
        said = re.findall(r"\b(neox|normal|mode|NEOX|NORMAL)\b", f"{requires} {self.contract.function}")
        if said or "{ggml_kind}" in self.contract.function or "{pairing}" in self.contract.function:
            return "neox", "normal"
        if self.reads() & {"neox", "normal", "mode"} or self._words & {"NEOX", "NORMAL"}:
            return "neox", "normal"
        return ()

    def check(self) -> KernelSignature:
        """Return the signature, checked as far as that needs no call. Raises `ConfigError`."""
        signature, reads = self._any_signature(), self.reads()
        where = f"  found:    {self.path.name}:{signature.line}: {signature}"
        if not ({"x", "y"} <= reads or "xy" in reads):
            raise ConfigError(
                f"kernel: {signature.name} takes no {'x' if 'x' not in reads else 'y'}\n{where}\n"
                f"  what to do: name its pointers x and y, or say what they are: `// lab: src = x`"
            )
        if not reads & {"cos_table", "positions"}:
            raise ConfigError(
                f"kernel: {signature.name} takes neither tables nor positions\n{where}\n"
                "  what to do: give it cos_table and sin_table, or positions"
            )
        if not self.pairings:
            raise ConfigError(
                f"kernel: nothing tells {signature.name} which elements form a pair\n{where}\n"
                "  what to do: read the macro NEOX or NORMAL, or an argument neox; or say which one it does, by a line "
                "`// lab: requires neox` (or `normal`)"
            )
        return signature

    # -- one launch ---------------------------------------------------------------------------------------------------

    def _launch(self, problem: Problem, config: RopeConfig) -> LaunchSpec | Unsupported:
        signature: KernelSignature | None = None

        def unsupported(what: str) -> Unsupported:
            name = signature.name if signature else self.path.stem
            return Unsupported(LabReason.NOT_EXPRESSIBLE, {"kernel": name, "file": self.path.name, "what": what})

        contract, batch = self.contract, problem.shape[0]
        reads = self.reads(problem.dtype, config.mode)
        own_rows = "row_stride" in reads or contract.shared_rows
        repeats = batch if problem.row_stride == 0 and batch > 1 and not own_rows else 1
        values = self._values(problem, config, repeats)
        for test, reason in contract.requires:
            if not expression_of(test, f"{self.path.name}: requires").value(values):
                return unsupported(reason)
        what = not_expressible(problem, values, reads, config.angles == "exact", self.pairings)
        if what:
            return unsupported(what)
        signature = self.signature(problem.dtype, config.mode)
        arguments: list[tuple[str, Any]] = []
        for argument in signature.arguments:
            made = self._argument(argument, signature, values, problem, config)
            if isinstance(made, str):
                return unsupported(made)
            arguments.append(made)
        sizes = [self._sizes(name, getattr(contract, name), values) for name in ("global_size", "local_size")]
        options = self.build_options(problem.dtype, problem.pairs.pairing or "neox")
        return LaunchSpec(
            self.path.name, signature.name, options, sizes[0], sizes[1] or None, tuple(arguments),
            self.numbered_source, repeats,
        )  # fmt: skip

    def _values(self, problem: Problem, config: RopeConfig, repeats: int) -> dict[str, Any]:
        """Return what expressions may name: meanings, constants, numeric macros, and names of earlier lines."""
        own = values_of(problem, config, repeats)
        options = self.build_options(problem.dtype, problem.pairs.pairing or "neox")
        values = {**numbers_of_macros(self.source, options), **own, **self.chosen}
        for name, text in self.contract.arguments.items():
            expression = expression_of(text, f"{self.path.name}: {name}")
            if name not in values and expression.names <= values.keys():
                values[name] = expression.value(values)
        return values

    def _sizes(self, name: str, texts: Sequence[str], values: dict[str, Any]) -> tuple[int, ...]:
        where = f"{self.path.name}: {name}"
        sizes = tuple(expression_of(text, where).whole(values, 1, _MOST_WORK_ITEMS) for text in texts)
        if math.prod(sizes) > _MOST_WORK_ITEMS:
            raise ConfigError(f"{where}: got {sizes} for this call, at most {_MOST_WORK_ITEMS} work-items are allowed")
        return sizes

    def _argument(
        self, argument: KernelArgument, signature: KernelSignature, values: dict[str, Any], problem: Problem,
        config: RopeConfig,
    ) -> tuple[str, Any] | str:  # fmt: skip
        """Return (name, value) for a launch, or what cannot be expressed."""
        name, kind = argument.name, argument.type
        if argument.space == "local":
            text = self.contract.local.get(name)
            if text is None:
                raise self._wrong(argument, signature, "its bytes are not known", f"`// lab: local {name} = BYTES`")
            size = expression_of(text, f"{self.path.name}: local {name}").whole(values, 1, _MOST_LOCAL_BYTES)
            return name, LocalBytes(size)
        value = self.expression(argument, signature).value(values)
        if isinstance(value, (BoundValue, ArrayValue)) and argument.pointer != self._is_memory(value):
            wanted = "a pointer" if self._is_memory(value) else "a number"
            raise self._wrong(argument, signature, f"its meaning is {wanted}", "another type, or another meaning")
        if isinstance(value, BoundValue):
            return self._bound(value, argument, problem, config, signature)
        if isinstance(value, ArrayValue):
            if kind not in _SCALARS:
                raise self._wrong(argument, signature, f"its type {kind!r} is not known", f"`-D{kind}=float`")
            held = _held(value.numbers, kind)
            if held is None:
                return f"{name}, of which {kind} does not hold every number"
            return name, ConstantBytes(held.tobytes(), True)
        vector = _VECTOR.fullmatch(kind)
        if vector and isinstance(value, tuple) and len(value) == int(vector[2]):
            held = _held(value, vector[1])
            if held is not None:
                return name, ConstantBytes(held.tobytes(), False)
        else:
            if argument.pointer or kind not in _SCALARS or isinstance(value, (tuple, str)):
                raise self._wrong(argument, signature, f"{kind!r} cannot hold {value!r}", "a type such as int or float")
            held = _held(value, kind)
            if held is not None:
                return name, held[()]
        return f"{name} = {value}, which {kind} does not hold"

    @staticmethod
    def _is_memory(value: BoundValue | ArrayValue) -> bool:
        return isinstance(value, ArrayValue) or not value.name.endswith("_offset")

    def _bound(
        self, value: BoundValue, argument: KernelArgument, problem: Problem, config: RopeConfig,
        signature: KernelSignature,
    ) -> tuple[str, Any] | str:  # fmt: skip
        kind, name = argument.type, value.name
        if name == "positions":
            if kind not in _SCALARS or np.dtype(_SCALARS[kind]).kind not in "iu":
                raise self._wrong(argument, signature, f"positions are integers, not {kind!r}", "int or long")
            return name, BoundRows(_SCALARS[kind], 4 if config.uses_sections else 1)
        if name.endswith("_offset"):
            if kind not in _SCALARS or np.dtype(_SCALARS[kind]).kind not in "iu":
                raise self._wrong(argument, signature, f"an offset is an integer, not {kind!r}", "int, long or ulong")
            return name, BoundNumber(_SCALARS[kind], value.scale)
        if name in ("cosine", "sine"):
            real = "double" if problem.dtype == "f64" else "float"
            if _LENGTH.sub("", kind) not in (real, *_ANYTHING):
                return f"{problem.dtype}, for which tables are {real} (its {argument.name} is {kind})"
            return name, None
        if self.contract.checks_types:
            macro = f"STORAGE_{problem.dtype.upper()}"
            if "T" in self._words and problem.dtype not in _ARITHMETIC and macro not in self._words:
                return f"{problem.dtype}, whose bits T would hold (it does not read {macro})"
            allowed = (ELEMENTS[problem.dtype], *_BITS[problem.dtype], *_ANYTHING)
            if _LENGTH.sub("", kind) not in allowed:
                return f"{problem.dtype} (its {argument.name} is {kind})"
        return name, None

    def _wrong(self, argument: KernelArgument, signature: KernelSignature, why: str, remedy: str) -> ConfigError:
        return ConfigError(
            f"kernel: argument {str(argument)!r}: {why}\n  found:    {self.path.name}:{signature.line}: {signature}\n"
            f"  what to do: {remedy}"
        )


def _held(numbers: Any, kind: str) -> npt.NDArray[Any] | None:
    """Return numbers in a type of OpenCL C; None if it does not hold one: too large, or not whole for an integer."""
    dtype, array = np.dtype(_SCALARS[kind]), np.asarray(numbers)
    integral = dtype.kind in "iu"
    if integral:
        fits = (array >= np.iinfo(dtype).min) & (array <= np.iinfo(dtype).max)
    else:
        fits = np.logical_or(np.abs(array) <= float(np.finfo(dtype).max), np.logical_not(np.abs(array) < math.inf))
    if not fits.all():
        return None
    held = array.astype(dtype)
    return None if integral and not (held == array).all() else held


def load_file(
    path: str | os.PathLike[str],
    contract: str | Contract | os.PathLike[str] | None = None,
    *,
    options: Sequence[str] = (),
    kernel: str = "",
) -> LabFile:
    """Return a kernel file with its contract; see `load`."""
    where = path_argument("path", path)
    if not are_texts(options):
        raise ConfigError(f"options: got {options!r:.200}, a list or tuple of str is needed")
    if not isinstance(kernel, str):
        raise ConfigError(f"kernel: got {kernel!r:.200}, the name of a function is needed")
    given: object = os.fspath(contract) if isinstance(contract, os.PathLike) else contract
    made: Contract | None = None
    if given is None or isinstance(given, Contract):
        made = given
    elif isinstance(given, str) and given in BY_NAME:
        made = BY_NAME[given]
    elif isinstance(given, str) and given.endswith((".toml", ".json")):
        made, own = contract_of_file(Path(given))
        where = own if own is not None and where.suffix == ".json" else where
    else:
        raise ConfigError(
            f"contract: got {given!r:.200}, allowed are {', '.join(BY_NAME)}, a Contract, a .toml file, or Kernel "
            "Tuner's .json file"
        )
    if made is None and where.suffix == ".json":
        made, own = contract_of_file(where)
        if own is None:
            raise ConfigError(f"{where}: names no KernelFile")
        where = own
    source = _read(where)
    made, named = with_directives(made, source, where)
    return LabFile(where, source, made, tuple(options), kernel or named)


def load(
    path: str | os.PathLike[str],
    contract: str | Contract | os.PathLike[str] | None = None,
    *,
    options: Sequence[str] = (),
    kernel: str = "",
) -> Kernel:
    """Return the kernel of a `.cl` file for `Rope(config, kernel=...)`.

    path:     the file; or a Kernel Tuner T1 file (.json), which names it.
    contract: 'clrope' (default), 'cos-sin-tables', 'ggml-opencl', a `Contract`, or a .toml or .json file that describes
              the arguments. Lines `// lab: ...` in the kernel's file add to it (`docs/lab.md`).
    options:  compiler options. kernel: the function's name, where the file has several.

    Nothing is built before the first call. Raises `ConfigError` if the file cannot be read, or if an argument has no
    meaning: the message has the signature that was found, and what is known.
    """
    file = load_file(path, contract, options=options, kernel=kernel)
    file.check()
    return file.kernel_object()


def _read(path: Path) -> str:
    try:
        return read_bounded_text(path, _LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a kernel file ({getattr(error, 'strerror', None) or error})"
        ) from error
