"""MkDocs hook: README and the other pages outside of docs/ become pages of the site, with links that fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Pages of the site that are files outside of docs/.
SAME_NAME = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md", "examples/README.md")
OUTSIDE = {"index.md": "README.md", **{name: name for name in SAME_NAME}}


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "bench/figure.png", abs_src_path=str(ROOT / "bench" / "figure.png")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links between the checkout's folders to links between the site's pages."""
    here = page.file.src_uri
    if "/" not in OUTSIDE.get(here, "/"):
        return markdown.replace("](docs/", "](")
    if here == "bench/README.md":
        return markdown.replace("](../docs/", "](../")
    if here == "examples/README.md":  # the programs are no pages
        markdown = re.sub(r"\[([a-z0-9_/]+\.py)\]\(\1\)", r"`\1`", markdown)
        return markdown.replace("](npu/README.md)", "](../npu.md)")
    markdown = markdown.replace("](../README.md", "](index.md")
    return re.sub(r"\]\(\.\./(?=bench/|CONTRIBUTING|SECURITY)", "](", markdown)
