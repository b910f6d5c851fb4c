"""What tuning found is remembered: by what, through what damage, by how many at once."""

from __future__ import annotations

import functools
import json
import re
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
from clrope.device.info import cpu_key
from clrope.kernels import source
from clrope.kernels.problem import AngleForm, PairLayout, Problem
from clrope.kernels.variant import STRIDED, Variant
from clrope.layout import TensorView
from clrope.select import database, defaults
from clrope.select.choice import select
from clrope.select.defaults import default_for, medium_bytes, safe_variant, size_class
from clrope.select.records import OUTCOMES, OutcomeKind, TuningKey, TuningRecord, VariantResult
from clrope.store import Snapshot
from clrope.tune.winners import decided

KEY = TuningKey("f32", "neox", False, "large")
FAST, OTHER = Variant(width=4, store="nontemporal"), Variant(width=4)


def record(key: TuningKey = KEY, winner: Variant = FAST, **broken: Any) -> TuningRecord:
    outcomes = [
        VariantResult(winner, "ok", seconds=1e-3, gbs=2.5),
        VariantResult(STRIDED, "slower", seconds=2e-3, gbs=1.25),
    ]
    outcomes += [VariantResult(v, kind, "because", "log") for kind, v in broken.items()]
    return TuningRecord(key, tuple(outcomes), 1 << 20, ceiling_gbs=3.0, seed=7)


def winner(known: database.Known, in_place: bool, size: str) -> Variant | None:
    records = [r for r in known.records if (r.key.in_place, r.key.size) == (in_place, size)]
    return records[0].winner if records else None


def place(in_place: bool = False, tokens: int = 1 << 15, **changes: Any) -> Problem:
    view = TensorView.dense((1, tokens, 2, 128), "f32")
    pairs = PairLayout.of_config(clrope.RopeConfig("neox", 128), 128)
    made = Problem(view.shape, "f32", view.strides, view.strides, pairs, in_place, angles=AngleForm(exact=True))
    return replace(made, **changes)


def choose(device: clrope.DeviceInfo, problem: Problem) -> Variant:
    return select(device, problem, problem.nbytes)


def stored(cache: Path) -> Any:
    return json.loads((cache / "tuning.json").read_text())


def records_of(data: Any) -> dict[str, Any]:
    return {name: entry["record"] for name, entry in data["entries"].items()}


def test_saved_and_found(cpu: clrope.DeviceInfo, cache: Path) -> None:
    assert winner(database.known(cpu, "f32", "neox"), False, "large") is None
    database.save(cpu, [record()])
    known = database.known(cpu, "f32", "neox")
    assert winner(known, False, "large") == FAST
    assert winner(known, True, "large") is None
    assert winner(known, False, "small") is None
    assert database.known(cpu, "f32", "normal").records == ()
    assert database.known(cpu, "f16", "neox").records == ()
    assert known.records[0].results == record().results
    database.save(cpu, [record(winner=OTHER), record(replace(KEY, size="small"))])
    known = database.known(cpu, "f32", "neox")
    assert (winner(known, False, "large"), winner(known, False, "small")) == (OTHER, FAST)
    database.forget(cpu)
    assert database.known(cpu, "f32", "neox").records == ()
    assert stored(cache)["entries"] == {}


def test_a_record_for_programs() -> None:
    """The tuning key's fields, the winner, and all that the record has."""
    made = record(crash=STRIDED)
    assert (made.winner, made.written) == (FAST, 0)
    told = made.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert {name: told[name] for name in vars(KEY)} == vars(KEY)
    assert (told["winner"], told["nbytes"], told["seed"]) == (FAST.to_dict(), made.nbytes, 7)
    unknown = TuningRecord(KEY, (VariantResult(FAST, "timeout"), VariantResult(OTHER, "slower")), 4096)
    assert (unknown.winner, unknown.to_dict()["winner"], unknown.seed) == (None, None, 0)
    assert unknown.results[0].to_dict() == {
        "variant": FAST.to_dict(), "outcome": "timeout", "reason": "", "log": "", "seconds": None, "gbs": None
    }  # fmt: skip


def test_keys_the_likeliest_first() -> None:
    keys = database.tuning_keys("f32", "neox")
    assert list(map(str, keys)) == [
        f"f32 neox {where} {size}" for size in ("large", "medium", "small") for where in ("out of place", "in place")
    ]
    assert keys[0] == KEY


