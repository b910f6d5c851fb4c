"""Bytes and instructions of a kernel, counted in Oclgrind."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from lab_kernels import TABLES, changed

from clrope import ConfigError, DeviceError
from clrope.lab.counters import USUAL_CALLS, CallCounts, count, read_counts
from clrope.lab.lab_kernel import load_file
from clrope.lab.new_kernel import write_new
from clrope.lab.oclgrind import find_library
from clrope.lab.simulator import simulate

try:
    find_library()
    MISSING = ""
except DeviceError as error:
    MISSING = str(error).splitlines()[0]

needs_oclgrind = pytest.mark.skipif(bool(MISSING), reason=MISSING)
CALL = USUAL_CALLS[0]
X_BYTES, TABLE_BYTES = 64 * 8 * 16 * 2 * 4, 2 * 16 * 32 * 4
ROTATION = "  y[i] = p * c - q * s;\n  y[j] = p * s + q * c;"


def counted(path: Path, call: str = CALL) -> CallCounts:
    (made,) = count(load_file(path), call=call).calls
    assert made.problem == ""
    assert made.right
    assert made.y_bytes in (X_BYTES, X_BYTES // 2)
    return made


@needs_oclgrind
@pytest.mark.parametrize(
    ("edits", "read", "written"),
    [
        ([], 2.0, 1.0),
        ([("  const float p = x[i],", "  const float p = vload4(0, x + i - i % 4)[i % 4],")], 3.5, 1.0),
        ([(ROTATION, "  ((volatile __global float *)y)[i] = 0;\n" + ROTATION)], 2.0, 1.5),
        ([(ROTATION, ROTATION.replace("y[i] = p * c - q * s", "vstore2((float2)(p * c - q * s), 0, both)")
           .replace("  vstore2", "  float both[2];\n  vstore2") + "\n  y[i] = both[1];")], 2.0, 1.0),
    ],
    ids=["once", "wide loads for one element", "half of it twice", "vectors in private memory"],
)  # fmt: skip
def test_bytes_of_a_kernel(tmp_path: Path, edits: list[tuple[str, str]], read: float, written: float) -> None:
    path = tmp_path / "mine.cl"
    path.write_text(changed(TABLES, edits))
    made = counted(path)
    assert made.counts.read["global"] == read * X_BYTES
    assert made.counts.written["global"] == written * X_BYTES
    assert made.least_read == X_BYTES + TABLE_BYTES
    assert any(remark.startswith("reads 1.88 times" if read == 2 else "reads 3.29 times") for remark in made.remarks)
    assert any("writes y 1.50 times" in remark for remark in made.remarks) == (written > 1)


@needs_oclgrind
@pytest.mark.parametrize(("kind", "read"), [("simple", 98304), ("vector", 98304), ("npu", 40960)])
def test_half_precision_of_the_kernels_to_start_from(tmp_path: Path, kind: str, read: int) -> None:
    path = write_new(str(tmp_path / "mine"), kind)
    made = counted(Path(path), USUAL_CALLS[1])
    assert made.counts.read["global"] == read
    assert made.counts.written["global"] == X_BYTES // 2
    assert made.counts.not_counted == {}
    # The copies of a tile go through local memory.
    assert (made.counts.written.get("local", 0) >= X_BYTES // 2) == (kind == "npu")


@needs_oclgrind
@pytest.mark.one_in(6)
def test_counts_and_races_compile_for_themselves(tmp_path: Path) -> None:
    """The search for races compiles without the optimiser, the counts with it, whichever comes first."""
    path = write_new(str(tmp_path / f"mine{secrets.token_hex(4)}"), "simple")
    before = counted(path).counts
    assert simulate(load_file(path)).ok
    again = counted(path).counts
    assert again == before
    assert "private" not in again.read


@needs_oclgrind
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    path = tmp_path / "mine.cl"
    path.write_text(changed(TABLES, []))
    check_kernel(str(path), counts=True, call=CALL, quiet=True)
    printed = capsys.readouterr().out
    assert "global written 1.00 bytes for each byte of y, at least 1.00 (65536 bytes)" in " ".join(printed.split())
    path.write_text(changed(TABLES, [("y[i] = p * c", "y[i] = p + c")]))
    with pytest.raises(SystemExit) as ended:
        check_kernel(str(path), counts=True, quiet=True, json_file=str(tmp_path / "it.json"))
    assert ended.value.code == 1
    report = json.loads((tmp_path / "it.json").read_text())
    assert report["schema"] == "clrope.lab.counts/1"
    assert not report["ok"]
    assert "the result is wrong" in report["calls"][0]["remarks"][0]
    path.write_text("__kernel void broken(__global const float *x, __global float *y, __global const float *cos_table,"
                    " __global const float *sin_table, int neox) { nothing }")  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        check_kernel(str(path), counts=True, quiet=True)
    assert ended.value.code == 2
    assert "not counted: does not build in Oclgrind:" in capsys.readouterr().out


@needs_oclgrind
def test_calls_that_a_kernel_cannot_express(tmp_path: Path) -> None:
    path = tmp_path / "mine.cl"
    path.write_text(changed(TABLES, []))
    with pytest.raises(ConfigError, match="call: kernel"):
        count(load_file(path), call=CALL.replace("f32", "f64"))
    with pytest.raises(ConfigError):
        count(load_file(path), call="ROPE(nonsense)")


def test_calls_of_built_in_functions() -> None:
    text = """
Instructions executed for kernel 'other':
               9 - store global (99 bytes)

Instructions executed for kernel 'mine':
              10 - add
               4 - load global (16 bytes)
               3 - call _Z6vload4mPU3AS1Kf()
               3 - call _Z7vstore3Dv3_fmPU3AS3f()
               2 - call _Z11vload_half8mPU3AS2KDh()
               2 - call _Z16vstore_half4_rteDv4_fmPU3AS1Dh()
               5 - call _Z10atomic_addPU3AS1Vii()
               1 - call _Z12atomic_storePU3AS4VU7_Atomici()
               7 - call _Z4minePU3AS1f()
               6 - call _Z21async_work_group_copyPU3AS3fPU3AS1Kfm9ocl_event()
               1 - call llvm.memcpy.p0i8.p1i8.i64()
"""
    made = read_counts(text, "mine")
    assert made is not None
    assert made.instructions == 44
    assert made.read == {"global": 16 + 3 * 16 + 5 * 4, "constant": 2 * 16}
    assert made.written == {"local": 3 * 12, "global": 2 * 8 + 5 * 4}
    assert made.not_counted == {"atomic_store": 1, "llvm.memcpy.p0i8.p1i8.i64": 1}
    assert read_counts(text, "third") is None
