"""An evaluation with a journal that breaks off at an example, or goes on to the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import shardwise as sw

me = sw.connect()

x = np.random.default_rng(1).standard_normal((3000, 4)).astype(np.float32)
broken = int(os.environ.get("BREAK_AT", "-1"))


class Rows:
    """A dataset with an example that cannot be read, on a bad day."""

    def __len__(self):
        return len(x)

    def __getitem__(self, k):
        if k == broken:
            raise OSError(f"example {k} is gone")
        return x[k]


result = sw.evaluate(lambda w, b: (b @ w) ** 2, np.arange(4.0, dtype=np.float32), Rows(), batch=8,
                     journal=Path(sys.argv[1]) / "run.journal")  # fmt: skip
print(float(result).hex(), result.count, result.resumed > 0, result.processes)
