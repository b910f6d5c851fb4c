"""What tuning found is remembered: by what, through what damage, by how many at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrope
from clrope.layout import TensorView
from clrope.program import defaults, source, tuning
from clrope.program.chooser import choose
from clrope.program.defaults import MEDIUM_BYTES, MEDIUM_BYTES_OF, default_for, size_class
from clrope.program.outcome import OUTCOMES, Outcome, OutcomeKind, Purpose, Record, decided
from clrope.program.variants import STRIDED, Placement, Variant, default_variant
from clrope.schedule.geometry import Geometry

PURPOSE = Purpose("f32", "neox", False, "large")
FAST, OTHER = Variant(width=2, prepared=True), Variant(width=2)
SCHEMA = Path(clrope.__file__).parent / "program" / "data" / "tuning.schema.json"


def record(purpose: Purpose = PURPOSE, winner: Variant = FAST, **broken: Any) -> Record:
    outcomes = [Outcome(winner, "ok", seconds=1e-3, gbs=2.5), Outcome(STRIDED, "slower", seconds=2e-3, gbs=1.25)]
    outcomes += [Outcome(v, kind, "because", "log") for kind, v in broken.items()]
    return Record(purpose, tuple(outcomes), 1 << 20, ceiling_gbs=3.0, seed=7)


def place(in_place: bool = False, tokens: int = 1 << 15) -> Placement:
    view = TensorView.dense((1, tokens, 2, 128), "f32")
    return Placement(view, view, Geometry.of_config(clrope.RopeConfig("neox", 128), 128), in_place, phases=True)


def stored(cache: Path) -> Any:
    return json.loads((cache / "tuning.json").read_text())


def test_saved_and_found(cpu: clrope.DeviceInfo, cache: Path) -> None:
    assert tuning.known(cpu, "f32", "neox").winner(False, "large") is None
    tuning.save(cpu, [record()])
    known = tuning.known(cpu, "f32", "neox")
    assert known.winner(False, "large") == FAST
    assert known.winner(True, "large") is None
    assert known.winner(False, "small") is None
    assert tuning.known(cpu, "f32", "normal").records == ()
    assert tuning.known(cpu, "f16", "neox").records == ()
    assert known.records[0].outcomes == record().outcomes
    tuning.save(cpu, [record(winner=OTHER), record(replace(PURPOSE, size="small"))])
    known = tuning.known(cpu, "f32", "neox")
    assert (known.winner(False, "large"), known.winner(False, "small")) == (OTHER, FAST)
    tuning.forget(cpu)
    assert tuning.known(cpu, "f32", "neox").records == ()
    assert stored(cache)["records"] == {}


def test_another_driver_cpu_or_kernel_is_unknown(
    cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.save(cpu, [record()])
    for other in (
        replace(cpu, driver_version="another"),
        replace(cpu, name="another"),
        replace(cpu, platform="another"),
        replace(cpu, pocl_cpu="another"),
    ):
        assert tuning.known(other, "f32", "neox").records == ()
    monkeypatch.setattr(tuning, "_cpu", lambda: "another")
    tuning.forget_read()
    assert tuning.known(cpu, "f32", "neox").records == ()


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "kernels"
    shutil.copytree(source.kernel_folder(), folder)

    def clear() -> None:
        source.kernel_source.cache_clear()
        source.kernel_hash.cache_clear()

    monkeypatch.setattr(source, "kernel_folder", lambda: folder)
    clear()
    yield folder
    clear()


@pytest.mark.parametrize(
    ("file", "changes"),
    [("rotate_neox.cl", True), ("storage.clh", True), ("rotate_strided.cl", True), ("rotate_normal.cl", False)],
)
def test_a_changed_kernel_is_unknown(
    cpu: clrope.DeviceInfo, cache: Path, kernels: Path, file: str, changes: bool
) -> None:
    tuning.save(cpu, [record()])
    assert tuning.known(cpu, "f32", "neox").winner(False, "large") == FAST
    with (kernels / file).open("a") as text:
        text.write("// changed\n")
    source.kernel_source.cache_clear()
    source.kernel_hash.cache_clear()
    assert tuning.known(cpu, "f32", "neox").winner(False, "large") == (None if changes else FAST)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": "clrope.tuning/1", "records": {}}', '{"schema": "clrope.tuning/3"}', "[" * 9999,
     '{"schema": "clrope.tuning/3", "records": []}', '{"schema": "clrope.tuning/3", "records": {"a": 1}}', "\udcff"],
    ids=range(10),
)  # fmt: skip
def test_a_damaged_file(cpu: clrope.DeviceInfo, cache: Path, text: str) -> None:
    (cache / "tuning.json").write_bytes(text.encode(errors="surrogateescape"))
    assert tuning.known(cpu, "f32", "neox").records == ()
    tuning.save(cpu, [record()])
    assert tuning.known(cpu, "f32", "neox").winner(False, "large") == FAST


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("outcomes"),
        lambda r: r["outcomes"][0].update(outcome="great"),
        lambda r: r["outcomes"][0]["variant"].update(width=3),
        lambda r: r["outcomes"][0]["variant"].update(heads_per_item="2"),
        lambda r: r["outcomes"][0]["variant"].pop("store"),
        lambda r: r["outcomes"][0].update(seconds="fast"),
        lambda r: r.update(pairing="both"),
        lambda r: r.update(in_place=True),  # a record under another's key
    ],
    ids=range(8),
)
def test_a_damaged_record(cpu: clrope.DeviceInfo, cache: Path, damage: Any) -> None:
    small = replace(PURPOSE, size="small")
    tuning.save(cpu, [record(), record(small)])
    data = stored(cache)
    damage(data["records"][tuning.key(cpu, PURPOSE)])
    (cache / "tuning.json").write_text(json.dumps(data))
    tuning.forget_read()
    known = tuning.known(cpu, "f32", "neox")
    assert known.winner(False, "large") is None
    assert known.winner(False, "small") == FAST
    assert choose(cpu, place()) == default_for(cpu, PURPOSE).fitted(place())


def test_the_file_fits_its_schema(cpu: clrope.DeviceInfo, cache: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    broken = {kind: Variant(width=w) for kind, w in zip(OUTCOMES[1:6], (1, 2, 4, 8, 16), strict=True)}
    tuning.save(cpu, [record(**broken), Record(replace(PURPOSE, in_place=True), (Outcome(FAST, "crash"),), 4096)])
    data = stored(cache)
    check.validate(data)
    first = next(iter(data["records"].values()))
    assert set(schema["$defs"]["outcome"]["properties"]["outcome"]["enum"]) == set(OUTCOMES)
    assert set(schema["$defs"]["variant"]["required"]) == set(FAST.to_dict())
    first["outcomes"][0]["outcome"] = "great"
    assert not check.is_valid(data)


WRITER = """
import sys
import clrope
from clrope.program import tuning
from clrope.program.outcome import Outcome, Purpose, Record
from clrope.program.variants import Variant
first, count, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
class Device:
    pass
