"""The repair of PyPI's PoCL 3.0: its guards on made-up records, and the whole of it on a simulated unknown CPU."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clrope.cache_folder import temporary_dir
from clrope.device import child, pocl
from clrope.errors import CacheWarning

Script = Callable[..., dict[str, Any]]

try:
    POCL_3 = metadata.version("pocl-binary-distribution") == "3.0"
except metadata.PackageNotFoundError:
    POCL_3 = False

needs_pocl_3 = pytest.mark.skipif(not POCL_3, reason="PyPI's PoCL 3.0 is not installed here")
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is looked at through /proc")

VERSION = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"


class Record:
    """Something like PoCL's record of a device, in memory."""

    def __init__(self, texts: list[str], *, name: str = "pthread-Some CPU", version: str = VERSION) -> None:
        self.keep = [ctypes.create_string_buffer(t.encode()) for t in texts]
        self.block = (ctypes.c_void_p * 400)(*[ctypes.addressof(b) for b in self.keep])
        self.int_ptr = ctypes.addressof(self.block)
        self.name = name
        self.version = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic"
        self.platform = SimpleNamespace(name="Portable Computing Language", version=version)

    def texts(self) -> list[str]:
        pointers = [p for p in self.block if p]
        return [ctypes.string_at(p).decode() for p in pointers]


GOOD = ["pthread-Some CPU", "3.0-rc2", pocl.TRIPLE, "generic", "last"]


@linux
def test_only_the_cpu_name_is_changed(clean: None) -> None:
    record = Record(GOOD)
    assert pocl.may_need_repair(record)  # type: ignore[arg-type]
    assert pocl.repair_cpu(record, "haswell") == ""  # type: ignore[arg-type]
    assert record.texts() == [*GOOD[:3], "haswell", "last"]
    assert pocl.current_cpu(record) == "haswell"  # type: ignore[arg-type]
    assert not pocl.may_need_repair(record)  # type: ignore[arg-type]
    assert pocl.repair_cpu(record, "haswell") == "", "a second time is no error"  # type: ignore[arg-type]
    assert pocl.repair_cpu(record, "znver3") == "the CPU name is 'haswell'"  # type: ignore[arg-type]
    assert record.texts()[3] == "haswell"


@linux
def test_memory_behind_the_record_does_not_count(clean: None) -> None:
    """A second pointer to the triple, as another object in that memory may hold."""
    record = Record(GOOD)
    record.block[100], record.block[101] = record.block[2], record.block[0]
    assert pocl.current_cpu(record) == "generic"  # type: ignore[arg-type]
    assert pocl.repair_cpu(record, "haswell") == ""  # type: ignore[arg-type]


@linux
@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["pthread-Some CPU", pocl.TRIPLE, "znver3"], "the CPU name is 'znver3'"),  # a CPU that is known
        (["pthread-Some CPU", "generic", pocl.TRIPLE], "behind the target triple is ['']"),  # another order
        (["pthread-Some CPU", "aarch64-unknown-linux-gnu", "generic"], "0 target triples among 96 fields"),
        (["pthread-Some CPU", pocl.TRIPLE, "x", "generic"], "the CPU name is 'x'"),  # something between
        (["another", pocl.TRIPLE, "generic"], "the device's name is not before the target triple"),
        (["pthread-Some CPU", pocl.TRIPLE, "generic", pocl.TRIPLE, "generic"], "2 target triples among 96 fields"),
        (["pthread-Some CPU", pocl.TRIPLE], "behind the target triple is ['']"),
        ([], "0 target triples among 96 fields"),
    ],
)
def test_a_record_that_looks_otherwise_is_not_touched(clean: None, texts: list[str], why: str) -> None:
    record = Record(texts)
    before = list(record.block)
    assert not pocl.may_need_repair(record)  # type: ignore[arg-type]
    assert pocl.repair_cpu(record, "haswell") == why  # type: ignore[arg-type]
    assert list(record.block) == before


@linux
@pytest.mark.parametrize(
    "change",
    [
        {"version": VERSION.replace("3.0-rc2", "3.1")},
        {"version": VERSION.replace("3.0-rc2", "4.0")},
        {"version": VERSION.replace("LLVM 14.0.6", "LLVM 15.0.1")},
    ],
)
def test_another_version_is_not_touched(clean: None, change: dict[str, str]) -> None:
    assert not pocl.may_need_repair(Record(GOOD, **change))  # type: ignore[arg-type]


