"""Sizes of the host's caches, as the kernel of the machine, or a sandbox, tells them."""

from __future__ import annotations

from pathlib import Path

from clrope.device.cache import largest_size


def test_sizes_that_cannot_be_read_count_as_nothing(tmp_path: Path) -> None:
    assert largest_size(tmp_path / "none") == 0
    for number, text in enumerate([b"48K\n", b"2M\n", b"", b"K", b"unknown", b"-1Q", b"\xff\xfe", b"1G1\n"]):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_bytes(text)
    (tmp_path / "index8" / "size").mkdir(parents=True)
    assert largest_size(tmp_path) == 2 << 20
