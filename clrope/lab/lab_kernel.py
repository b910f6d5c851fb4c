"""`load`: a `.cl` file with a contract as a `Kernel`, to be run by `Rope(config, kernel=...)`, suites and benchmark."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from ..bounded_read import path_argument, read_bounded_text
from ..config import RopeConfig
from ..device import DeviceInfo, devices
from ..device import device as find_device
from ..errors import BuildError, ConfigError, DeviceError
from ..kernels.build import includes_files
from ..kernels.kernel import Kernel, Parameters
from ..kernels.launch import LaunchSpec
from ..kernels.problem import Pairing, Problem
from .contract import Contract, ParameterValue, are_texts, expression_of, not_expressible
from .contract_files import contract_of_file
from .contracts import BY_NAME
from .directives import parameter_value, with_directives
from .expressions import Expression
from .launch_arguments import ELEMENTS, WrongArgumentError, launch_argument
from .meanings import MEANINGS, values_of
from .signature import KernelArgument, KernelSignature, ProgramFacts, build_facts, facts_of_program
from .source_text import line_of, without_comments
from .suggestions import suggested

#: Storage types that OpenCL C computes with.
_ARITHMETIC = ("f32", "f16", "f64")
_PAIRINGS: dict[str, Pairing] = {
    "neox": "neox", "normal": "normal", "mrope": "neox", "imrope": "neox", "vision": "neox"
}  # fmt: skip
_GGML_KINDS = {"normal": "norm", "neox": "neox", "mrope": "multi", "imrope": "multi", "vision": "vision"}
_LARGEST_FILE = 4 << 20
#: More would take hours on any device; integers beyond 64 bits end in errors of PyOpenCL's own.
_MOST_WORK_ITEMS = 1 << 40
#: Combinations of the tunable parameters' values.
_MOST_SETTINGS = 100_000


@dataclass(frozen=True)
class LabFile:
    """A kernel file with its contract, directives applied.

    options: the user's. device: where its signatures are read, in this process; without one they are read in child
    processes, on the first of the devices that `selectors` name which builds the file.
    """

    path: Path
    source: str
    contract: Contract
    options: tuple[str, ...]
    kernel: str
    selectors: tuple[str, ...] = ()
    device: DeviceInfo | None = None

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
        launches: dict[Problem, LaunchSpec | str] = {}

        def launch(problem: Problem) -> LaunchSpec | str:
            if problem not in launches:
                launches[problem] = self._launch(problem, config.for_head_dim(problem.pairs.head_dim))
            return launches[problem]

        def supports(problem: Problem, p: Parameters) -> str | None:
            found = launch(problem)
            return found if isinstance(found, str) else None

        def spec(problem: Problem, p: Parameters, device: DeviceInfo) -> LaunchSpec:
            found = launch(problem)
            assert isinstance(found, LaunchSpec)
            return found

        reads = self.reads(config.mode)
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

        return Kernel(
            name, self.contract.summary, (), self.path.name, unconfigured, unconfigured, writes_all=False,
            configured=self.for_config, maker=(self.kernel_object, ()),
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

    @cached_property
    def _own_macros(self) -> frozenset[str]:
        """The macros that the lab gives to the file: it reads them, and neither it nor an option defines them."""
        given = {option[2:].partition("=")[0] for option in (*self.contract.options, *self.options)}
        names = {"T", "REAL", "NEOX", "NORMAL", *(f"STORAGE_{dtype.upper()}" for dtype in ELEMENTS)}
        defined = set(re.findall(r"#[ \t]*define[ \t]+(\w+)", self.source))
        return frozenset((names & self._words) - given - defined)

    def build_options(self, dtype: str, pairing: Pairing) -> tuple[str, ...]:
        """Return the compiler options for a storage type and pairing: the user's, and macros that the file reads.

        Raises `BuildError` if the program does not build.
        """
        return self._program(dtype, pairing)[0]

    def _options(self, dtype: str, pairing: Pairing, without: Sequence[str] = ()) -> tuple[str, ...]:
        options = [*self.contract.options, *self.options]
        given = {option[2:].partition("=")[0] for option in options if option.startswith("-D")}
        made = {
            "T": ELEMENTS[dtype], "REAL": "double" if dtype == "f64" else "float", f"STORAGE_{dtype.upper()}": "1",
            pairing.upper(): "1",
        }  # fmt: skip
        options += [f"-D{name}={value}" for name, value in self.chosen.items() if name not in given]
        options += [f"-D{n}={text}" for n, text in made.items() if n in self._own_macros and n not in without]
        folder = str(self.path.parent.absolute())
        if includes_files(self.source) and " " not in folder:  # drivers split options there, quoted or not
            options.append(f"-I{folder}")
        for option in options:
            if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in option):
                raise ConfigError(f"options: got {option[:200]!r}, a text in UTF-8 without a null character is needed")
        return tuple(options)

    def _program(self, dtype: str, pairing: Pairing) -> tuple[tuple[str, ...], ProgramFacts]:
        """Return the options that the program for a storage type and pairing is built with, and its facts."""
        options = self._options(dtype, pairing)
        if options not in self._programs:
            failed: BuildError | None = None
            # T and REAL may be the file's own names, of a typedef or an argument.
            for tried in dict.fromkeys((options, self._options(dtype, pairing, ("T", "REAL")))):
                try:
                    self._programs[options] = tried, self._facts(tried)
                    break
                except BuildError as error:
                    failed = failed or error
            else:
                assert failed is not None
                raise failed
        return self._programs[options]

    @cached_property
    def _programs(self) -> dict[tuple[str, ...], tuple[tuple[str, ...], ProgramFacts]]:
        return {}

    def _facts(self, options: tuple[str, ...]) -> ProgramFacts:
        if self.device is not None:
            return build_facts(self.device, self.numbered_source, options, self._asked_macros)
        return facts_of_program(self._usable(), self.numbered_source, options, self._asked_macros)

    def _usable(self) -> list[DeviceInfo]:
        """Return the devices that may read the file. Raises `DeviceError` if there is none."""
        usable: list[DeviceInfo] = []
        for selector in self.selectors:
            with suppress(DeviceError):  # a run says what is wrong with it
                usable.append(find_device(selector))
        healthy = [d for d in devices() if not d.simulator and d.health.status != "unhealthy"]
        return usable or list(dict.fromkeys([find_device(), *healthy]))

    @cached_property
    def _asked_macros(self) -> tuple[str, ...]:
        """Names in the contract's expressions that may be macros of the file."""
        contract = self.contract
        texts = [*contract.arguments.values(), *contract.local.values(), *contract.global_size, *contract.local_size]
        texts += [test for test, _ in contract.requires]
        names: set[str] = set()
        for text in texts:
            with suppress(ConfigError):  # raised where the expression is used
                names |= {name for name in expression_of(text, str(self.path)).names if name.isascii()}
        return tuple(sorted(names - {*MEANINGS, *contract.parameters, *contract.arguments}))

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
        """Return the kernel for a storage type and mode. Raises `ConfigError` where there is none, `BuildError`."""
        pairing = _PAIRINGS[mode]
        found = {kernel.name: kernel for kernel in self._program(dtype, pairing)[1].kernels}
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

    def _meaning(self, argument: KernelArgument) -> str | None:
        """Return the expression of an argument; None for one that is unknown."""
        contract, name = self.contract, argument.name
        if argument.space == "local":
            return contract.local.get(name)
        if name in contract.arguments:
            return contract.arguments[name]
        return name if name in contract.parameters or (contract.own_words and name in MEANINGS) else None

    def _expression(self, argument: KernelArgument) -> Expression:
        what = "local" if argument.space == "local" else "argument"
        return expression_of(self._meaning(argument) or "", f"{self.path.name}: {what} {argument.name}")

    def _found(self, signature: KernelSignature) -> str:
        line = line_of(signature.name, self.source)
        return f"  found:    {self.path.name}:{f'{line}:' if line else ''} {signature}"

    def reads(self, mode: str = "neox", dtype: str = "") -> frozenset[str]:
        """Return the meanings that the kernel for a mode and storage type reads.

        Without a storage type those of the first one that the file says it can do. Where there is no such kernel, those
        of another one. Raises `ConfigError` for arguments without a meaning.
        """
        try:
            signature = self.signature(dtype, mode) if dtype else self._first_signature(mode)
        except ConfigError:
            signature = self._first_signature()
        reads = self._reads.get(signature)
        return reads if reads is not None else self._reads.setdefault(signature, self._read_by(signature))

    @cached_property
    def _reads(self) -> dict[KernelSignature, frozenset[str]]:
        return {}

    def _read_by(self, signature: KernelSignature) -> frozenset[str]:
        unknown = [a for a in signature.arguments if self._meaning(a) is None]
        if unknown:
            contract = self.contract
            known = [*contract.arguments, *(MEANINGS if contract.own_words else ())]
            names = ", ".join(repr(a.name) for a in unknown)
            lines = "".join(f"\n    // lab: {line}" for line in suggested(signature, unknown, contract))
            raise ConfigError(
                f"kernel: unknown argument{'s' if len(unknown) > 1 else ''} {names} (contract {contract.name!r})\n"
                f"{self._found(signature)}\n  known:    {', '.join(known)}\n"
                f"  what to do: add to the file, with the right meanings:{lines}"
            )
        return frozenset().union(*(self._expression(a).names for a in signature.arguments if a.space != "local"))

    def _first_signature(self, *modes: str) -> KernelSignature:
        """Return the first kernel for modes, default any, and for a storage type that the file says it can do."""
        problem: ConfigError | None = None
        for dtype, mode in self._said:
            if mode in modes or not modes:
                try:
                    return self.signature(dtype, mode)
                except ConfigError as error:
                    problem = problem or error
        raise problem or ConfigError(f"kernel: {self.path} has no kernel for {', '.join(modes)}")

    @cached_property
    def _said(self) -> list[tuple[str, str]]:
        """Storage types with modes that no line `requires` excludes; all if each is excluded."""
        tests = [expression_of(test, f"{self.path.name}: requires") for test, _ in self.contract.requires]
        pairs = list(itertools.product(ELEMENTS, _PAIRINGS))

        def is_said(dtype: str, mode: str) -> bool:
            values = {"dtype": dtype, "neox": int(mode != "normal"), "normal": int(mode == "normal")}
            return all(test.value(values) for test in tests if test.names <= values.keys())

        return [pair for pair in pairs if is_said(*pair)] or pairs

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
        """Return the signature, checked as far as that needs no call. Raises as `load`."""
        signature, reads = self._first_signature(), self.reads()
        where = self._found(signature)
        if not ({"x", "y"} <= reads or "xy" in reads):
            missing, example = ("x", "src") if "x" not in reads else ("y", "dst")
            raise ConfigError(
                f"kernel: {signature.name} takes no {missing}\n{where}\n"
                f"  what to do: name one of its pointers {missing}, or say which one it is: "
                f"`// lab: {example} = {missing}`"
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

    def check_before_run(self) -> str:
        """Return the signature of the checked file, '' if no device builds it: each run says that of its own device."""
        try:
            return str(self.check())
        except (BuildError, DeviceError):
            return ""

    # -- one launch ---------------------------------------------------------------------------------------------------

    def _launch(self, problem: Problem, config: RopeConfig) -> LaunchSpec | str:
        signature: KernelSignature | None = None

        def unsupported(what: str) -> str:
            name = signature.name if signature else self.path.stem
            return f"kernel {name} of {self.path.name} cannot express {what}"

        contract, batch = self.contract, problem.shape[0]
        macro, pairing = f"STORAGE_{problem.dtype.upper()}", problem.pairs.pairing or "neox"
        if "T" in self._own_macros and problem.dtype not in _ARITHMETIC and macro not in self._words:
            return unsupported(f"{problem.dtype}, whose bits T would hold (it does not read {macro})")
        own_rows = "row_stride" in self.reads(config.mode) or contract.shared_rows
        repeats = batch if problem.row_stride == 0 and batch > 1 and not own_rows else 1
        # What excludes the call without the program: it may not build for this storage type or pairing.
        values = values_of(problem, config, repeats)
        unmet = self._unmet(values)
        if unmet is None:
            values = self._with_names({**self._program(problem.dtype, pairing)[1].numbers, **values, **self.chosen})
            unmet = self._unmet(values, every=True)
        if unmet is not None:
            return unsupported(unmet)
        reads = self.reads(config.mode, problem.dtype)
        what = not_expressible(problem, values, reads, config.angles == "exact", self.pairings)
        if "cos_table" not in reads and (config.pair_axes is not None or config.coordinate_scale != 1):
            what = "pair_axes or coordinate_scale, without tables"
        if what:
            return unsupported(what)
        signature = self.signature(problem.dtype, config.mode)
        arguments: list[tuple[str, Any]] = []
        for argument in signature.arguments:
            expression = self._expression(argument)
            try:
                made = launch_argument(argument, expression, values, problem, config, contract.checks_types)
            except WrongArgumentError as error:
                raise ConfigError(
                    f"kernel: argument {str(argument)!r}: {error}\n{self._found(signature)}\n"
                    f"  what to do: {error.remedy}"
                ) from None
            if isinstance(made, str):
                return unsupported(made)
            arguments.append(made)
        whole = self._sizes("global_size", contract.global_size, values)
        group = self._sizes("local_size", contract.local_size, values) or signature.group[: len(whole)]
        if not contract.local_size and any(size % part for size, part in zip(whole, group, strict=False)):
            raise ConfigError(
                f"{self.path.name}: global_size: got {whole} for this call, multiples of {group}, the work-group that "
                f"{signature.name} requires, are needed"
            )
        return LaunchSpec(
            self.path.name, signature.name, self.build_options(problem.dtype, pairing), whole, group or None,
            tuple(arguments), self.numbered_source, repeats,
        )  # fmt: skip

    def _with_names(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values with those of arguments, which expressions of later lines may name."""
        for name, text in self.contract.arguments.items():
            expression = expression_of(text, f"{self.path.name}: {name}")
            if name not in values and expression.names <= values.keys():
                values[name] = expression.value(values)
        return values

    def _unmet(self, values: Mapping[str, Any], every: bool = False) -> str | None:
        """Return what to say of the first requirement that is not met. every: also of those whose names are unknown."""
        for test, reason in self.contract.requires:
            expression = expression_of(test, f"{self.path.name}: requires")
            if (every or expression.names <= values.keys()) and not expression.value(values):
                return reason
        return None

    def _sizes(self, name: str, texts: Sequence[str], values: dict[str, Any]) -> tuple[int, ...]:
        where = f"{self.path.name}: {name}"
        sizes = tuple(expression_of(text, where).whole(values, 1, _MOST_WORK_ITEMS) for text in texts)
        if math.prod(sizes) > _MOST_WORK_ITEMS:
            raise ConfigError(f"{where}: got {sizes} for this call, at most {_MOST_WORK_ITEMS} work-items are allowed")
        return sizes


def load_file(
    path: str | os.PathLike[str],
    contract: str | Contract | os.PathLike[str] | None = None,
    *,
    options: Sequence[str] = (),
    kernel: str = "",
    selectors: Sequence[str] = (),
    device: DeviceInfo | None = None,
) -> LabFile:
    """Return a kernel file with its contract; see `load`, and `LabFile` for selectors and device."""
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
    return LabFile(where, source, made, tuple(options), kernel or named, tuple(selectors), device)


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

    The file is built in a child process, which tells its arguments. Raises `ConfigError` if the file cannot be read, or
    if arguments have no meaning: the message has the signature that was found, and what is known; `BuildError` if the
    file does not build on any device, `DeviceError` if there is none or if each crashes.
    """
    file = load_file(path, contract, options=options, kernel=kernel)
    file.check()
    return file.kernel_object()


def _read(path: Path) -> str:
    try:
        return read_bounded_text(path, _LARGEST_FILE).removeprefix("\ufeff")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a kernel file ({getattr(error, 'strerror', None) or error})"
        ) from error