def test_another_platform_or_device_version_is_not_touched(clean: None) -> None:
    record = Record(GOOD)
    record.platform.name = "Intel(R) OpenCL"
    assert not pocl.may_need_repair(record)  # type: ignore[arg-type]
    record = Record(GOOD)
    record.version = record.version.replace("generic", "znver3")
    assert not pocl.may_need_repair(record)  # type: ignore[arg-type]


@linux
@pytest.mark.parametrize(("flags", "name", "needed"), [
    ("AVX512", "znver3", True), ("AVX512", "haswell", True), ("AVX512", "skylake-avx512", False),
    ("AVX512", "unheard-of", False), ("AVX2", "znver3", False), ("AVX2", "haswell", False),
])  # fmt: skip
def test_a_cpu_taken_for_one_with_narrower_vectors(
    clean: None, monkeypatch: pytest.MonkeyPatch, flags: str, name: str, needed: bool
) -> None:
    monkeypatch.setattr(pocl, "cpu_fields", lambda: {"flags": {"AVX2": AVX2, "AVX512": AVX512}[flags]})
    record = Record([*GOOD[:3], name, "last"])
    record.version = record.version.replace("generic", name)
    assert pocl.may_need_repair(record) is needed  # type: ignore[arg-type]
    assert (pocl.repair_cpu(record, "cascadelake") == "") is needed  # type: ignore[arg-type]
    assert record.texts()[3] == ("cascadelake" if needed else name)
    assert not pocl.may_need_repair(record)  # type: ignore[arg-type]


AVX2 = "sse2 sse4_2 popcnt avx avx2 fma bmi1 bmi2 f16c movbe adx aes rdseed pclmulqdq"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
NEWER = "avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni vaes"


def test_candidates_follow_the_flags() -> None:
    assert pocl.candidates(AVX512.split())[0] == "skylake-avx512"
    assert "icelake-server" not in pocl.candidates(AVX512.split())
    assert pocl.candidates(f"{AVX512} {NEWER}".split())[:3] == ["skylake-avx512", "icelake-server", "cascadelake"]
    names = pocl.candidates(AVX2.split())
    assert names[0] == "haswell"
    assert not {"skylake-avx512", "icelake-server", "znver3", "btver2", "nehalem"} & set(names)
    assert pocl.candidates(["sse2"]) == ["x86-64"]
    assert pocl.candidates([]) == []


def made_up(monkeypatch: pytest.MonkeyPatch, working: str) -> list[str]:
    """Children in which only `working` passes; returns the list of names asked for."""
    asked: list[str] = []

    def run(job: dict[str, Any], env: dict[str, str]) -> child.ChildResult:
        name = job["pocl_cpu"]
        asked.append(name)
        assert job["wide"]
        if name:
            assert env["POCL_CACHE_DIR"].endswith(name), "a kernel cache of its own for each name"
        if name == working:
            return child.ChildResult("ok", {"cause": "", "copy_gbs": None})
        if not name:
            return child.ChildResult("ok", {"cause": "build", "reason": f"error: {pocl.FAILURE}"})
        return child.ChildResult("crash", {}, "the driver crashed with SIGILL")

    monkeypatch.setattr(pocl, "run_child", run)
    monkeypatch.setattr(pocl, "cpu_fields", lambda: {"vendor_id": "Test", "flags": f"{AVX512} avx512_vnni"})
    return asked


def decide(**more: Any) -> pocl.Decision:
    return pocl.decide_cpu(["p", "d", "v"], VERSION, {}, **more)


