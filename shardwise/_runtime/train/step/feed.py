"""The batches of a step on the devices of several processes.

Every process runs the same program on arrays over all devices, and puts its part on its own
devices. No rows are sent between hosts, and a step waits for other processes only in its one
reduction. The processes agree once, before the first step, on the shape of a batch and compare
their parameters, through the coordination service.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .... import _jax
from ...._base.errors import ShardingError, UnsupportedError
from ...hosts import others
from .layout import BatchLayout, fill_up


class Feed:
    """Builds one global batch from the batches of the processes.

    Args:
        layout: The mesh and how the rows are split over it.
        kind: `own`, `whole`, or None if it was not given.
    """

    def __init__(self, layout: BatchLayout, kind: str | None) -> None:
        self._layout, self.kind = layout, kind
        owners = {} if not isinstance(layout.mesh, Mesh) else _owners(layout)
        self.shared = len({p for processes in owners.values() for p in processes}) > 1
        self._places = [k for k, processes in owners.items() if jax.process_index() in processes]
        self._owners = owners
        self._capacity = 0  # rows of each device, agreed on with the first batch
        self._padded = True
        self._counted: tuple[int, Any] = (-1, None)
        if self.shared or (owners and not self._places):
            _refuse_left_out(owners)

    def __call__(
        self, batch: Any, rows: int, fits: Callable[[bool, Any, Any], None]
    ) -> tuple[Any, Any, bool]:
        """Return the global batch, the number of real rows, and whether there may be padding.

        Args:
            batch: The batch of this process.
            rows: Its number of rows.
            fits: Traces the step for a batch with or without padding; raises if that fails.
        """
        sharding = NamedSharding(self._layout.mesh, P(self._layout.axis))
        if any(map(_is_elsewhere, jax.tree.leaves(batch))):
            return self._placed(batch, rows, sharding)
        if self.kind == "own":
            return self._own(batch, rows, sharding, fits)
        if self.kind is None:
            raise ShardingError(
                f"feed= is missing: {others.count()} processes pass batches",
                where="sw.data_parallel or sw.nnx.data_parallel, on several processes",
                rule="Each process passes its own rows, or all pass the same batch.",
                remedy="sw.data_parallel(..., feed='own') for readers that split the data by "
                "process, feed='whole' where every process has the same batch; or jax arrays "
                "on the whole mesh.",
            )
        batch, padded = fill_up(batch, rows, self._layout.parts)
        placed = jax.tree.map(lambda leaf: _cut(np.asarray(leaf), sharding), batch)
        return placed, rows, padded

    def _placed(self, batch: Any, rows: int, sharding: NamedSharding) -> tuple[Any, Any, bool]:
        """Return a batch that is on all devices already."""
        if rows % self._layout.parts:
            raise ShardingError(
                f"it is a jax array of {rows} rows on several processes",
                where="the batch",
                rule=f"Such a batch divides evenly over {self._layout}.",
                remedy=f"a multiple of {self._layout.parts} rows; or NumPy arrays, of any "
                "number of rows, with feed='own' or 'whole'.",
            )
        return jax.device_put(batch, sharding), rows, False

    def _own(
        self, batch: Any, rows: int, sharding: NamedSharding, fits: Callable[..., None]
    ) -> tuple[Any, Any, bool]:
        if not self._capacity:
            self._agree(batch, rows, fits)
        capacity = self._capacity * len(self._places)
        if rows > capacity or (rows < capacity and not self._padded):
            raise self._unfit(rows, capacity)
        local, _ = fill_up(batch, rows, capacity) if rows < capacity else (batch, False)
        placed = jax.tree.map(lambda leaf: self._deal(np.asarray(leaf), sharding), local)
        if not self._padded:
            return placed, rows * len(self._owners) // len(self._places), False
        if self._counted[0] != rows:  # nearly always as many as in the step before
            self._counted = rows, self._count(rows, sharding)
        return placed, self._counted[1], True

    def _count(self, rows: int, sharding: NamedSharding) -> jax.Array:
        """Return the number of real rows of each device."""
        ordinal = {place: k for k, place in enumerate(self._places)}
        real_rows = np.clip(rows - np.arange(len(self._places)) * self._capacity, 0, self._capacity)

        def count(index: Any) -> np.ndarray:
            places = range(*index[0].indices(len(self._owners)))
            return real_rows[[ordinal[k] for k in places]].astype(np.int32)

        return jax.make_array_from_callback((len(self._owners),), sharding, count)

    def _deal(self, leaf: np.ndarray, sharding: NamedSharding) -> jax.Array:
        """Put the rows of this process on its devices, in mesh order."""
        leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
        ordinal = {place: k for k, place in enumerate(self._places)}
        size = self._capacity
        shape = (size * len(self._owners), *leaf.shape[1:])

        def part(index: Any) -> np.ndarray:
            first = (index[0].start or 0) // size
            last = (index[0].stop or shape[0]) // size
            rows = [leaf[ordinal[k] * size : (ordinal[k] + 1) * size] for k in range(first, last)]
            return rows[0] if len(rows) == 1 else np.concatenate(rows)

        return jax.make_array_from_callback(shape, sharding, part)

    def _agree(self, batch: Any, rows: int, fits: Callable[..., None]) -> None:
        """Agree on the rows per device: those of the process with the largest batch."""
        if any(len(processes) > 1 for processes in self._owners.values()):
            raise UnsupportedError(
                f"several processes share a place along {self._layout.axis!r}",
                where="feed='own'",
                rule="The rows of one position come from one process.",
                remedy="put the other axes of the mesh within the machines, or feed='whole'.",
            )
        kind = [
            f"batch{jax.tree_util.keystr(path)}: {np.asarray(leaf).dtype}{list(leaf.shape[1:])}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
        ]
        answers = others.gather([rows, len(self._places), kind], "the first batch")
        for number, (_, _, structure) in enumerate(answers):
            if structure != answers[0][2]:
                raise ShardingError(
                    f"process 0 has {', '.join(answers[0][2])}, process {number} has "
                    f"{', '.join(structure)}",
                    where="the first batch",
                    rule="The rows of all processes are rows of one batch.",
                    remedy="give them one structure, shape and dtype.",
                )
        step = self._layout.accumulate
        self._capacity = max(-(-n // (places * step)) * step for n, places, _ in answers)
        exact = all(n == places * self._capacity for n, places, _ in answers)
        length = self._capacity * len(self._owners)
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (length, *np.shape(leaf)[1:]), jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
            ),
            batch,
        )
        try:
            fits(True, shapes, jax.ShapeDtypeStruct((len(self._owners),), jnp.int32))
        except ShardingError:
            if not exact:
                raise
            self._padded = False  # such as a scalar loss: every batch has to be full

    def _unfit(self, rows: int, here: int) -> ShardingError:
        rule = (
            f"The largest first batch fixes the size: a process passes "
            f"{'up to ' if self._padded else ''}{here} rows in every step."
        )
        if not self._padded:
            rule += " The loss cannot mask padding, so each batch has to be full."
        return ShardingError(
            f"it has {rows} rows",
            where=f"the batch of process {others.index()}",
            rule=rule,
            remedy="begin with the largest batch; losses per row allow smaller ones.",
        )


def spread(arrays: Any, sharding: NamedSharding) -> Any:
    """Replicate arrays that all processes hold; raise if they differ.

    `jax.device_put` would compare them, too, by sending all of them.
    """
    paths, structure = jax.tree.flatten_with_path(arrays)
    local = [None if _is_elsewhere(x) else np.asarray(without_keys(x)) for _, x in paths]
    sums = [
        (jax.tree_util.keystr(path), zlib.crc32(np.ascontiguousarray(array).tobytes()))
        for (path, _), array in zip(paths, local, strict=True)
        if array is not None
    ]
    if sharding.is_fully_replicated and sums:
        _refuse_unlike(sums)
    new = []
    for (_, leaf), array in zip(paths, local, strict=True):
        if array is not None:
            new.append(with_keys(leaf, _cut(array, sharding)))
        else:
            new.append(leaf if leaf.sharding == sharding else jax.device_put(leaf, sharding))
    return jax.tree.unflatten(structure, new)


def _refuse_unlike(sums: list[tuple[str, int]]) -> None:
    """Raise if the arrays of the processes, given by name and checksum, differ."""
    first, *rest = others.gather(sums, "the same arrays")
    for number, checksums in enumerate(rest, 1):
        for expected, actual in itertools.zip_longest(first, checksums):
            if expected != actual:
                raise ShardingError(
                    f"{(expected or actual)[0]} differs between process 0 and process {number}",
                    where="the state of a data-parallel step",
                    rule="All processes start with the same parameters.",
                    remedy="initialize them from the same seed, or load the same file, everywhere.",
                )


def _cut(leaf: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Put the parts of an array on the devices of this process."""
    leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])


