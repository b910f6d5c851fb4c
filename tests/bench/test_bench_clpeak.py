"""`clpeak` as an independent ceiling: a made-up program of that name, and the real one where it is installed."""

import os
import stat

import pytest

from clrope.benchmark.clpeak import clpeak, clpeak_version, read_clpeak

XML = """<?xml version="1.0" encoding="utf-8"?>
<clpeak os="Linux x64">
  <platform name="{platform}">
    <device name="{name}" driver_version="1">
      <global_memory_bandwidth unit="gbps"><float>10.5</float><float2>-1.0</float2><float16>12.25</float16>
      </global_memory_bandwidth>
      <single_precision_compute unit="gflops"><float>900.0</float></single_precision_compute>
    </device>
    <device name="another"><global_memory_bandwidth unit="gbps"><float>99</float></global_memory_bandwidth></device>
  </platform>
</clpeak>
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program named clpeak first on PATH; its text follows the handling of -v."""

    def make(text):
        path = tmp_path / "bin" / "clpeak"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nif [ \"$1\" = -v ]; then echo 'clpeak version: 7.8'; exit 0; fi\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def test_the_best_width_of_the_device_is_the_ceiling(device, program, tmp_path):
    seen = tmp_path / "seen"
    xml = XML.format(platform=device.platform, name=device.name)
    program(f'echo "$@" > {seen}\ncat > "$5" <<"END"\n{xml}END')
    assert clpeak(device) == {"clpeak_gbs": 12.25, "clpeak": "7.8"}
    assert seen.read_text().split()[:4] == ["-d", str(device.device_index), "--global-bandwidth", "-f"]


def test_only_the_driver_of_the_device_is_seen(device, program, tmp_path):
    if os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OPENCL_VENDOR_PATH"):
        pytest.skip("the user's variable decides which drivers are seen")
    seen = tmp_path / "seen"
    program(f'cat "$OCL_ICD_VENDORS"/*.icd > {seen}; exit 3')
    assert clpeak(device) == {"clpeak_gbs": None, "clpeak": "7.8: exit status 3, no output"}
    (line,) = seen.read_text().split()
    assert os.path.basename(line) == os.path.basename(os.path.realpath(device.icd)) or line == device.icd


def test_reasons_without_a_figure(device, program, monkeypatch, tmp_path):
    program("echo 'no platforms found'")
    assert clpeak(device)["clpeak"] == "7.8: exit status 0, no platforms found"
    program("sleep 60")
    assert clpeak(device, limit_s=0.2) == {"clpeak_gbs": None, "clpeak": "7.8: no answer within 0.2 s"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clpeak_version() is None
    assert clpeak(device) == {"clpeak_gbs": None, "clpeak": "not installed"}


@pytest.mark.parametrize("text", ["", "<clpeak>", "<clpeak/>", XML.format(platform="other", name="other")])
def test_files_without_a_figure(tmp_path, text):
    path = tmp_path / "clpeak.xml"
    path.write_text(text)
    assert read_clpeak(path, "p", "d") is None
    assert read_clpeak(tmp_path / "none.xml", "p", "d") is None


@pytest.mark.one_in(4)
@pytest.mark.skipif(clpeak_version() is None, reason="clpeak is not installed")
def test_the_installed_clpeak(device):
    found = clpeak(device)
    if found["clpeak_gbs"] is None:
        # PyPI's PoCL compiles for some processors only after a repair that is within this process.
        assert device.pocl_cpu, found
    else:
        assert found["clpeak"] == clpeak_version()
        assert found["clpeak_gbs"] > 0