def test_the_first_name_that_works_is_taken_and_remembered(
    cache: Path, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = made_up(monkeypatch, "cascadelake")
    assert decide().cpu == "cascadelake"
    assert asked == ["", "skylake-avx512", "cascadelake"]
    assert decide().cpu == "cascadelake"
    assert len(asked) == 3
    assert decide(refresh=True).cpu == "cascadelake"
    assert len(asked) == 6
    monkeypatch.setenv("CLROPE_POCL_CPU", "off")
    assert decide().cpu == ""
    assert "CLROPE_POCL_CPU=off" in decide().reason
    monkeypatch.setenv("CLROPE_POCL_CPU", "icelake-server")
    assert decide().cpu == ""
    assert asked[6:] == ["", "icelake-server"], "a name that was given is tried too, and no other"
    (entry,) = [e for k, e in json.loads((cache / "pocl.json").read_text())["entries"].items() if "icelake" in k]
    assert "SIGILL" in entry["record"]["reason"]


@pytest.mark.parametrize("name", ["../x", "x" * 300, "a\0b", "haswell -x", "icelake-client"])
def test_no_other_name_is_taken_from_the_cache(
    cache: Path, clean: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made_up(monkeypatch, "cascadelake")
    assert decide().cpu == "cascadelake"
    stored = json.loads((cache / "pocl.json").read_text())
    for entry in stored["entries"].values():
        entry["record"]["cpu"] = name
    (cache / "pocl.json").write_text(json.dumps(stored))
    assert decide().cpu == "cascadelake"


@pytest.mark.parametrize("name", ["../x", "x" * 300, "Haswell", "haswell -x"])
def test_a_users_name_that_is_none(cache: Path, clean: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked = made_up(monkeypatch, name)
    monkeypatch.setenv("CLROPE_POCL_CPU", name)
    assert decide() == pocl.Decision("", f"CLROPE_POCL_CPU: got {name[:80]!r}, a CPU name of LLVM is needed")
    assert asked == []


@pytest.mark.parametrize("failure", ["crash", "wrong"])
def test_kernels_that_fail_on_an_older_cpus_name(
    cache: Path, clean: None, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    made_up(monkeypatch, "skylake-avx512")
    others = pocl.run_child

    def run(job: dict[str, Any], env: dict[str, str]) -> child.ChildResult:
        if job["pocl_cpu"]:
            return others(job, env)
        if failure == "crash":
            return child.ChildResult("crash", {}, "the driver crashed with SIGABRT while running the kernel float16")
        return child.ChildResult("ok", {"cause": "wrong", "reason": "the kernel float16 silently did not run"})

    monkeypatch.setattr(pocl, "run_child", run)
    assert decide().cpu == "skylake-avx512"
    assert "narrower vectors" in decide().reason


@pytest.mark.parametrize(("hanging", "expected"), [("", [""]), ("skylake-avx512", ["", "skylake-avx512"])])
def test_no_name_is_tried_after_one_that_hangs(
    cache: Path, clean: None, monkeypatch: pytest.MonkeyPatch, hanging: str, expected: list[str]
) -> None:
    asked = made_up(monkeypatch, "icelake-server")
    others = pocl.run_child

    def run(job: dict[str, Any], env: dict[str, str]) -> child.ChildResult:
        ended = others(job, env)
        return child.ChildResult("timeout", {}, "no answer in 60 s") if job["pocl_cpu"] == hanging else ended

    monkeypatch.setattr(pocl, "run_child", run)
    assert decide().cpu == ""
    assert asked == expected
    assert "no answer" in decide().reason or not hanging


def test_what_works_is_left_alone(cache: Path, clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = made_up(monkeypatch, "")
    assert decide().cpu == ""
    assert asked == [""]


def test_a_users_cache_folder_is_used(clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pocl.cache_environment("") == {}
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    assert pocl.cache_environment("haswell") == {"POCL_CACHE_DIR": str(tmp_path / "clrope-haswell")}


@linux
def test_else_it_is_next_to_pocls_own(clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the cache directory, which may be deleted at any time: PoCL then ends the process."""
    monkeypatch.setenv("CLROPE_CACHE_DIR", str(tmp_path / "clrope"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "pocl" / "clrope-haswell"
    assert pocl.cache_environment("haswell") == {"POCL_CACHE_DIR": str(folder)}
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="clrope-haswell is not used: other users may write to it"):
        (other,) = pocl.cache_environment("haswell").values()
    assert other == str(temporary_dir() / "clrope-haswell")
    assert Path(other).stat().st_mode & 0o777 == 0o700


COMPUTE = """
import numpy as np, pyopencl as cl
info = next(d for d in D.devices() if d.driver_version.startswith("3.0"))
source = "__kernel void f(__global float *x) { size_t i = get_global_id(0); x[i] = i * 3.0f; }"
x = np.full(64, -1, np.float32)
buffer = cl.Buffer(R.context_for(info), cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
kernel = cl.Kernel(cl.Program(R.context_for(info), source).build(cache_dir=False), "f")
kernel(R.queue_for(info), (64,), None, buffer)
cl.enqueue_copy(R.queue_for(info), x, buffer)
show(right=bool((x == np.arange(64) * 3).all()), device=info.to_dict(), jobs=jobs)
"""
UNKNOWN = {"CLROPE_TEST_POCL_GENERIC": "1"}


def pocl_3(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """The one from PyPI; a distribution's newer PoCL may be listed before it."""
    (found,) = (d for d in listed if d["platform"] == pocl.PLATFORM and d["driver_version"].startswith("3.0"))
    return found


@pytest.mark.one_in(6)
@linux
@needs_pocl_3
def test_an_unknown_cpu_is_repaired(script: Script, cache: Path) -> None:
    got = script(COMPUTE, **UNKNOWN)
    name = got["device"]["pocl_cpu"]
    assert got["right"]
    assert got["device"]["health"]["status"] == "ok"
    assert name
    assert got["device"]["key"].endswith(f"cpu={name}")
    assert any(name in note for note in got["device"]["notes"])
    assert list((cache / "pocl" / f"clrope-{name}").iterdir()), "its kernels are kept apart"
    again = script(COMPUTE, **UNKNOWN)
    assert again["right"]
    assert again["jobs"] == []
    # A device that the caller found himself, before this package was asked for anything, is repaired at its first use.
    text = """
import pyopencl as cl
from clrope.device import pocl
known = [d for p in cl.get_platforms() if p.name == pocl.PLATFORM for d in p.get_devices()]
device = next(d for d in known if d.driver_version.startswith("3.0"))
pocl.simulate_unknown_cpu([device])
before = pocl.current_cpu(device)
info = D.device(cl.CommandQueue(cl.Context([device])))
listed = pocl.current_cpu(device)
assert info.cl_device == device
show(before=before, listed=listed, used=pocl.current_cpu(device), info=info.pocl_cpu, jobs=jobs)
"""
    assert script(text, **UNKNOWN) == {
        "before": "generic", "listed": "generic", "used": name, "info": name, "jobs": [],
    }  # fmt: skip


@linux
@needs_pocl_3
def test_without_the_repair_the_device_is_unhealthy(script: Script) -> None:
    got = script("show(devices=listing())", **UNKNOWN, CLROPE_POCL_CPU="off")
    device = pocl_3(got["devices"])
    assert device["pocl_cpu"] == ""
    assert device["health"]["cause"] == "build"
    for part in ("unknown target CPU 'generic'", "CLROPE_POCL_CPU=off"):
        assert part in device["health"]["reason"]
    assert "CLROPE_POCL_CPU" in device["health"]["hint"]


@pytest.mark.one_in(6)
@linux
@needs_pocl_3
def test_a_name_that_llvm_does_not_know_is_refused(script: Script) -> None:
    got = script("show(devices=listing())", **UNKNOWN, CLROPE_POCL_CPU="no-such-cpu")
    device = pocl_3(got["devices"])
    assert device["health"]["status"] == "unhealthy"
    assert "unknown target CPU 'no-such-cpu'" in device["health"]["reason"]


@linux
@needs_pocl_3
@pytest.mark.one_in(4)
def test_what_stays_wrong_without_the_repair_is_said(script: Script) -> None:
    """A CPU that is taken for an older one: the device works, but not with the widest vectors.

    The probe's answer is made up: on a CPU that LLVM does not know, nothing works without the repair.
    """
    text = """
from clrope.device import discovery, pocl
discovery.examine = lambda *_, **__: D.Health("ok")
reason = "none of the CPU names tried works (x86-64-v3: wrong)"
discovery._decide_pocl = lambda seen, *_: {d.platform_version: pocl.Decision("", reason) for d in seen.devices}
discovery.may_need_repair = lambda device: "PoCL 3.0" in device.platform.version
show(devices=listing())
"""
    device = pocl_3(script(text)["devices"])
    assert device["health"]["status"] == "ok"
    assert device["notes"] == [
        "kernels with vectors of 64 bytes may be wrong: none of the CPU names tried works (x86-64-v3: wrong)"
    ]
