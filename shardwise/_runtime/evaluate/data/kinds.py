"""The kinds of data: arrays, random-access datasets, iterables of batches."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ...._base.errors import ShardingError, UnsupportedError
from ...._base.numbers import device_dtype
from .lists import array_of, leaves_of, refuse_bare
from .mapped import mapped_file
from .source import (
    SAMPLES,
    DataSource,
    common_length,
    empty,
    leaves_of_rows,
    misshapen,
    noted,
    refuse_masked,
    unlike,
)

_END = object()

ENDLESS = 1 << 48
"""A dataset of at least this length is taken for one that repeats without end."""


class ArraySource(DataSource):
    """A tree of array-likes of one length: NumPy, `np.memmap`, zarr, h5py, jax arrays."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        paths, self.structure = jax.tree.flatten_with_path(data)
        leaves = [leaf for _, leaf in paths]
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.length = common_length(names, leaves)
        self.rows = leaves_of_rows(names, leaves)
        self._leaves = [
            _readable(leaf, f"data{name}") for name, leaf in zip(names, leaves, strict=True)
        ]
        self._files = [file for x in self._leaves if (file := mapped_file(x)) is not None]
        self.on_devices = any(map(_is_on_accelerator, leaves))
        self.at_hand = not self._files and all(type(leaf) is np.ndarray for leaf in leaves)
        described = ", ".join(f"{row.label}: {row}" for row in self.rows)
        self.label = f"{self.length} examples of {described}"

    def read(self, start: int, stop: int) -> list[Any]:
        stop = min(stop, self.length or 0)
        for file in self._files:
            file.check()
        return [_slice(leaf, start, stop) for leaf in self._leaves]


