"""Kernels against machine descriptions: tilings, refusals by name, and the prediction's arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_kernels import TABLES

from clrope import ConfigError, DeviceInfo
from clrope.lab.lab_kernel import load_file
from clrope.lab.new_kernel import write_new
from clrope.lab.npu import NpuReport, check, machine, machine_names, tiling
from clrope.lab.npu.npu_prediction import predict
from clrope.lab.npu.recorder import COPY_IN, COPY_OUT, WAIT, CopyRecord, CoreTrace, printed_records, traces

pytestmark = pytest.mark.usefixtures("signatures_in_this_process")

CALL = "ROPE(type=f32,ne_a=[64,4,40,2],n_dims=64,mode=2,n_ctx=512,fs=1,ef=0,af=1,ff=0,v=0,pos=batch)"
#: Whole heads by tiles of a row, one after the other; SIZE, GROUPS, FROM and RUN are replaced.
SIMPLE = """\
// lab: requires neox
// lab: requires n_dims == head_dim
// lab: global_size GROUPS
// lab: local_size 1
__kernel void plain(__global const float *x, __global float *y, __global const float *cos_table,
                    __global const float *sin_table, int batch, int tokens, int heads, int head_dim, int pairs) {
  __local float in[SIZE], out[SIZE];
  for (int row = get_group_id(0); row < batch * tokens * heads; row += get_num_groups(0)) {
    event_t event = async_work_group_copy(in, x + (long)row * head_dim, RUN, 0);
    wait_group_events(1, &event);
    for (int i = 0; i < pairs; i++) {
      const float c = cos_table[row / heads * pairs + i], s = sin_table[row / heads * pairs + i];
      out[i] = in[i] * c - in[i + pairs] * s;
      out[i + pairs] = in[i] * s + in[i + pairs] * c;
    }
    event = async_work_group_copy(y + (long)row * head_dim, out, head_dim, 0);
    wait_group_events(1, &event);
  }
}
"""


def simple(folder: Path, size: int = 64, groups: int = 4, run: str = "head_dim", **more: str) -> Path:
    path = folder / "plain.cl"
    text = SIMPLE.replace("SIZE", str(size)).replace("GROUPS", str(groups)).replace("RUN", run)
    for old, new in more.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def checked(device: DeviceInfo, path: Path, npu: str, call: str = CALL) -> NpuReport:
    (report,) = check(load_file(path), machine(npu), None, [device.index], call=call)
    assert report.problem == ""
    return report


# -- the tiling ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    name=st.sampled_from(machine_names()), batch=st.integers(1, 3), tokens=st.integers(1, 300),
    heads=st.integers(1, 40), pairs=st.integers(1, 128), tail=st.integers(0, 64),
    dtype=st.sampled_from(["f32", "f16", "bf16", "f64", "f8e4m3"]),
)  # fmt: skip
def test_tiles_cover_each_head_once(
    name: str, batch: int, tokens: int, heads: int, pairs: int, tail: int, dtype: str
) -> None:
    m = machine(name)
    made = tiling(m, batch=batch, tokens=tokens, heads=heads, head_dim=2 * pairs + tail, n_dims=2 * pairs, dtype=dtype)
    seen = np.zeros((batch * tokens, heads), np.int64)
    ranges = list(made.ranges())
    for rows, columns in ranges:
        assert len(rows) <= made.tokens_per_tile
        assert len(columns) <= made.heads_per_tile
        # Contiguous memory: one token, or all of its heads.
        assert len(rows) == 1 or len(columns) == heads
        seen[rows.start : rows.stop, columns.start : columns.stop] += 1
    assert (seen == 1).all()
    assert len(ranges) == made.tiles
    assert made.bytes_used <= m.ub
    assert made.tiles_per_core * m.cores >= made.tiles > (made.tiles_per_core - 1) * m.cores
    assert made.x_part % m.align == made.table_part % m.align == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tokens": 0}, "tokens: got 0"), ({"n_dims": 7}, "n_dims: got 7"), ({"n_dims": 66}, "n_dims: got 66"),
        ({"dtype": "i8"}, "dtype: got 'i8'"), ({"head_dim": 100_000}, "ub: got 65536 bytes, two buffers for one head"),
    ],
)  # fmt: skip
def test_tilings_that_are_refused(more: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tiling(machine("edge"), **{"tokens": 4, "heads": 2, "head_dim": 64, **more})  # type: ignore[arg-type]


# -- machines --------------------------------------------------------------------------------------------------------


def test_machines(tmp_path: Path) -> None:
    assert {"ascend-910b", "edge", "generic"} <= set(machine_names())
    ascend = machine("ascend-910b")
    assert (ascend.ub, ascend.align, ascend.vector_bytes) == (196_608, 32, 256)
    changed = machine("ascend-910b,cores=24,ub=100")
    assert changed == replace_fields(ascend, name="ascend-910b with cores=24, ub=100", cores=24, ub=100)
    assert machine("ub=1M").cores == machine("generic").cores
    assert machine("ub=1M").ub == 1 << 20
    own = tmp_path / "own.toml"
    own.write_text((Path(__file__).parents[2] / "clrope/lab/npu/machines/edge.toml").read_text())
    assert machine(str(own)) == machine("edge")
    assert machine("generic").macros() == {
        "NPU_CORES": 8, "NPU_UB": 131_072, "NPU_ALIGN": 32, "NPU_BURST": 32,
    }  # fmt: skip


def replace_fields(made: object, **fields: object) -> object:
    return type(made)(**{**{n: getattr(made, n) for n in made.__struct_fields__}, **fields})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("none", "npu: got 'none', allowed are ascend-910b, edge, generic"),
        ("edge,cores", "npu: got 'cores', allowed is KEY=VALUE"),
        ("wheels=4", "npu: got 'wheels=4', allowed is KEY=VALUE"),
        ("cores=0", "is no machine"), ("cores=many", "is no machine"), ("ub=12Q", "ub: got '12Q', a number of bytes"),
        ("none.toml", "none.toml: cannot be read as a machine"), ("clock_ghz=-1", "is no machine"),
        ("latency_ns=nan", "is no machine"),
    ],
)  # fmt: skip
def test_machines_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        machine(text)


@pytest.mark.parametrize("text", ["cores = 3", "cores = [", "\x00", 'wheels = 4\nname = "a"', "name = " + "[" * 9999])
def test_damaged_machine_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"own\.toml"):
        machine(str(path))


# -- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(16)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", machine_names())
def test_the_tiled_kernel_fits(device: DeviceInfo, tmp_path: Path, name: str, dtype: str) -> None:
    path = write_new(str(tmp_path / "tiled"), "npu")
    report = checked(device, path, name, CALL.replace("f32", dtype))
    assert report.verdict == "fits", (report.refusals, report.not_checkable)
    m = machine(name)
    tiles = tiling(m, batch=2, tokens=40, heads=4, head_dim=64, dtype=dtype)
    assert (report.tiles, report.most_tiles, report.local_bytes) == (
        tiles.tiles,
        tiles.tiles_per_core,
        tiles.bytes_used,
    )
    assert report.groups == m.cores
    assert report.copies == 4 * tiles.tiles
    assert report.overlapped == (tiles.tiles_per_core > 1)
    moved = 2 * 40 * 4 * 64 * (4 if dtype == "f32" else 2)
    assert sum(c.bytes_out for c in report.cores.values()) == moved
    assert sum(c.bytes_in for c in report.cores.values()) == moved + 2 * 40 * 32 * 2 * 4
    assert report.prediction is not None


@pytest.mark.one_in(12)
def test_a_kernel_without_overlap(device: DeviceInfo, tmp_path: Path) -> None:
    report = checked(device, simple(tmp_path), "generic")
    assert report.verdict == "fits"
    assert (report.tiles, report.copies, report.groups, report.local_bytes) == (320, 640, 4, 512)
    assert not report.overlapped


#: What is changed in a kernel, the machine, and the rules that refuse it.
BROKEN = {
    "scratchpad": ({"size": 1024}, "ub=4K", {"scratchpad"}),
    "cores": ({"groups": 9}, "cores=8", {"cores"}),
    "block": ({}, "align=512,burst=32", {"alignment", "block"}),
    "burst": ({}, "burst=512", {"burst"}),
    "global alignment": ({}, "global_align=4096", {"global alignment"}),
    "alignment": ({"size": 80, "(in, x": "(in + 1, x", "in[i": "in[1 + i"}, "generic", {"alignment"}),
    "result": ({"in[i] * c - ": "in[i] * c + "}, "generic", {"result"}),
}  # fmt: skip


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", BROKEN)
def test_what_a_machine_cannot_do_is_refused(device: DeviceInfo, tmp_path: Path, name: str) -> None:
    edits, npu, rules = BROKEN[name]
    report = checked(device, simple(tmp_path, **edits), npu)  # type: ignore[arg-type]
    assert report.verdict == "refused"
    assert name in {r.rule for r in report.refusals} <= rules, report.refusals


@pytest.mark.one_in(8)
def test_accesses_beside_the_scratchpad_are_not_checkable(device: DeviceInfo, tmp_path: Path) -> None:
    path = tmp_path / "mine.cl"
    path.write_text(TABLES)
    report = checked(device, path, "generic")
    assert report.verdict == "not checkable"
    assert "no asynchronous copies" in report.not_checkable[0]
    half = simple(tmp_path, run="head_dim / 2", **{"in[i + pairs]": "x[(long)row * head_dim + i + pairs]"})
    report = checked(device, half, "generic")
    assert report.verdict == "not checkable"
    assert "only 40960 bytes are copied in, x has 81920" in report.not_checkable[0]


def test_kernels_that_cannot_be_recorded(device: DeviceInfo, tmp_path: Path) -> None:
    file = load_file(simple(tmp_path, **{"event_t event": "event_t_ event"}))
    (report,) = check(file, machine("generic"), None, [device.index], call=CALL)
    assert report.verdict == "not run"
    assert "does not build with the recorder before it" in report.problem
    assert "plain.cl" in report.problem
    file = load_file(simple(tmp_path))
    (report,) = check(file, machine("generic"), None, [device.index], call=CALL.replace("mode=2", "mode=0"))
    assert "cannot express" in report.problem


@pytest.mark.one_in(4)
def test_the_command(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    with pytest.raises(SystemExit) as ended:
        check_kernel(str(simple(tmp_path)), npu="cores=2", call=CALL, device=[device.index], quiet=True)
    assert ended.value.code == 1
    out = capsys.readouterr().out
    for part in ("REFUSED", "4 of 2 cores", "refused, cores: 4 work-groups", "one after the other", "predicted"):
        assert part in out
    check_kernel(str(simple(tmp_path)), npu="cores=4", call=CALL, device=[device.index], json_file="-")
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "clrope.lab.npu/1"
    assert report["ok"]
    assert report["devices"][0]["copies"] == 640
    with pytest.raises(ConfigError, match="--call: given without --npu"):
        check_kernel(str(simple(tmp_path)), call=CALL)


# -- the prediction --------------------------------------------------------------------------------------------------


def test_the_prediction() -> None:
    m = machine("cores=2,latency_ns=100,core_gb_s=10,total_gb_s=15,clock_ghz=2,vector_bytes=64")
    one = [CopyRecord(COPY_IN, 1, 4096), CopyRecord(WAIT), CopyRecord(COPY_OUT, 1, 4096), CopyRecord(WAIT)]
    core = CoreTrace(one * 3)
    made = predict(m, [core, CoreTrace(one)], 4)
    copying = 6 * 100e-9 + 6 * 4096 / 10e9
    computing = 3 * 1024 * 3 * 4 / 64 / 2e9
    assert made.copying == pytest.approx(copying)
    assert made.computing == pytest.approx(computing)
    assert made.memory == pytest.approx(8 * 4096 / 15e9)
    assert made.seconds == pytest.approx(copying + computing)
    begun = [CopyRecord(COPY_IN, 1, 4096)] * 2
    both = CoreTrace(
        [*begun, CopyRecord(COPY_OUT, 1, 4096), CopyRecord(WAIT), begun[0], CopyRecord(COPY_OUT, 1, 4096),
         CopyRecord(WAIT), CopyRecord(COPY_OUT, 1, 4096)]
    )  # fmt: skip
    assert both.overlapped
    assert not core.overlapped
    assert predict(m, [both], 4).seconds == pytest.approx(copying + computing / 3)
    slow = predict(machine("total_gb_s=0.001"), [core], 4)
    assert slow.seconds == slow.memory == pytest.approx(6 * 4096 / 1e6)


def test_records() -> None:
    log = [[COPY_IN, 1, 4, 1, 64, 32, 0], [COPY_OUT, 0, 4, 2, 64, 32, 0]]
    text = "".join("clrope-npu-copy " + " ".join(map(str, row)) + "\n" for row in log)
    assert printed_records("of the kernel's own\n" + text + "clrope-npu-copy 1 2\n") == log
    made, groups = traces(log)
    assert groups == 4
    assert made[0].records == [CopyRecord(COPY_OUT, 2, 64, 32, 0)]
    assert (made[1].bytes_in, made[0].bytes_out, made[0].tiles) == (64, 128, 1)
    assert traces([]) == ({}, 0)
