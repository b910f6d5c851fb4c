"""The page that `clrope bench` writes next to its result, and the places where it writes none."""

from __future__ import annotations

from pathlib import Path

import pytest

import clrope
from clrope import ConfigError
from clrope.cli.bench import bench

FEW = {"workload": ["decode-1/f32/neox/out/forward"], "no_peers": True, "rounds": 1, "calls": 1, "tiny": True}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No path is folded."""
    monkeypatch.setenv("COLUMNS", "1000")


def run(device: clrope.DeviceInfo, path: Path, **more: object) -> None:
    bench(device=[device.index], json_file=str(path), quiet=True, **FEW, **more)  # type: ignore[arg-type]


@pytest.mark.one_in(8)
def test_the_page_is_next_to_the_result(
    device: clrope.DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "mine.json", tmp_path / "mine.html"
    run(device, path)
    assert f"{path}; page: {page}" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "mine.json" in text
    page.write_text(text.replace("mine.json", "another"), encoding="utf-8")
    run(device, path)
    assert "mine.json" in page.read_text(encoding="utf-8"), "a page of an earlier run is written again"


@pytest.mark.one_in(4)
def test_a_file_that_is_no_page_is_kept(
    device: clrope.DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "mine.html"
    other.write_text("<p>of somebody else")
    run(device, tmp_path / "mine.json")
    assert other.read_text() == "<p>of somebody else"
    assert "to look at them: clrope report" in capsys.readouterr().out
    run(device, tmp_path / "mine.json", html=str(other))
    assert "mine.json" in other.read_text(encoding="utf-8"), "asked for by name"


def test_a_page_needs_a_result(device: clrope.DeviceInfo, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--html: given without --json FILE"):
        bench(device=[device.index], html=str(tmp_path / "page.html"), quiet=True, **FEW)  # type: ignore[arg-type]
    with pytest.raises(clrope.errors.RopeError, match="its folder is missing"):
        run(device, tmp_path / "mine.json", html=str(tmp_path / "none" / "page.html"))
    assert list(tmp_path.iterdir()) == []
