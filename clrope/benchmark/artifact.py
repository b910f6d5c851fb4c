"""The folder of a run that the artifact descriptions of conferences ask for: enough to repeat, check and read it.

Nothing private is in it: no name of a person or host, no folder of this machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import lzma
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, RopeError
from ..output_file import write_file
from .closing import closing_lines
from .report import as_markdown, markdown_heading, tables
from .results import text_of

#: Extras of this package whose packages are neither run nor measured.
_TOOLS = ("dev", "docs", "test", "formats")
SUMS = "SHA256SUMS"


def check_folder(folder: str) -> None:
    """Raise `ConfigError` if a folder for an artifact is there and not empty, or is no folder."""
    path = Path(folder)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"--artifact: {folder} exists and is {'not empty' if path.is_dir() else 'no folder'}")
    except OSError as error:
        raise ConfigError(f"--artifact: {folder} cannot be read ({error.strerror or error})") from error


def write_artifact(
    result: dict[str, Any], folder: str, command: Sequence[str], kernels: Mapping[str, str] = {}
) -> list[Path]:
    """Write the artifact of a result whose entries have the time of every call; return the files.

    command: what repeats the run, as a list of words. kernels: the sources of users' kernel files, by their names.
    Raises `RopeError` if a file cannot be written.
    """
    packages = installed_packages()
    small = without_samples(result)
    state = {"environment": result["environment"], "devices": result["devices"], "peers": result["peers"],
             "packages": packages}  # fmt: skip
    # What follows a + names a build that other indexes may not have.
    requirements = "".join(f"{name}=={version.partition('+')[0]}\n" for name, version in packages.items())
    files = {
        "README.md": _readme(small, command, packages, kernels).encode(),
        "run.sh": _script(command).encode(),
        "requirements.txt": requirements.encode(),
        "environment.json": (json.dumps(state, indent=1, allow_nan=False) + "\n").encode(),
        "results.json": text_of(small).encode(),
        "samples.json.xz": lzma.compress(json.dumps([result], separators=(",", ":"), allow_nan=False).encode()),
        "tables.md": "\n".join([markdown_heading([small]) + "\n", *(t.markdown() for t in tables([small]))]).encode(),
        **{f"kernels/{name}": source.encode() for name, source in kernels.items()},
    }
    files[SUMS] = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()
    made = []
    try:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, data)
            made.append(path)
        (Path(folder) / "run.sh").chmod(0o755)
    except OSError as error:
        raise RopeError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from error
    return made


def without_samples(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the time of every call; the medians of turns stay."""

    def shortened(entry: dict[str, Any]) -> dict[str, Any]:
        return {
            name: {k: v for k, v in value.items() if k != "samples"} if name in ("wall", "cpu", "event") else value
            for name, value in entry.items()
        }

    workloads = [w | {"entries": [shortened(e) for e in w["entries"]]} for w in result["workloads"]]
    options = {name: value for name, value in result["options"].items() if name != "samples"}
    return result | {"workloads": workloads, "options": options}


def installed_packages() -> dict[str, str]:
    """Return the versions of this package and of all installed packages that it and its peers need, by name."""
    found: dict[str, str] = {}
    left = ["clrope"]
    while left:
        name = left.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[key] = distribution.version
        for line in distribution.requires or ():
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
            # The extras of other packages were not asked for.
            if extra is None or (key == "clrope" and extra[1] not in _TOOLS):
                left.append(re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0])
    return dict(sorted(found.items()))


def _script(command: Sequence[str]) -> str:
    return f"""#!/bin/sh
# Repeats the run in a new virtual environment; the results go to new-results.json.
set -eu
cd "$(dirname "$0")"
python3 -m venv venv
venv/bin/pip install -r requirements.txt
venv/bin/{shlex.join([*command, "--json", "new-results.json"])}
venv/bin/clrope report new-results.json
"""


def _readme(
    result: dict[str, Any], command: Sequence[str], packages: Mapping[str, str], kernels: Mapping[str, str]
) -> str:
    environment, devices = result["environment"], result["devices"]
    minutes = max(1, round(result["seconds"] / 60))
    own = "".join(f"- `kernels/{name}`: a kernel that took part\n" for name in kernels)
    return f"""# Artifact: a run of clrope bench

Measured from {result["started"]} on, for about {minutes} min. RoPE (rotary position embedding) as OpenCL kernels,
timed next to the fastest copies of each device and to other implementations. Every entry was checked before it was
timed.

{_markdown([("", ""), *closing_lines(result, "results.json")])}
## Contents
- `results.json`: all figures; `clrope report results.json` makes tables of it. `tables.md`: these tables
- `samples.json.xz`: the same with the time of every call in nanoseconds, in the order of the calls
- `environment.json`: hardware, drivers, packages, and the state of the machine
- `requirements.txt`, `run.sh`: the packages with their versions; what repeats the run
{own}- `{SUMS}`: `sha256sum -c {SUMS}` checks the files

## Build
Python {environment["python"].split()[-1]} and an OpenCL driver. The driver compiles the kernels when they are first
used. Kernel sources are identified by the hashes in `environment.json`.

```sh
python3 -m venv venv
venv/bin/pip install -r requirements.txt
venv/bin/clrope devices
```

## Run
About {minutes} min on the machine below. Nothing else should run: other load changes times and their ratios.

```sh
venv/bin/{shlex.join([*command, "--json", "new-results.json"])}
venv/bin/clrope report new-results.json
```

## Read
Compare shares of the ceiling, not times: a ratio holds within one run on one machine. `clrope verify` checks the
devices themselves, bit by bit.

## Hardware
{_markdown([("", ""), *_hardware(environment, devices)])}
## Software
{_markdown([("package", "version"), *packages.items()])}
## State of the machine
{_markdown([("", ""), *_state(environment)])}"""


def _hardware(environment: dict[str, Any], devices: dict[str, Any]) -> list[tuple[str, str]]:
    memory = environment.get("memory_bytes")
    rows = [
        ("processor", str(environment["cpu"])),
        ("usable CPUs", str(environment["cpus"])),
        ("CPU features", " ".join(environment.get("cpu_features", ()))),
        ("largest cache", f"{environment.get('cache_bytes', 0) / (1 << 20):.4g} MiB"),
        ("memory", "not known" if memory is None else f"{memory / (1 << 30):.4g} GiB"),
        ("virtual machine", "yes" if environment.get("hypervisor") else "not seen"),
        ("system", f"{environment['system']}, {environment['python']}"),
    ]
    for label, device in devices.items():
        rows.append((f"OpenCL device {label}", f"{device['name']}; {device['platform']}, {device['driver_version']}"))
        if device.get("clpeak_gbs"):
            rows.append((f"clpeak {device['clpeak']} on {label}", f"{device['clpeak_gbs']:.4g} GB/s read"))
    return rows


def _state(environment: dict[str, Any]) -> list[tuple[str, str]]:
    state = environment.get("state", {})
    told = {"load before and after": f"{environment['load_before']}, {environment['load_after']}",
            "transparent huge pages": environment.get("huge_pages"),
            **{name.replace("_", " "): value for name, value in state.items()}}  # fmt: skip
    rows = [(name, _said(value)) for name, value in told.items()]
    variables = environment.get("variables", {})
    return [*rows, *((f"environment variable {n}", v) for n, v in variables.items())]


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not told by the system" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def _markdown(rows: Sequence[tuple[str, str]]) -> str:
    head, *body = [" | ".join(map(as_markdown, row)) for row in rows]
    return "\n".join([f"| {head} |", "|:--|:--|", *(f"| {row} |" for row in body)]) + "\n"