def test_a_file_from_elsewhere(cpu: clrope.DeviceInfo, cache: Path, tmp_path: Path) -> None:
    """Only its sound records, with what each was measured on."""
    keys = database.tuning_keys("f32", "neox")[:3]
    database.save(cpu, map(record, keys))
    data = stored(cache)
    del records_of(data)[database.record_name(cpu, keys[1])]["results"]
    del records_of(data)[database.record_name(cpu, keys[2])]["facts"]
    (tmp_path / "other.json").write_text(json.dumps(data))
    [entry] = database.entries(str(tmp_path / "other.json")).values()
    assert vars(entry.facts) == database.device_facts(cpu)
    assert (entry.cpu, entry.device) == (cpu_key(), cpu.key)
    assert (entry.facts.vendor, entry.facts.driver) == (cpu.vendor, cpu.driver_version)
    assert entry.to_dict() == replace(record(), written=entry.written).to_dict()
    assert entry.written > 0


def test_another_driver_cpu_or_kernel_is_unknown(
    cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.save(cpu, [record()])
    for other in (
        replace(cpu, driver_version="another"),
        replace(cpu, name="another"),
        replace(cpu, platform="another"),
        replace(cpu, pocl_cpu="another"),
    ):
        assert database.known(other, "f32", "neox").records == ()
    monkeypatch.setattr(database, "_cpu", lambda: "another")
    database.reread()
    assert database.known(cpu, "f32", "neox").records == ()


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
    [("rows.cl", True), ("strided.cl", True), ("storage.clh", True), ("angles.clh", True), ("cache_init.cl", False)],
)
def test_a_changed_kernel_is_unknown(
    cpu: clrope.DeviceInfo, cache: Path, kernels: Path, file: str, changes: bool
) -> None:
    database.save(cpu, [record()])
    assert re.fullmatch("[0-9a-f]{16}", database.kernels_hash())
    assert winner(database.known(cpu, "f32", "neox"), False, "large") == FAST
    with (kernels / file).open("a") as text:
        text.write("// changed\n")
    source.kernel_source.cache_clear()
    source.kernel_hash.cache_clear()
    assert winner(database.known(cpu, "f32", "neox"), False, "large") == (None if changes else FAST)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": "clrope.tuning/2", "records": {}}', '{"schema": "clrope.tuning/6"}', "[" * 9999,
     '{"schema": "clrope.tuning/6", "entries": []}', '{"schema": "clrope.tuning/6", "entries": {"a": 1}}', "\udcff"],
    ids=range(10),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::clrope.errors.CacheWarning")
def test_a_damaged_file(cpu: clrope.DeviceInfo, cache: Path, text: str) -> None:
    (cache / "tuning.json").write_bytes(text.encode(errors="surrogateescape"))
    assert database.known(cpu, "f32", "neox").records == ()
    database.save(cpu, [record()])
    assert winner(database.known(cpu, "f32", "neox"), False, "large") == FAST


#: Deeper than anything that is written, and than Python's stack allows where a caller's own is deep.
DEEP: list[Any] = functools.reduce(lambda inner, _: [inner], range(800), [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("results"),
        lambda r: r["results"][0].update(outcome="great"),
        lambda r: r["results"][0]["variant"].update(width=3),
        lambda r: r["results"][0]["variant"].update(prefetch="2"),
        lambda r: r["results"][0]["variant"].pop("store"),
        lambda r: r["results"][0].update(seconds="fast"),
        lambda r: r["results"][0].update(seconds="1"),
        lambda r: r["results"][1].update(seconds=True),
        lambda r: r.update(ceiling_gbs="3"),
        lambda r: r["key"].update(size="huge"),
        lambda r: r["key"].update(pairing="both"),
        lambda r: r["key"].update(in_place=True),  # a record under another's key
        lambda r: r["results"][0]["variant"].update(prefetch=10**300),
        lambda r: r["results"][0]["variant"].update(prefetch=-1),
        lambda r: r["results"][0]["variant"].update(width=[8]),
        lambda r: r["results"][0].update(reason=DEEP),
        lambda r: r["results"][1].update(outcome=DEEP),
        lambda r: r["results"][1].update(variant=DEEP),
        lambda r: r["results"][0].update(seconds=-1.0),
        lambda r: r["results"][0].update(seconds=-0.5),
        lambda r: r["results"][0].update(seconds=0.0),
        lambda r: r["results"][0].update(gbs=-0.5),
        lambda r: r.update(seed=-1),
        lambda r: r.update(nbytes=0),
        lambda r: r.update(nbytes=1 << 63),
        lambda r: r.update(written="nan"),
        lambda r: r.update(nbytes="9" * 400),
        lambda r: r.update(nbytes=-5),
        lambda r: r.update(nbytes=10**300),
        lambda r: r.update(seed=1.5),
        lambda r: r["key"].update(in_place=0),
        lambda r: r.update(checked_against=["emulation"]),
    ],
    ids=range(32),
)
def test_a_damaged_record(cpu: clrope.DeviceInfo, cache: Path, damage: Any) -> None:
    small = replace(KEY, size="small")
    database.save(cpu, [record(), record(small)])
    data = stored(cache)
    damage(records_of(data)[database.record_name(cpu, KEY)])
    (cache / "tuning.json").write_text(json.dumps(data))
    database.reread()
    known = database.known(cpu, "f32", "neox")
    assert [r.key for r in known.records] == [small]
    assert winner(known, False, "small") == FAST
    assert choose(cpu, place()) == default_for(cpu, KEY).fit(place())