for n in range(first, first + count):
    d = Device()
    d.key = f"{key} {n}"
    tuning.save(d, [Record(Purpose("f32", "neox", False, "large"), (Outcome(Variant(), "ok", seconds=1.0),), 1 + n)])
"""


def test_several_processes_at_once(cache: Path) -> None:
    root = Path(clrope.__file__).parent.parent
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(50 * n), "50", "device"], cwd=root, stderr=subprocess.PIPE)
        for n in range(3)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    found = {key.split(" | ")[0]: entry["nbytes"] for key, entry in stored(cache)["records"].items()}
    assert found == {f"device {n}": 1 + n for n in range(150)}
    assert not list(cache.glob("tuning.json.*")), "temporary files are left"


def test_only_the_newest_are_kept(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MOST_RECORDS", 3)
    for n in range(5):
        tuning.save(replace(cpu, driver_version=str(n)), [record()])
    found = [tuning.known(replace(cpu, driver_version=str(n)), "f32", "neox").records != () for n in range(5)]
    assert found == [False, False, True, True, True]


def test_no_cache_directory(cpu: clrope.DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "file" / "below"))
    tuning.forget_read()
    assert tuning.known(cpu, "f32", "neox").records == ()
    assert choose(cpu, place()) == default_for(cpu, PURPOSE).fitted(place())
    tuning.forget_read()


def test_what_is_chosen(cpu: clrope.DeviceInfo, cache: Path) -> None:
    assert choose(cpu, place()) == default_for(cpu, PURPOSE).fitted(place())
    tuning.save(cpu, [record()])
    assert choose(cpu, place()) == FAST
    assert choose(cpu, place(in_place=True)) == default_for(cpu, replace(PURPOSE, in_place=True))
    assert choose(cpu, place(tokens=2)) == default_for(cpu, replace(PURPOSE, size="small"))
    # The winner where it does not fit becomes what does.
    assert choose(cpu, replace(place(), full_tables=True)) == OTHER


def test_angles_are_made_only_as_it_was_measured(cpu: clrope.DeviceInfo, cache: Path) -> None:
    made = replace(FAST, angles="fused")
    tuning.save(cpu, [record(winner=made)])
    part = Geometry.of_config(clrope.RopeConfig("neox", 64), 128)
    assert choose(cpu, place()) == made
    assert choose(cpu, replace(place(), geometry=part)) == FAST
    assert choose(cpu, replace(place(), sections=True)) == FAST
    # Also in operations, by their configuration.
    for config, angles in (
        (clrope.RopeConfig("neox", 128), "fused"),
        (clrope.RopeConfig("neox", 64), "cached"),
        (clrope.RopeConfig("imrope", 128, sections=(24, 20, 20)), "cached"),
    ):
        x = np.zeros((1, 4096, 32, 128), np.float32)
        plan = clrope.Rope(config, cpu).plan(x, np.arange(4096))
        assert {variant.angles for variant in plan.variants} == {angles}, config


@pytest.mark.parametrize("kind", ["build_error", "crash", "timeout", "wrong", "not_run"])
def test_what_is_known_to_fail_is_not_chosen(cpu: clrope.DeviceInfo, cache: Path, kind: OutcomeKind) -> None:
    default = default_for(cpu, PURPOSE)
    safe = default_variant(cpu.kind, "f32", "neox")
    # Failed in place: not used out of place either; the winner degraded to it neither.
    elsewhere = replace(PURPOSE, in_place=True, size="small")
    failed = {default, OTHER}
    tuning.save(cpu, [record(), Record(elsewhere, tuple(Outcome(v, kind) for v in failed), 4096)])
    assert choose(cpu, place()) == FAST
    assert choose(cpu, replace(place(), full_tables=True)).spelling not in failed  # FAST becomes OTHER there
    assert choose(cpu, place(tokens=2)).spelling not in failed
    failed |= {FAST, safe, default_for(cpu, elsewhere), default_for(cpu, replace(PURPOSE, size="small"))}
    tuning.save(cpu, [Record(elsewhere, tuple(Outcome(v, kind) for v in failed), 4096)])
    assert choose(cpu, place()) == STRIDED
    tuning.save(cpu, [Record(elsewhere, tuple(Outcome(v, kind) for v in failed | {STRIDED}), 4096)])
    with pytest.raises(
        clrope.errors.DeviceError, match=r"every spelling of the kernel that fits f32 \[1, 32768, 2, 128"
    ):
        choose(cpu, place())


def test_how_work_is_divided_does_not_make_a_spelling_whole(cpu: clrope.DeviceInfo, cache: Path) -> None:
    safe = default_variant(cpu.kind, "f32", "neox")
    tuning.save(cpu, [record(winner=replace(safe, heads_per_item=4), crash=replace(safe, heads_per_item=2))])
    assert choose(cpu, place()).spelling != safe


def test_the_first_of_equals_wins() -> None:
    def outcomes(*seconds: float | None) -> list[Outcome]:
        widths = (1, 2, 4, 8)
        return [
            Outcome(Variant(width=w), "slower" if s else "crash", seconds=s)
            for w, s in zip(widths, seconds, strict=False)
        ]

    def kinds(*seconds: float | None, size: str = "large") -> list[str]:
        return [o.outcome for o in decided(outcomes(*seconds), size)]  # type: ignore[arg-type]

    assert kinds(1.01, 1.0, 2.0) == ["ok", "slower", "slower"]
    assert kinds(1.05, 1.0, 2.0) == ["slower", "ok", "slower"]
    assert kinds(1.05, 1.0, 2.0, size="small") == ["ok", "slower", "slower"]
    assert kinds(None, 1.0) == ["crash", "ok"]
    assert kinds(None, None) == ["crash", "crash"]


@pytest.mark.parametrize(
    ("platform", "limit"), [("Intel(R) OpenCL", 2 << 20), ("Portable Computing Language", 1 << 20)]
)
@pytest.mark.parametrize(
    ("kind", "cache", "large"),
    [("cpu", 480 << 20, 32 << 20), ("cpu", 32 << 20, 8 << 20), ("cpu", 0, 32 << 20), ("gpu", 32 << 20, 32 << 20)],
)
def test_size_classes(
    cpu: clrope.DeviceInfo, platform: str, limit: int, kind: Any, cache: int, large: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(defaults, "host_cache_bytes", lambda: cache)
    device = replace(cpu, platform=platform, kind=kind)
    got = [size_class(device, n) for n in (0, limit - 1, limit, large - 1, large, 1 << 40)]
    assert got == ["small", "small", "medium", "medium", "large", "large"]


def test_a_cache_so_small_that_nothing_is_medium(cpu: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "host_cache_bytes", lambda: 1 << 20)
    limit = MEDIUM_BYTES_OF.get(cpu.platform, MEDIUM_BYTES)
    assert [size_class(cpu, n) for n in (limit - 1, limit)] == ["small", "large"]


def test_what_a_call_rotates_altogether_decides_its_size(cpu: clrope.DeviceInfo, cache: Path) -> None:
    """q and k meet the caches together, and what takes one spelling is one launch."""
    limit = MEDIUM_BYTES_OF.get(cpu.platform, MEDIUM_BYTES)
    tokens = limit * 3 // 4 // (6 * 128 * 4)
    medium, small = (replace(PURPOSE, size=size) for size in ("medium", "small"))
    tuning.save(cpu, [Record(p, (Outcome(v, "ok"),), 4096) for p, v in ((medium, FAST), (small, OTHER))])
    q, k = np.zeros((tokens, 6, 128), np.float32), np.zeros((tokens, 3, 128), np.float32)
    op = clrope.Rope(clrope.RopeConfig("neox"), cpu)
    for given, want in (((q,), OTHER), ((k,), OTHER), ((q, k), FAST)):
        assert op.plan(given, 0).variants == [want]