class ExampleSource(DataSource):
    """A random-access dataset: `__len__` and `__getitem__`, or `__getitems__` where it has it."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data
        self._many = getattr(data, "__getitems__", None)
        self.length = len(data)
        self.label = f"{type(data).__name__} of {self.length} examples"
        if not self.length:
            raise empty(self.label)
        if self.length >= ENDLESS:
            raise _endless(self.length, type(data).__name__)
        with noted(f"reading example 0 of {self.label}"):
            first = self._example(0)
        location = f"example 0 of {self.label}"
        refuse_bare(first, location)
        paths, self.structure = leaves_of(first)
        if not paths:
            raise _bare(f"example 0 is {first!r}", f"{self.label}")
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        arrays = [
            array_of(leaf, location, name) for name, (_, leaf) in zip(names, paths, strict=True)
        ]
        self._dtypes = [array.dtype for array in arrays]
        self.rows = leaves_of_rows(names, arrays, location, rows=0)

    def read(self, start: int, stop: int) -> list[Any]:
        """Read examples; each is copied before the next is read, which may reuse its memory."""
        indices = range(start, min(stop, self.length or 0))
        columns = [
            np.empty((len(indices), *row.shape), dtype)
            for row, dtype in zip(self.rows, self._dtypes, strict=True)
        ]
        for place, (index, example) in enumerate(
            zip(indices, self._examples(indices), strict=True)
        ):
            paths, structure = leaves_of(example)
            if structure != self.structure:
                raise unlike(f"example {index}", structure, self.structure)
            for row, column, (_, leaf) in zip(self.rows, columns, paths, strict=True):
                array = array_of(leaf, f"example {index}", row.path)
                if array.shape != row.shape:
                    raise misshapen(f"example {index}", row, array.shape, row.shape)
                if not np.can_cast(array.dtype, column.dtype, "safe"):
                    raise misshapen(f"example {index}", row, array.dtype, column.dtype)
                column[place] = array
        return columns

    def _examples(self, indices: range) -> Iterable[Any]:
        if self._many is None:
            return map(self._example, indices)
        examples = list(self._many(list(indices)))
        if len(examples) != len(indices):
            raise ShardingError(
                f"it returned {len(examples)} examples for {len(indices)} indices.",
                where=f"__getitems__ of {self.label}",
                rule="It returns one example for each index, in that order.",
            )
        return examples

    def _example(self, index: int) -> Any:
        try:
            return self._data[index]
        except StopIteration as error:  # it would silently end the loop over examples
            raise RuntimeError(f"example {index} of {self.label} raised StopIteration") from error


class BatchSource(DataSource):
    """An iterable of batches of any sizes, split into steps.

    Batches are copied as they come, since an iterator may reuse its memory. They are kept until
    they are read; or, if the batch of the run may still be halved after an out-of-memory error,
    until they are released.
    """

    def __init__(self, data: Iterable[Any]) -> None:
        super().__init__()
        self.label = f"batches of {type(data).__name__}"
        self._batches: Iterator[Any] = iter(data)
        self._owns_iterator = self._batches is not data
        self._buffered: list[tuple[int, list[Any]]] = []
        self._lock = threading.Lock()
        self._drawn = 0  # examples drawn so far
        self._number = 0  # batches drawn so far
        self._released = 0
        self._ended = False
        self.length = None
        self.rows = []
        with noted(f"reading the first of the {self.label}"):
            while not self._drawn:
                if not self._draw():
                    raise empty(self.label)
        self.chunk = self._drawn
        # Copies, since a view would keep the whole batch in memory.
        self._first = [leaf[:SAMPLES].copy() for leaf in self._buffered[0][1]]

    def read(self, start: int, stop: int) -> list[Any]:
        while self._drawn < stop and self._draw():
            pass
        with self._lock:
            batches = list(self._buffered)
        parts = [
            [leaf[max(start - first, 0) : stop - first] for leaf in leaves]
            for first, leaves in batches
            if first < stop and first + len(leaves[0]) > start
        ]
        if not self.retains:
            self.release(stop)
        del batches
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return [np.empty((0, *row.shape), row.dtype) for row in self.rows]
        return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]

    def release(self, start: int) -> None:
        with self._lock:
            self._released = max(start, self._released)
            self._buffered = [(at, x) for at, x in self._buffered if at + len(x[0]) > start]

    def final_length(self) -> int | None:
        return self._drawn if self._ended else None

    def close(self) -> None:
        """Close the iterator, unless it belongs to the caller."""
        close = getattr(self._batches, "close", None)
        if callable(close) and self._owns_iterator:
            with contextlib.suppress(ValueError):  # a generator that is stuck cannot be closed
                close()

    def samples(self) -> list[Any]:
        return self._first

    def _draw(self) -> bool:
        """Take the next batch; False at the end."""
        batch = _END if self._ended else next(self._batches, _END)
        if batch is _END:
            self._ended = True
            return False
        leaves = self._checked(batch)
        self._number += 1
        first, self._drawn = self._drawn, self._drawn + len(leaves[0])
        with self._lock:
            if self._drawn > max(first, self._released):
                self._buffered.append((first, leaves))
        return True

    def _checked(self, batch: Any) -> list[Any]:
        location = f"batch {self._number}"
        paths, structure = leaves_of(batch, whole=False)
        if not paths:
            raise _bare(f"{location} is {batch!r}", self.label)
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        leaves = [_copy(leaf, location, name) for name, (_, leaf) in zip(names, paths, strict=True)]
        common_length(names, leaves, location)
        if not self.rows:
            self.structure = structure
            self.rows = leaves_of_rows(names, leaves, location)
        if structure != self.structure:
            raise unlike(location, structure, self.structure)
        for row, leaf in zip(self.rows, leaves, strict=True):
            if leaf.shape[1:] != row.shape:
                raise misshapen(location, row, leaf.shape, ("batch", *row.shape))
            if device_dtype(leaf.dtype, row.label) != row.dtype:
                raise misshapen(location, row, leaf.dtype, row.dtype)
        return leaves


def open_source(data: Any) -> DataSource:
    """Return the source for this kind of data.

    Args:
        data: A pytree of array-likes, a random-access dataset or an iterable of batches.
    """
    if isinstance(data, list):
        return _open_list(data)
    leaves = [] if isinstance(data, Iterator) else jax.tree.leaves(data)
    if leaves and all(hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves):
        return ArraySource(data)
    if isinstance(data, Mapping) and _is_opaque(data):
        raise _a_mapping(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and _is_opaque(data):
        return ExampleSource(data)
    if hasattr(data, "__iter__") and _is_opaque(data):
        return BatchSource(data)
    _refuse_non_array(data)
    raise UnsupportedError(
        f"got {type(data).__name__}, which is not a supported kind of data.",
        where="argument 'data'",
        rule="It is a pytree of arrays of one length, a dataset with __len__ and __getitem__, "
        "or an iterable of batches.",
        remedy="for example {'x': x, 'y': y} with NumPy arrays.",
    )


def _refuse_non_array(data: Any) -> None:
    """Raise for a leaf of a tree that is not an array, often a list."""
    if isinstance(data, Iterator) or _is_opaque(data):
        return
    for path, leaf in jax.tree.leaves_with_path(data, is_leaf=lambda x: isinstance(x, list)):
        name = f"data{jax.tree_util.keystr(path)}"
        if path and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise UnsupportedError(
                f"{name} is of type {type(leaf).__name__}, not an array.",
                where="argument 'data'",
                rule="In a tree every leaf is an array, with one row per example.",
                remedy=f"np.asarray({name}), if it has one row per example.",
            )


def _a_mapping(data: Mapping[Any, Any]) -> UnsupportedError:
    kind = type(data)
    return UnsupportedError(
        f"got {kind.__module__.partition('.')[0]}.{kind.__name__}, a mapping that is not a pytree.",
        where="argument 'data'",
        rule="A batch has the structure of the data: a dict of arrays, not of files or groups.",
        remedy="name the arrays: {'x': data['x'], 'y': data['y']}; they are read row by row.",
    )


def _open_list(data: list[Any]) -> DataSource:
    """Return a list as a dataset of examples; raise for a list of arrays, which is ambiguous."""
    if not data:
        raise empty("an empty list")
    if getattr(data[0], "shape", ()):
        raise UnsupportedError(
            f"a list of {len(data)} arrays.",
            where="argument 'data'",
            rule="It could be a batch of several leaves or a dataset of examples.",
            remedy="a tuple of arrays for a batch, np.stack(data) for examples, "
            "iter(data) if these are batches.",
        )
    return ExampleSource(data)


def _is_opaque(data: Any) -> bool:
    """Return whether this is not a builtin container, text or None."""
    return not isinstance(data, dict | tuple | str | bytes) and data is not None


def _readable(leaf: Any, label: str) -> Any:
    """Return an array to slice: jax arrays in host memory as NumPy, whose slices are views."""
    refuse_masked(leaf, label)
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        raise UnsupportedError(
            f"a jax array {leaf.dtype}{list(leaf.shape)} that is split over the processes.",
            where="argument 'data'",
            rule="Each process reads the rows of its own steps, from the start of the data.",
            remedy="give the whole data as NumPy, np.memmap or a dataset in every process.",
        )
    if isinstance(leaf, jax.Array) and not _is_on_accelerator(leaf):
        return np.asarray(leaf)
    return leaf


def _is_on_accelerator(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and any(d.platform != "cpu" for d in leaf.devices())


def _slice(leaf: Any, start: int, stop: int) -> Any:
    if isinstance(leaf, jax.Array):
        return _gather(leaf, start, stop - start)
    rows = leaf[start:stop]
    return rows if isinstance(rows, np.ndarray) else np.asarray(rows)


@functools.partial(jax.jit, static_argnums=2)
def _gather(leaf: jax.Array, start: int, rows: int) -> jax.Array:
    """Return rows of an array on the devices, without a copy to the host."""
    return jax.lax.dynamic_slice_in_dim(leaf, start, rows)


def _copy(leaf: Any, where: str, name: str) -> np.ndarray:
    """Return a copy of an array; a jax array is immutable and needs none."""
    if not isinstance(leaf, jax.Array):
        return np.array(array_of(leaf, where, name))  # np.array copies a torch tensor too
    device_dtype(leaf.dtype, "a batch of the data")
    return np.asarray(leaf)


def _endless(length: int, kind: str) -> ShardingError:
    return ShardingError(
        f"its length is {length}: it repeats without end.",
        where=f"argument 'data' ({kind})",
        rule="Every example is evaluated once.",
        remedy="remove repeat(), or use repeat(1).",
    )


def _bare(what: str, label: str) -> ShardingError:
    return ShardingError(
        f"{what}, without an array.",
        where=label,
        rule="An example is a pytree of numbers and arrays.",
        remedy="remove such examples, or replace them by numbers.",
    )