def test_a_deep_record_is_absent_for_a_deep_caller(cpu: clrope.DeviceInfo, cache: Path) -> None:
    """Another caller has read the file."""
    database.save(cpu, [record(), record(replace(KEY, dtype="f16"))])
    data = stored(cache)
    records_of(data)[database.record_name(cpu, KEY)]["results"][0]["reason"] = DEEP
    (cache / "tuning.json").write_text(json.dumps(data))
    database.reread()
    assert winner(database.known(cpu, "f16", "neox"), False, "large") == FAST

    def deeper(more: int) -> database.Known:
        return deeper(more - 1) if more else database.known(cpu, "f32", "neox")

    assert deeper(300).records == ()


@pytest.fixture
def validator(cpu: clrope.DeviceInfo, cache: Path) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    variants = [STRIDED, *(Variant(width=width) for width in (2, 4, 8, 16))]
    broken = dict(zip(OUTCOMES[1:6], variants, strict=True))
    database.save(
        cpu, [record(**broken), TuningRecord(replace(KEY, in_place=True), (VariantResult(FAST, "crash"),), 4096)]
    )
    found = jsonschema.validators.validator_for(database.schema(), default=None)
    assert found is jsonschema.Draft202012Validator
    return found(database.schema())


@pytest.mark.parametrize(
    ("part", "field", "wrong"),
    [
        ("record", "facts", {"name": None}), ("key", "dtype", 5), ("key", "pairing", "both"),
        ("key", "size", "huge"), ("record", "nbytes", 0), ("record", "checked_against", "nothing"),
        ("record", "seed", -1), ("record", "key", 5), ("record", "written", "today"), ("record", "results", {}),
        ("result", "outcome", "great"), ("result", "seconds", 0), ("result", "gbs", -1), ("result", "variant", "rows"),
    ],
)  # fmt: skip
def test_the_schema_takes_the_file_and_nothing_damaged(
    validator: Any, cache: Path, part: str, field: str, wrong: Any
) -> None:
    record = next(iter(records_of(stored(cache)).values()))
    validator.validate(record)
    {"record": record, "key": record["key"], "result": record["results"][0]}[part][field] = wrong
    assert not validator.is_valid(record)


