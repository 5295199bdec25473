"""Files that are mapped into memory: one that shrinks would kill the process that reads on."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...._base.errors import ShardwiseError


@dataclass(frozen=True)
class MappedFile:
    """A file behind an array, and how many bytes of it the array was made of."""

    name: str
    map: mmap.mmap
    size: int

    def check(self) -> None:
        """Raise if the file has become shorter: its missing pages cannot be read, only died of."""
        now = self.map.size()
        if now < self.size:
            raise ShardwiseError(
                f"it has {now} bytes, and had {self.size} when it was mapped.",
                where=f"data, the file {self.name}",
                rule="A file must not become shorter while it is read.",
                remedy="write new data to another file, and rename it into place.",
            )


def mapped_file(array: Any) -> MappedFile | None:
    """Return the file that an array of NumPy is mapped from, if it is."""
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
