"""An independent ceiling: the global memory bandwidth that the program `clpeak` measures, where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from ..cache_folder import temporary_files
from ..device import DeviceInfo
from ..device.child import program_command
from ..device.icd import make_plan

#: Seconds for one device. On a CPU it takes 5 to 15.
LIMIT_S = 90.0
NOT_INSTALLED = "not installed"


def clpeak_version() -> str | None:
    """Return the version of the installed clpeak, None if there is none or it does not run."""
    program = shutil.which("clpeak")
    if program is None:
        return None
    try:
        command = program_command(program, "-v")
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"(?<!\d)\d+(\.\d+)+", told)
    return found[0] if found else None


def clpeak(device: DeviceInfo, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Return the fields of a result file for a device: `clpeak_gbs`, 1e9 bytes read a second, and `clpeak`.

    `clpeak` is the version. Without a figure, `clpeak_gbs` is None and `clpeak` says why. The program sees only the
    device's own driver: it would try every device, simulators included.
    """
    version = clpeak_version()
    if version is None:
        return {"clpeak_gbs": None, "clpeak": NOT_INSTALLED}
    plan = make_plan()
    own = [icd for icd in plan.icds if device.icd in (icd.path, icd.library)]
    with temporary_files({}) as folder, plan.only(*own).environment() as changes:
        told = folder / "clpeak.xml"
        variables: dict[str, str | None] = {**os.environ, **(changes if own else {})}
        command = program_command("clpeak", "-d", str(device.device_index), "--global-bandwidth", "-f", os.fspath(told))
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False,
                env={name: text for name, text in variables.items() if text is not None},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"clpeak_gbs": None, "clpeak": f"{version}: no answer within {limit_s:g} s"}
        except OSError as error:
            return {"clpeak_gbs": None, "clpeak": f"{version}: {error.strerror or error}"}
        rate = read_clpeak(told, device.platform, device.name)
    if rate is None:
        lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
        why = f"exit status {done.returncode}, {lines[-1].strip() if lines else 'no output'}"
        return {"clpeak_gbs": None, "clpeak": f"{version}: {why}"}
    return {"clpeak_gbs": rate, "clpeak": version}


def read_clpeak(told: Path, platform: str, name: str) -> float | None:
    """Return the best global bandwidth of a device in clpeak's XML file, None if there is none."""
    try:
        root = ElementTree.parse(told).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    rates = [
        float(width.text)
        for of_platform in root.iter("platform") if of_platform.get("name", "").strip() == platform
        for of_device in of_platform.iter("device") if of_device.get("name", "").strip() == name
        for bandwidth in of_device.iter("global_memory_bandwidth")
        for width in bandwidth if width.text and re.fullmatch(r"\d+(\.\d+)?", width.text.strip())
    ]  # fmt: skip
    return max((rate for rate in rates if rate > 0), default=None)
