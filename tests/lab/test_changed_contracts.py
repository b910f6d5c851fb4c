"""Whatever a contract's file or a machine's holds: an error of this package, or a call that is as the file says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_fields import ABSENT, changed_fields

from clrope import ConfigError, DeviceInfo, Rope, RopeConfig, RopeError
from clrope.lab.lab_kernel import load_file
from clrope.lab.npu.npu_machine import machine
from clrope.lab.npu.npu_prediction import predict
from clrope.lab.npu.recorder import COPY_IN, COPY_OUT, CopyRecord, CoreTrace

pytestmark = pytest.mark.usefixtures("signatures_in_this_process")

KERNEL = """\
// lab: requires neox
__kernel void turn(__global float *t_out, __global const float *t_in, __global const float *freqs_cos,
                   __global const float *freqs_sin, unsigned int nhead, float factor, __local float *kept) {
  kept[0] = 1;
  if (nhead > 1000000) t_out[0] = t_in[0] * freqs_cos[0] * freqs_sin[0] * factor;
}
"""
LOCAL = (", __local float *kept", "")
ARGUMENTS = {"t_out": "y", "t_in": "x", "freqs_cos": "cos_table", "freqs_sin": "sin_table", "nhead": "heads",
             "factor": "attn_factor"}  # fmt: skip
TOML = {
    "name": "ours", "kernel": "turn", "global_size": ["ceil_div(pairs, W) * W", "heads", "batch * tokens"],
    "local_size": ["W", "1", "1"], "options": ["-cl-mad-enable"], "requires": ["neox", "n_dims == head_dim"],
    "arguments": ARGUMENTS, "local": {"kept": "4 * W"}, "parameters": {"W": [4, 8]}, "shared_rows": False,
}  # fmt: skip
T1 = {
    "ConfigurationSpace": {
        "TuningParameters": [{"Name": "W", "Type": "int", "Values": "[8, 16]", "Default": 4}],
        "Conditions": [{"Expression": "W <= 64"}],
    },
    "KernelSpecification": {
        "Language": "OpenCL", "KernelName": "turn", "KernelFile": "mine.cl", "GlobalSizeType": "CUDA",
        "GlobalSize": {"X": "ceil_div(pairs, W)", "Y": "heads", "Z": "batch * tokens"},
        "LocalSize": {"X": "W", "Y": "1", "Z": 1}, "CompilerOptions": ["-cl-mad-enable"],
        "Arguments": [
            {"Name": "nhead", "Type": "uint32", "MemoryType": "Scalar", "Meaning": "heads"},
            {"Name": "factor", "Type": "float", "MemoryType": "Scalar", "FillValue": 3},
        ],
    },
}  # fmt: skip
MACHINE = {
    "name": "mine", "cores": 2, "ub": "64K", "align": 32, "global_align": 32, "burst": 64, "vector_bytes": 64,
    "clock_ghz": 0.8, "core_gb_s": 8.0, "total_gb_s": 12.0, "latency_ns": 1000.0,
}  # fmt: skip

EXPRESSIONS = [
    "1e400", "1e308 * 1e308", "2**31", "2**63", "10**70", "2**64**2", "1/0", "(-8)**0.5", "-1", "0", "1.5", "", "x",
    "x_offset", "dtype", "sections", "omega", "int(x)", "int(dtype)", "max(1, dtype)", "min(1, 2, key=3)", "min()",
    "ceil_div(1, 0)", "'a'", "'a' * 9", "1 if dtype < 1 else 2", "-" * 400 + "1", "W", "é", "\0", "a\nb", "W x",
    "9" * 400, "x" * 100_000,
]  # fmt: skip
CHANGED = [
    ABSENT, None, -1, 0, 0.5, 1e300, 1e-320, 2**31, 2**62, 2**70, 10**300, 10**400, True, [], {}, [[]], [1, 2],
    ["1"] * 4, [""], {"a": 1}, {"a": "x"}, *EXPRESSIONS,
]  # fmt: skip
PARTS = 16


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def toml_text(data: dict[str, Any]) -> str:
    """Return a file in TOML."""
    return "\n".join(f"{key} = {toml(value)}" for key, value in data.items())


@pytest.mark.one_in(32)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("whole", "name", "text"), [(TOML, "c.toml", toml_text), (T1, "c.json", json.dumps)])
def test_a_changed_contract_is_refused_or_used(
    device: DeviceInfo, tmp_path: Path, whole: dict[str, Any], name: str, text: Callable[[Any], str], part: int
) -> None:
    kernel, path = tmp_path / "mine.cl", tmp_path / name
    kernel.write_text(KERNEL if whole is TOML else KERNEL.replace(*LOCAL).replace("kept[0] = 1;", ""))
    x = np.random.default_rng().uniform(-1, 1, (2, 5, 3, 32)).astype(np.float32)
    refused, used = [], 0
    for way, value, data in [([], None, whole), *changed_fields(whole, CHANGED, part, PARTS)]:
        path.write_text(text(data))
        try:
            file = load_file(kernel, path)
            assert len(file.settings()) < 10
            file.check()
            plan = Rope(RopeConfig("neox", n_dims=32), device, kernel=file.kernel_object()).plan(x, 7)
            (spec,) = plan.specs
            if math.prod(spec.global_size) <= 1_000_000:
                plan.run()
            used += 1
        except RopeError as error:
            refused.append(str(error))
        except Exception as error:
            raise AssertionError(f"{way} = {value!r}") from error
    assert used
    assert refused
    assert 0 < min(map(len, refused)) <= max(map(len, refused)) < 10_000


def test_a_changed_machine_is_refused_or_used(tmp_path: Path) -> None:
    values = [ABSENT, -1, 0, 0.5, 1, 7, 1e300, 1e-320, 1e-9, 2**20, 2**40, 2**63, 10**300, 10**400, True, [], {}, "",
              "x", "0K", "192K", "99999999999999M", "-5", "1e3", "\0", "x" * 50_000, math.inf, math.nan]  # fmt: skip
    core = CoreTrace([CopyRecord(COPY_IN, 1 << 20, 1 << 10), CopyRecord(COPY_OUT, 1 << 20, 1 << 10)])
    path, used, refused = tmp_path / "own.toml", 0, []
    for _, _, data in changed_fields(MACHINE, values):
        path.write_text(toml_text(data).replace("Infinity", "inf").replace("NaN", "nan"))
        try:
            made = machine(str(path))
        except ConfigError as error:
            refused.append(str(error))
        else:
            json.dumps(predict(made, [core], 2).__dict__, allow_nan=False)
            used += 1
    assert used > 50
    assert len(refused) > 100
    assert max(map(len, refused)) < 1000
