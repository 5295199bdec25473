"""Copies of the checkout, for what changes files or runs several times at once."""

from __future__ import annotations

import os
import queue
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "site", "dist", ".fuzz")


def copy_to(folder: Path) -> Path:
    """Copy the checkout, without environments and what is built."""
    return Path(shutil.copytree(ROOT, folder, ignore=LEFT_OUT))


class Copies:
    """Copies in a folder, one for each process at a time, made when they are first needed."""

    def __init__(self, folder: Path):
        self.folder, self.free, self.made = folder, queue.SimpleQueue(), 0

    def take(self) -> Path:
        """Return a copy that nothing else uses; `give_back` it."""
        try:
            return self.free.get_nowait()
        except queue.Empty:
            self.made += 1
            return copy_to(self.folder / f"copy{self.made}")

    def give_back(self, copy: Path) -> None:
        """Let others use it."""
        self.free.put(copy)


def environment(copy: Path, **changed: str | None) -> dict[str, str]:
    """Return the variables of a run in a copy; None removes one."""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(copy), **changed}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return {name: value for name, value in variables.items() if value is not None}
