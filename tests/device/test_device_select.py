"""Choosing among a made-up list of devices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clrope.device import select
from clrope.device.info import DeviceInfo, Health, absent
from clrope.errors import DeviceError

OK = Health("ok", copy_gbs=10.0)
BAD = Health("unhealthy", "wrong", "the kernel half gave 3 wrong values of 1024", "use another one")


def made(platform: str, name: str, index: str, kind: str, health: Health = OK) -> DeviceInfo:
    p, d = index.split(":")
    known = absent(platform, name, health, kind=kind, driver_version="1")
    return replace(known, platform_index=int(p), device_index=int(d), _cl=object())


POCL = made("Portable Computing Language", "pthread-Intel Xeon", "0:0", "cpu")
POCL2 = made("Portable Computing Language", "pthread-two", "0:1", "cpu")
INTEL = made("Intel(R) OpenCL", "Intel Xeon", "1:0", "cpu", replace(OK, copy_gbs=20.0))
GPU = made("NVIDIA CUDA", "NVIDIA Test", "2:0", "gpu", replace(OK, copy_gbs=5.0))
NPU = made("Maker", "Some NPU", "3:0", "accelerator")
GRIND = made("Oclgrind", "Oclgrind Simulator", "4:0", "gpu", replace(OK, copy_gbs=99.0))
SICK = made("Rusticl", "llvmpipe", "5:0", "cpu", BAD)
HIDDEN = absent("Gone Platform", "gone", Health("unhealthy", "hidden", "not visible", "start again"))
ALL = [POCL, POCL2, INTEL, GPU, NPU, GRIND, SICK, HIDDEN]


@pytest.fixture(autouse=True)
def _no_choice_from_outside(clean: None) -> None:
    pass


def choose(monkeypatch: pytest.MonkeyPatch, known: list[DeviceInfo], selector: object = None) -> DeviceInfo:
    monkeypatch.setattr(select, "devices", lambda refresh=False: list(known))
    return select.device(selector)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "want"),
    [
        (ALL, GPU),
        ([POCL, NPU, INTEL], NPU),
        ([POCL, INTEL], INTEL),
        ([GRIND, POCL], POCL),
        ([replace(GPU, health=BAD), POCL], POCL),
        ([replace(GPU, health=Health("unknown")), POCL], POCL),
        ([replace(GPU, health=Health("unknown"))], replace(GPU, health=Health("unknown"))),
    ],
)
def test_auto_takes_the_healthiest_fastest(
    monkeypatch: pytest.MonkeyPatch, known: list[DeviceInfo], want: DeviceInfo
) -> None:
    assert choose(monkeypatch, known) == want
    assert choose(monkeypatch, known, "AUTO") == want


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        ("pocl", POCL), ("PoCL", POCL), ("intel", INTEL), ("nvidia", GPU), ("oclgrind", GRIND), ("cpu", INTEL),
        ("gpu", GPU), ("accelerator", NPU), ("0:1", POCL2), ("0", POCL), ("3", NPU), ("4:0", GRIND), ("npu", NPU),
        ("pthread-TWO", POCL2), ("pocl:1", POCL2), ("portable:two", POCL2), (" pocl ", POCL), (NPU, NPU),
    ],
)  # fmt: skip
def test_by_name_kind_and_index(monkeypatch: pytest.MonkeyPatch, selector: object, want: DeviceInfo) -> None:
    assert choose(monkeypatch, ALL, selector) == want


def test_an_alias_is_a_platform_and_not_a_cpu_that_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"clrope\[intel\]"):
        choose(monkeypatch, [POCL], "intel")


@pytest.mark.parametrize(
    "selector",
    ["0:7", "9", "nothing", "gpu:0:0", "accelerator", "9" * 5000, "0:" + "9" * 5000, "pocl:" + "9" * 5000],
    ids=lambda s: s[:9],
)
def test_no_match_lists_what_there_is(monkeypatch: pytest.MonkeyPatch, selector: str) -> None:
    with pytest.raises(DeviceError, match="no OpenCL device matches; found: pthread-Intel Xeon"):
        choose(monkeypatch, [POCL], selector)


@pytest.mark.parametrize("selector", ["rusticl", "5:0", SICK, "llvmpipe"])
def test_an_unhealthy_match_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, selector: object) -> None:
    with pytest.raises(DeviceError, match=r"(?s)llvmpipe.*3 wrong values.*what to do: use another one"):
        choose(monkeypatch, ALL, selector)


def test_a_device_that_is_not_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"(?s)not visible.*start again"):
        choose(monkeypatch, ALL, "gone")
    with pytest.raises(DeviceError, match="start again"):
        _ = HIDDEN.cl_device


def test_no_healthy_device_lists_all_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError) as caught:
        choose(monkeypatch, [SICK, HIDDEN, GRIND])
    text = str(caught.value)
    for part in ("llvmpipe", "3 wrong values", "gone", "Oclgrind", "pip install pocl-binary-distribution",
                 "clrope[intel]", "apt-get install pocl-opencl-icd"):  # fmt: skip
        assert part in text
    with pytest.raises(DeviceError, match="no OpenCL device was found\n"):
        choose(monkeypatch, [])
    monkeypatch.setenv("OCL_ICD_VENDORS", "/no/such")
    with pytest.raises(DeviceError, match="OCL_ICD_VENDORS='/no/such' is set"):
        choose(monkeypatch, [])


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOPENCL_CTX", "3")
    assert choose(monkeypatch, ALL) == NPU
    monkeypatch.setenv("CLROPE_DEVICE", "pocl")
    assert choose(monkeypatch, ALL) == POCL
    assert choose(monkeypatch, ALL, "intel") == INTEL, "an argument goes before the environment"
    monkeypatch.setenv("CLROPE_DEVICE", "nothing")
    with pytest.raises(DeviceError, match="CLROPE_DEVICE='nothing'"):
        choose(monkeypatch, ALL)


@pytest.mark.parametrize(
    ("spec", "want"),
    [("0", POCL), ("0:1", POCL2), ("portable", POCL), ("portable:two", POCL2), ("0:1,0", POCL2), ("", POCL),
     ("1:0", INTEL), ("NVIDIA", GPU)],
)  # fmt: skip
def test_pyopencl_ctx(monkeypatch: pytest.MonkeyPatch, spec: str, want: DeviceInfo) -> None:
    monkeypatch.setenv("PYOPENCL_CTX", spec)
    assert choose(monkeypatch, ALL) == want


@pytest.mark.parametrize(
    "spec", ["7", "0:9", "nothing", "0:0:0", "rusticl", "9" * 5000, "0:" + "9" * 5000], ids=lambda s: s[:9]
)
def test_pyopencl_ctx_that_fits_nothing(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setenv("PYOPENCL_CTX", spec)
    with pytest.raises(DeviceError, match="PYOPENCL_CTX"):
        choose(monkeypatch, ALL)


def test_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="got int"):
        choose(monkeypatch, ALL, 3)


def test_info_is_json_ready_and_hashable() -> None:
    data = json.loads(json.dumps(INTEL.to_dict()))
    assert data["index"] == "1:0"
    assert data["key"] == INTEL.key == "Intel(R) OpenCL | Intel Xeon | 1"
    assert data["health"]["copy_gbs"] == 20.0
    assert "_cl" not in data
    assert len({*ALL, *ALL}) == len(ALL)
    assert replace(POCL, pocl_cpu="haswell").key != POCL.key