WRITER = """
import sys
import clrope
from clrope.select import database
from clrope.select.records import TuningRecord, TuningKey, VariantResult
from clrope.kernels.variant import Variant
first, count, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
class Device:
    kind = platform = vendor = name = driver_version = ""
    class native_widths:
        float = 8
for n in range(first, first + count):
    d = Device()
    d.key = f"{key} {n}"
    result = VariantResult(Variant(), "ok", seconds=1.0)
    database.save(d, [TuningRecord(TuningKey("f32", "neox", False, "large"), (result,), 1 + n)])
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
    found = {key.split(" | ")[0]: entry["nbytes"] for key, entry in records_of(stored(cache)).items()}
    assert found == {f"device {n}": 1 + n for n in range(150)}
    assert not list(cache.glob("tuning.json.*")), "temporary files are left"


def test_only_the_newest_are_kept(cpu: clrope.DeviceInfo, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(database._store, most=3)
    monkeypatch.setattr(database, "_store", few)
    monkeypatch.setattr(database, "snapshot", Snapshot(few))
    for n in range(5):
        database.save(replace(cpu, driver_version=str(n)), [record()])
    found = [database.known(replace(cpu, driver_version=str(n)), "f32", "neox").records != () for n in range(5)]
    assert found == [False, False, True, True, True]


@pytest.mark.filterwarnings("ignore::clrope.errors.CacheWarning")
def test_no_cache_directory(cpu: clrope.DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "file" / "below"))
    database.reread()
    assert database.known(cpu, "f32", "neox").records == ()
    assert choose(cpu, place()) == default_for(cpu, KEY).fit(place())
    database.reread()


def test_what_is_chosen(cpu: clrope.DeviceInfo, cache: Path) -> None:
    assert choose(cpu, place()) == default_for(cpu, KEY).fit(place())
    database.save(cpu, [record()])
    assert choose(cpu, place()) == FAST
    assert choose(cpu, place(in_place=True)) == default_for(cpu, replace(KEY, in_place=True))
    assert choose(cpu, place(tokens=2)) == default_for(cpu, replace(KEY, size="small"))
    # The winner where it does not fit becomes what does.
    assert choose(cpu, place(y_alignment=4)) == OTHER


def test_angles_are_made_only_as_it_was_measured(cpu: clrope.DeviceInfo, cache: Path) -> None:
    made = FAST.changed(angles="fused")
    database.save(cpu, [record(winner=made)])
    part = PairLayout.of_config(clrope.RopeConfig("neox", 64), 128)
    assert choose(cpu, place()) == made
    assert choose(cpu, replace(place(), pairs=part)) == FAST
    assert choose(cpu, replace(place(), angles=AngleForm(exact=True, sections=True))) == FAST
    # Also in operations, by their configuration.
    for config, angles in (
        (clrope.RopeConfig("neox", 128), "fused"),
        (clrope.RopeConfig("neox", 64), "cached"),
        (clrope.RopeConfig("imrope", 128, sections=(24, 20, 20)), "cached"),
    ):
        x = np.zeros((1, 4096, 32, 128), np.float32)
        plan = clrope.Rope(config, cpu).plan(x, np.arange(4096))
        assert {variant.angles for variant in plan.variants} == {angles}, config


def test_the_safe_variant_stands_in_for_a_default_that_failed(cpu: clrope.DeviceInfo, cache: Path) -> None:
    default, safe = default_for(cpu, KEY).fit(place()), safe_variant(cpu.kind, "f32").fit(place())
    assert default.compiled != safe.compiled
    database.save(cpu, [TuningRecord(KEY, (VariantResult(default, "crash"),), 4096)])
    assert choose(cpu, place()) == safe
    # A variant that the caller names is used even so.
    assert select(cpu, place(), 1 << 26, default) == default


@pytest.mark.parametrize("kind", ["build_error", "crash", "timeout", "wrong", "not_run"])
def test_what_is_known_to_fail_is_not_chosen(cpu: clrope.DeviceInfo, cache: Path, kind: OutcomeKind) -> None:
    default = default_for(cpu, KEY)
    safe = safe_variant(cpu.kind, "f32")
    # Failed in place: not used out of place either; the winner degraded to it neither.
    elsewhere = replace(KEY, in_place=True, size="small")
    failed = {default, OTHER}
    database.save(cpu, [record(), TuningRecord(elsewhere, tuple(VariantResult(v, kind) for v in failed), 4096)])
    assert choose(cpu, place()) == FAST
    assert FAST.fit(place(y_alignment=4)) == OTHER
    assert choose(cpu, place(y_alignment=4)).compiled not in failed
    assert choose(cpu, place(tokens=2)).compiled not in failed
    failed |= {FAST, safe, default_for(cpu, elsewhere), default_for(cpu, replace(KEY, size="small"))}
    database.save(cpu, [TuningRecord(elsewhere, tuple(VariantResult(v, kind) for v in failed), 4096)])
    assert choose(cpu, place()) == STRIDED
    database.save(cpu, [TuningRecord(elsewhere, tuple(VariantResult(v, kind) for v in failed | {STRIDED}), 4096)])
    with pytest.raises(
        clrope.errors.DeviceError, match=r"every variant of the kernels that supports f32 \[1, 32768, 2, 128"
    ):
        choose(cpu, place())


def test_each_pairing_has_its_own_winner(cpu: clrope.DeviceInfo, cache: Path) -> None:
    neighbours = place(pairs=PairLayout.of_config(clrope.RopeConfig("normal", 128), 128))
    database.save(cpu, [record(), record(replace(KEY, pairing="normal"), OTHER)])
    assert (choose(cpu, place()), choose(cpu, neighbours)) == (FAST, OTHER)


def test_pairs_at_other_places_get_the_strided_variant(cpu: clrope.DeviceInfo, cache: Path) -> None:
    moved = place(pairs=replace(place().pairs, y_pairing="normal"))
    assert moved.pairs.pairing is None
    database.save(cpu, [record()])
    assert choose(cpu, moved) == STRIDED
    database.save(cpu, [TuningRecord(KEY, (VariantResult(STRIDED, "crash"),), 4096)])
    with pytest.raises(clrope.errors.DeviceError, match="every variant"):
        choose(cpu, moved)


def test_a_variant_without_a_choice_of_angles(cpu: clrope.DeviceInfo, cache: Path) -> None:
    part = place(pairs=PairLayout.of_config(clrope.RopeConfig("neox", 64), 128))
    assert choose(replace(cpu, kind="accelerator"), part) == STRIDED


def test_how_work_is_divided_does_not_mend_a_variant(cpu: clrope.DeviceInfo, cache: Path) -> None:
    few, many = (Variant("lanes", heads_per_item=heads) for heads in (2, 4))
    assert few.compiled == many.compiled
    database.save(cpu, [record(winner=many)])
    assert choose(cpu, place()) == many
    database.save(cpu, [record(winner=many, crash=few)])
    assert choose(cpu, place()).kernel != "lanes"


@pytest.mark.parametrize("kind", [kind for kind in OUTCOMES if kind != "ok"])
def test_only_what_is_right_and_timed_wins(kind: OutcomeKind) -> None:
    first, second = VariantResult(OTHER, kind), VariantResult(FAST, "ok", seconds=1.0)
    assert TuningRecord(KEY, (first, second), 4096).winner == FAST
    assert TuningRecord(KEY, (first,), 4096).winner is None


def test_the_first_of_equals_wins() -> None:
    def outcomes(*seconds: float | None) -> list[VariantResult]:
        widths = (2, 4, 8, 16)
        return [
            VariantResult(Variant(width=w), "slower" if s else "crash", seconds=s)
            for w, s in zip(widths, seconds, strict=False)
        ]

    def kinds(*seconds: float | None, size: str = "large") -> list[str]:
        return [o.outcome for o in decided(outcomes(*seconds), size)]  # type: ignore[arg-type]

    assert kinds(1.01, 1.0, 2.0) == ["ok", "slower", "slower"]
    assert kinds(1.05, 1.0, 2.0) == ["slower", "ok", "slower"]
    assert kinds(1.05, 1.0, 2.0, size="small") == ["ok", "slower", "slower"]
    for size, share in (("large", 1.02), ("medium", 1.05), ("small", 1.1)):
        assert kinds(share, 1.0, size=size) == ["ok", "slower"]
        assert kinds(share + 1e-9, 1.0, size=size) == ["slower", "ok"]
    assert kinds(None, 1.0) == ["crash", "ok"]
    assert kinds(None, None) == ["crash", "crash"]
    assert kinds(1.0, 2.0, 1.0) == ["ok", "slower", "slower"]
    wrong = VariantResult(STRIDED, "wrong", seconds=0.1)  # its time counts for nothing
    assert [o.outcome for o in decided([wrong, *outcomes(1.0)], "large")] == ["wrong", "ok"]
    untimed = [VariantResult(STRIDED, "slower"), *outcomes(1.0)]
    assert [o.outcome for o in decided(untimed, "large")] == ["slower", "ok"]
    assert [o.outcome for o in decided(untimed[:1], "large")] == ["slower"]


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
    limit = medium_bytes(cpu)
    assert [size_class(cpu, n) for n in (limit - 1, limit)] == ["small", "large"]


def test_what_a_call_rotates_altogether_decides_its_size(cpu: clrope.DeviceInfo, cache: Path) -> None:
    """q and k share the caches, and tensors with the same variant share a launch."""
    limit = medium_bytes(cpu)
    tokens = limit * 3 // 4 // (6 * 128 * 4)
    medium, small = (replace(KEY, size=size) for size in ("medium", "small"))
    database.save(cpu, [TuningRecord(p, (VariantResult(v, "ok"),), 4096) for p, v in ((medium, FAST), (small, OTHER))])
    q, k = np.zeros((tokens, 6, 128), np.float32), np.zeros((tokens, 3, 128), np.float32)
    op = clrope.Rope(clrope.RopeConfig("neox"), cpu)
    for given, want in (((q,), OTHER), ((k,), OTHER), ((q, k), FAST)):
        # Tables were finished when the variants were measured; in caches the kernel computes its angles.
        assert op.plan(given, 0).variants == [want.changed(angles="fused")]


def test_a_time_that_is_not_to_be_believed_does_not_win() -> None:
    doubtful = VariantResult(OTHER, "slower", "faster than a copy", seconds=0.1)
    right = VariantResult(FAST, "slower", seconds=1.0)
    assert [o.outcome for o in decided([doubtful, right], "large")] == ["slower", "ok"]
    assert [o.outcome for o in decided([doubtful, replace(doubtful, variant=FAST)], "large")] == ["ok", "slower"]
