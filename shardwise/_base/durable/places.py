"""Check whether a file can be written, before the work whose result it gets."""

from __future__ import annotations

import os
from pathlib import Path


def hindrance(path: Path) -> str | None:
    """Return what prevents a file from being written there, as a sentence; None if nothing does."""
    if path.is_dir():
        return "this is a folder."
    if not path.parent.exists():
        return f"there is no folder {str(path.parent)!r}."
    if not path.parent.is_dir():
        return f"{str(path.parent)!r} is not a folder."
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "it cannot be written to."
    return None
