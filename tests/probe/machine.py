"""The files of a made-up machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def build(root: Path, files: Mapping[str, str | dict[str, str] | None]) -> None:
    """Write files below ``root``: a text, a folder (None), or a symbolic link to ``{"link": target}``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif isinstance(content, dict):
            path.symlink_to(content["link"])
        else:
            path.write_text(content if content.endswith("\n") or not content else f"{content}\n")
