"""MkDocs hook: README, the change log and bench/README.md become pages, with links that fit the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Pages of the site that are files outside of docs/.
OUTSIDE = {"index.md": "README.md", "CHANGELOG.md": "CHANGELOG.md", "bench/README.md": "bench/README.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "bench/figure.png", abs_src_path=str(ROOT / "bench" / "figure.png")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links between the checkout's folders to links between the site's pages."""
    here = page.file.src_uri
    if here == "index.md":
        return markdown.replace("](docs/", "](")
    if here == "bench/README.md":
        return markdown.replace("](../docs/", "](../")
    markdown = markdown.replace("](../README.md", "](index.md")
    return markdown.replace("](../bench/", "](bench/")