def without_keys(leaf: Any) -> Any:
    """Return an array; of keys of `jax.random`, their integers."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def with_keys(leaf: Any, value: Any) -> Any:
    """Return a value like `leaf`: keys, from their integers, if that has keys."""
    if _is_key(leaf):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    return value


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_elsewhere(leaf: Any) -> bool:
    """Return whether an array is also on devices of other processes."""
    return (
        isinstance(leaf, jax.Array)
        and not _jax.is_traced(leaf)
        and not leaf.sharding.is_fully_addressable
    )


def _owners(layout: BatchLayout) -> dict[int, set[int]]:
    """Return, for each position along the data axis, the processes with devices there."""
    assert isinstance(layout.mesh, Mesh)
    by_place = np.moveaxis(layout.mesh.devices, layout.mesh.axis_names.index(layout.axis), 0)
    return {k: {d.process_index for d in np.ravel(x)} for k, x in enumerate(by_place)}


def _refuse_left_out(owners: dict[int, set[int]]) -> None:
    left_out = set(range(others.count())) - set().union(*owners.values())
    if left_out:
        raise ShardingError(
            f"it has no device of process {', '.join(map(str, sorted(left_out)))}",
            where="argument 'mesh'",
            rule="All processes take part in a step, or each has a mesh of its own.",
            remedy="a mesh over jax.devices(), or leave it out.",
        )
