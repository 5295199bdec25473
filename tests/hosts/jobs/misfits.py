"""What is refused when several processes train: a folder of their own, data that ends early."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import shardwise as sw

me = sw.connect()

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

step = sw.data_parallel(lambda p, b: (b @ p) ** 2, optax.sgd(0.1), feed="own")
rows = np.ones((4, 3), np.float32)


def tell(**options):
    try:
        sw.fit(step, step.init(jnp.ones(3)), [rows], progress=False, **options)
    except sw.ShardwiseError as error:
        print(me.process, str(error).splitlines()[0], flush=True)


folder = Path(sys.argv[1]) / f"host-{me.process}"  # as if each machine had a disk of its own
tell(steps=3, checkpoint=folder)
tell(steps=3 + me.process)


class Counted:
    """Data with a length, of which process 1 has less, that says how often it was begun."""

    begun = 0

    def __len__(self):
        return 7 - 3 * me.process

    def __iter__(self):
        self.begun += 1
        return iter([rows] * len(self))


counted = Counted()
sw.fit(step, step.init(jnp.ones(3)), counted, steps=12, progress=None if me.first else False)
print(me.process, "begun", counted.begun, flush=True)
ends = iter([rows] * (7 if me.process == 1 else 100))
sw.fit(step, step.init(jnp.ones(3)), ends, steps=50, progress=False)
