"""The small runs that a campaign damages, kills and interrupts: `evaluate` and `fit` in all kinds.

Each gives its result as text, to the last bit. Importing this file imports JAX but starts none of
its devices, so that a process may be forked before it does.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401  what takes long to import is imported once
from flax import nnx

import shardwise as sw
from shardwise._runtime import evaluate as _evaluate  # noqa: F401
from shardwise._runtime import train as _train  # noqa: F401

EVALUATIONS = ("arrays", "memmap", "dataset", "iterable")
TRAININGS = ("plain", "nnx")
KINDS = EVALUATIONS + TRAININGS

shift = 0
"""Added to all data: another run of the same shapes."""

LENGTH, BATCH = 1003, 16
STEPS, EVERY = 12, 3


def _nothing(phase: str) -> None:
    """Nobody listens."""


notice: Callable[[str], None] = _nothing
"""Called with what a run is doing: `begun`, `drawing`, `evaluating`, `stuck`, `held`."""

stuck_at = -1
"""The number of the pause, if any, from which on the data does not answer."""

_pauses = 0


def rest(pause: float) -> None:
    """What makes data slow."""
    global _pauses
    _pauses += 1
    if 0 <= stuck_at <= _pauses:
        notice("stuck")
        time.sleep(60.0)
    time.sleep(pause)


@contextlib.contextmanager
def other_data() -> Iterator[None]:
    """Meanwhile, runs are of other data with the same shapes."""
    global shift
    shift = 1
    try:
        yield
    finally:
        shift = 0


def hold(_: Any) -> None:
    """For `progress` or `callbacks`: something that a signal does not break off."""
    notice("held")
    time.sleep(60.0)


@flax.struct.dataclass
class Average:
    """A metric object with the protocol of CLU and metrax."""

    total: Any
    count: Any

    def merge(self, other: Average) -> Average:
        return Average(self.total + other.total, self.count + other.count)

    def compute(self) -> Any:
        return self.total / self.count


def metrics(w: Any, batch: Any, mask: Any) -> dict[str, Any]:
    values = jnp.sin(batch * w)
    average = Average(jnp.sum(jnp.where(mask, values, 0)), jnp.sum(mask, dtype=jnp.int32))
    return {"mean": values, "sum": sw.Sum(batch), "max": sw.Max(values), "object": average}


class Slow:
    """Rows that take their time: an array, a dataset of examples and an iterable of batches."""

    dtype = np.dtype(np.int32)

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def rows(self, start: int, stop: int) -> np.ndarray:
        # Before it begins, single rows are read to recognise the data by, and the first batch.
        if stop - start > 1 and start:
            notice("drawing")
        rest(self.pause)
        return np.arange(start, min(stop, LENGTH), dtype=np.int32) + np.int32(shift)


class Array(Slow):
    shape = (LENGTH,)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.rows(rows.start, rows.stop)


class Dataset(Slow):
    last = -1

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> np.int32:
        if index % BATCH == 1 and self.last == index - 1:
            notice("drawing")
            rest(self.pause)
        self.last = index
        return np.int32(index)


class Batches(Slow):
    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, LENGTH, 23):
            yield self.rows(start, start + 23)


class Mapped(Slow):
    """A file that is mapped, behind the pause."""

    shape = (LENGTH,)

    def __init__(self, pause: float, folder: Path) -> None:
        super().__init__(pause)
        path = folder / "data.npy"
        if not path.exists():
            np.save(path, np.arange(LENGTH, dtype=np.int32))
        self.array = np.load(path, mmap_mode="r")

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.rows(rows.start, rows.stop)
        return self.array[rows]


def _data(kind: str, pause: float, folder: Path) -> Any:
    kinds = {"arrays": Array, "dataset": Dataset, "iterable": Batches}
    return Mapped(pause, folder) if kind == "memmap" else kinds[kind](pause)


def evaluate(kind: str, folder: Path, pause: float = 0.0, **options: Any) -> dict[str, Any]:
    """One evaluation with a journal; its metrics in hexadecimal, and what it says of itself."""
    result = sw.evaluate(
        metrics,
        np.float32(0.37),
        _data(kind, pause, folder.parent),
        batch=BATCH,
        journal=folder / "journal.db",
        **{"progress": False, **options},
    )
    bits = {name: float(value).hex() for name, value in result.items()}
    return {"bits": json.dumps(bits), "count": result.count, "resumed": result.resumed}


TRUE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


class Rows:
    """Five batches, again and again."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __iter__(self) -> Iterator[Any]:
        rng = np.random.default_rng(0)
        for number in range(5):
            if number:  # the first step is compiled after the first draw
                notice("drawing")
            rest(self.pause)
            x = rng.normal(size=(10, 4)).astype(np.float32)
            yield {"x": x, "y": x @ TRUE + np.float32(shift)}


def _losses(model: Any, batch: Any, keys: Any) -> Any:
    """Per-row losses with noise, so that the keys of a resumed run matter too."""
    noise = jax.vmap(lambda key: jax.random.normal(key))(keys)
    y = model(batch["x"]) if callable(model) else batch["x"] @ model["w"]
    return ((y - batch["y"] + 0.1 * noise[:, None]) ** 2).mean(-1)


def _error(model: Any, batch: Any) -> Any:
    y = model(batch["x"]) if callable(model) else batch["x"] @ model["w"]
    return ((y - batch["y"]) ** 2).mean(-1)


@functools.cache
def _step(kind: str) -> Any:
    """Made once, so that a process compiles once however many trainings it runs."""
    if kind == "plain":
        mesh = sw.mesh(data=3)
        return sw.data_parallel(_losses, optax.adam(0.05), rng="example", mesh=mesh)
    return sw.nnx.data_parallel(_losses, rng="example", mesh=sw.mesh(data=2))


def _begin(kind: str) -> Any:
    if kind == "plain":
        return _step(kind).init({"w": np.zeros((4, 3), np.float32)})
    model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.2, rngs=nnx.Rngs(1)))
    return model, nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)


def fit(kind: str, folder: Path, pause: float = 0.0, **options: Any) -> dict[str, Any]:
    """One training with checkpoints, a log and an evaluation inside; all bits of its arrays."""
    test = next(iter(Rows(0.0)))

    def evaluated(state: Any) -> Any:
        notice("evaluating")
        time.sleep(2 * pause)
        model = state.params if kind == "plain" else state[0]
        return sw.evaluate(_error, model, test, batch=4, progress=False)

    settings = {"steps": STEPS, "every": EVERY, "evaluate": {"test": evaluated}, "progress": False}
    state = sw.fit(
        _step(kind), _begin(kind), Rows(pause), checkpoint=folder, **{**settings, **options}
    )
    arrays = state if kind == "plain" else nnx.state(state, nnx.Not(nnx.RngKey))
    bits = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(arrays))
    return {"bits": bits.hex()}


def run(kind: str, folder: Path, pause: float = 0.0, **options: Any) -> dict[str, Any]:
    """One run of a kind."""
    folder.mkdir(parents=True, exist_ok=True)
    notice("begun")
    return (evaluate if kind in EVALUATIONS else fit)(kind, folder, pause, **options)


def told_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a log without what the clock says, nor their checksums."""
    path = folder / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k not in ("seconds", "crc")} for row in rows]
