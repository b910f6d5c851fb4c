"""How many processors' work a CPU device's threads do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools import threads
from tools.threads import compare_threads

import clrope


def test_threads_are_compared(device: clrope.DeviceInfo) -> None:
    if device.kind != "cpu" or device.compute_units < 2:
        pytest.skip("one compute unit, or no CPU")
    found = compare_threads(device, 0.0, times=1000, nbytes=1 << 20)
    assert set(found) == {"multiplying", "copying"}
    assert all(len(ratios) == 1 and ratios[0] > 0 for ratios in found.values())


def test_kernels_that_do_nothing(device: clrope.DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.kind != "cpu" or device.compute_units < 2:
        pytest.skip("one compute unit, or no CPU")
    for change in ("y[k] = x[k];", "y[get_global_id(0)] = sum.s0 + sum.sf;"):
        monkeypatch.setattr(threads, "SOURCE", threads.SOURCE.replace(change, ";"))
        with pytest.raises(clrope.DeviceError, match="did not do its work"):
            compare_threads(device, 0.0, times=1000, nbytes=1 << 20)
        monkeypatch.undo()


def test_needs_a_cpu_of_several(device: clrope.DeviceInfo) -> None:
    for other in (replace(device, kind="gpu"), replace(device, kind="cpu", compute_units=1)):
        with pytest.raises(clrope.DeviceError, match="needed is a CPU of two"):
            compare_threads(other, 0.0)
