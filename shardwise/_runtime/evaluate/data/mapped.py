"""Memory-mapped files: reading a file that was truncated would kill the process."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...._base.errors import ShardwiseError


@dataclass(frozen=True)
class MappedFile:
    """The file behind an array, and the bytes of it that the array uses."""

    name: str
    map: mmap.mmap
    size: int

    def check(self) -> None:
        """Raise if the file has become shorter: reading its missing pages ends in SIGBUS."""
        size = self.map.size()
        if size < self.size:
            raise ShardwiseError(
                f"it has {size} bytes, and had {self.size} when it was mapped.",
                where=f"data, the file {self.name}",
                rule="A file must not become shorter while it is read.",
                remedy="write new data to another file, and rename it into place.",
            )


def mapped_file(array: Any) -> MappedFile | None:
    """Return the file that a NumPy array is mapped from, or None."""
    name, offset = "", 0
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            name = str(array.filename or name)
            offset = getattr(array, "offset", 0) or 0
        array = array.base
    if not isinstance(array, mmap.mmap):
        return None
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    return MappedFile(name or "that it is mapped from", array, start + len(array))
