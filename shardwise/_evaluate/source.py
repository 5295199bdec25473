"""Where examples come from: one small interface over arrays, datasets and iterables.

A source is read by one thread, step by step, from the first example to the last. `read` gives the
rows of a step as host arrays; where it can, these are views, so that the first copy of the data is
the one to the device.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .._errors import ShardingError, UnsupportedError, explain_error

_SAMPLES = 16
_END = object()


@dataclass(frozen=True)
class Row:
    """One leaf of an example.

    Attributes:
        path: Where it is in the batch, such as `['x']`; empty if the batch is one array.
        shape: Its shape, without the batch.
        dtype: The dtype it has on the device.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def label(self) -> str:
        return f"data{self.path}"

    @property
    def size(self) -> int:
        """Bytes of one example's leaf on the device."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Source:
    """Examples that can be read in order.

    Attributes:
        structure: The tree structure of a batch.
        rows: Its leaves.
        length: The number of examples, or None if only reading tells.
        label: What it is, for messages.
        chunk: The natural size of a step, if the source has one.
    """

    structure: Any
    rows: list[Row]
    length: int | None
    label: str
    chunk: int | None = None

    def read(self, start: int, stop: int) -> list[Any]:
        """The rows from start to stop as host arrays; fewer, or none, only at the end."""
        raise NotImplementedError

    def release(self, start: int) -> None:
        """Say that nothing before `start` will be read again."""

    def close(self) -> None:
        """Let go of what the source holds open."""

    def samples(self) -> list[Any]:
        """A few examples spread over the data, to recognise it by."""
        assert self.length is not None
        count = min(self.length, _SAMPLES)
        spread = [k * (self.length - 1) // max(count - 1, 1) for k in range(count)]
        parts = [self.read(k, k + 1) for k in spread]
        return [np.concatenate([np.asarray(p) for p in leaf]) for leaf in zip(*parts, strict=True)]

    def fingerprint(self) -> dict[str, str]:
        """What identifies the data: length, dtypes, shapes and a hash of some of its content."""
        found = {} if self.length is None else {"the length of the data": str(self.length)}
        for row, sample in zip(self.rows, self.samples(), strict=True):
            found[row.label] = str(row)
            content = np.ascontiguousarray(sample).tobytes()
            found[f"the content of {row.label}"] = hashlib.sha256(content).hexdigest()[:16]
        return found


class ArraySource(Source):
    """A tree of array-likes of one length: NumPy, `np.memmap`, zarr, h5py, jax arrays."""

    def __init__(self, data: Any) -> None:
        paths, self.structure = jax.tree.flatten_with_path(data)
        self._leaves = [_readable(leaf) for _, leaf in paths]
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.length = _common_length(names, self._leaves)
        self.rows = [
            Row(name, tuple(leaf.shape[1:]), device_dtype(leaf.dtype, f"data{name}"))
            for name, leaf in zip(names, self._leaves, strict=True)
        ]
        described = ", ".join(f"{row.label}: {row}" for row in self.rows)
        self.label = f"{self.length} examples of {described}"

    def read(self, start: int, stop: int) -> list[Any]:
        return [_host(leaf[start:stop]) for leaf in self._leaves]


class ExampleSource(Source):
    """A random-access dataset: `__len__` and `__getitem__`, or `__getitems__` where it has it."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._many = getattr(data, "__getitems__", None)
        self.length = len(data)
        self.label = f"{type(data).__name__} of {self.length} examples"
        if not self.length:
            raise empty(self.label)
        paths, self.structure = jax.tree.flatten_with_path(data[0])
        self.rows = [
            _row(path, np.asarray(leaf), f"example 0 of {self.label}") for path, leaf in paths
        ]

    def read(self, start: int, stop: int) -> list[Any]:
        wanted = range(start, min(stop, self.length or 0))
        examples = self._many(list(wanted)) if self._many else [self._data[k] for k in wanted]
        columns: list[list[Any]] = [[] for _ in self.rows]
        for index, example in zip(wanted, examples, strict=True):
            leaves, structure = jax.tree.flatten(example)
            if structure != self.structure:
                raise _unlike(f"example {index}", structure, self.structure)
            for row, column, leaf in zip(self.rows, columns, leaves, strict=True):
                array = np.asarray(leaf)
                if array.shape != row.shape:
                    raise _misshapen(f"example {index}", row, array.shape, row.shape)
                column.append(array)
        return [np.stack(column) for column in columns]


class BatchSource(Source):
    """An iterable of batches of any sizes, cut into steps.

    Batches are kept until they are released, so that steps can be read again, in smaller pieces,
    after the device ran out of memory. Batches that are steps already are passed on uncopied.
    """

    def __init__(self, data: Iterable[Any]) -> None:
        self.label = f"batches of {type(data).__name__}"
        self._batches: Iterator[Any] = iter(data)
        self._held: list[tuple[int, list[Any]]] = []
        self._lock = threading.Lock()
        self._drawn = 0  # examples drawn so far
        self._number = 0  # batches drawn so far
        self._released = 0
        self._ended = False
        self.length = None
        self.rows = []
        while not self._drawn:
            if not self._draw():
                raise empty(self.label)
        self.chunk = self._drawn
        self._first = [leaf[:_SAMPLES] for leaf in self._held[0][1]]

    def read(self, start: int, stop: int) -> list[Any]:
        while self._drawn < stop and self._draw():
            pass
        with self._lock:
            held = list(self._held)
        parts = [
            [leaf[max(start - first, 0) : stop - first] for leaf in leaves]
            for first, leaves in held
            if first < stop and first + len(leaves[0]) > start
        ]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return [np.empty((0, *row.shape), row.dtype) for row in self.rows]
        return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]

    def release(self, start: int) -> None:
        with self._lock:
            self._released = start
            self._held = [(at, x) for at, x in self._held if at + len(x[0]) > start]

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if callable(close):
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
                self._held.append((first, leaves))
        return True

    def _checked(self, batch: Any) -> list[Any]:
        where = f"batch {self._number}"
        paths, structure = jax.tree.flatten_with_path(batch)
        leaves = [_host(leaf) for _, leaf in paths]
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        _common_length(names, leaves, where)
        if not self.rows:
            self.structure = structure
            self.rows = [
                Row(name, leaf.shape[1:], device_dtype(leaf.dtype, f"data{name} in {where}"))
                for name, leaf in zip(names, leaves, strict=True)
            ]
        if structure != self.structure:
            raise _unlike(where, structure, self.structure)
        for row, leaf in zip(self.rows, leaves, strict=True):
            if leaf.shape[1:] != row.shape:
                raise _misshapen(where, row, leaf.shape, ("batch", *row.shape))
            if device_dtype(leaf.dtype, row.label) != row.dtype:
                raise _misshapen(where, row, leaf.dtype, row.dtype)
        return leaves


def open_source(data: Any) -> Source:
    """Find out what kind of data this is.

    Args:
        data: A pytree of array-likes, a random-access dataset or an iterable of batches.
    """
    if isinstance(data, list):
        return _open_list(data)
    leaves = [] if isinstance(data, Iterator) else jax.tree.leaves(data)
    if leaves and all(hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves):
        return ArraySource(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and _is_opaque(data):
        return ExampleSource(data)
    if hasattr(data, "__iter__") and _is_opaque(data):
        return BatchSource(data)
    raise UnsupportedError(
        explain_error(
            f"got {type(data).__name__}, which is none of the kinds of data.",
            where="argument 'data'",
            rule="It is a pytree of arrays of one length, a dataset with __len__ and __getitem__, "
            "or an iterable of batches.",
            remedy="{'x': x, 'y': y} with NumPy arrays, say.",
        )
    )


def _open_list(data: list[Any]) -> Source:
    """A list is a dataset of examples; a list of arrays could be two things, and is refused."""
    if not data:
        raise empty("an empty list")
    if getattr(data[0], "shape", ()):
        raise UnsupportedError(
            explain_error(
                f"a list of {len(data)} arrays.",
                where="argument 'data'",
                rule="It could be a batch of several leaves or a dataset of examples.",
                remedy="a tuple of arrays for the one, np.stack(data) for the other, "
                "iter(data) if these are batches.",
            )
        )
    return ExampleSource(data)


def _is_opaque(data: Any) -> bool:
    """Not a container of JAX, nor text."""
    return not isinstance(data, dict | tuple | str | bytes) and data is not None


def device_dtype(dtype: Any, where: str) -> np.dtype:
    """The dtype that data of this dtype has on a device, where it can be there at all."""
    dtype = _numpy_dtype(dtype)
    if dtype.kind in "OSUMmV" and not jax.dtypes.issubdtype(dtype, np.number):
        raise UnsupportedError(
            explain_error(
                f"its dtype is {dtype}.",
                where=where,
                rule="Only numbers and booleans can be put on a device.",
                remedy="leave this leaf out of the data, or encode it as numbers.",
            )
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _numpy_dtype(dtype: Any) -> np.dtype:
    if type(dtype).__module__.split(".")[0] == "torch":
        return np.dtype(str(dtype).removeprefix("torch."))
    return np.dtype(dtype)


def _readable(leaf: Any) -> Any:
    """A jax array is copied to the host once: reading it there is a view."""
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _host(leaf: Any) -> Any:
    return leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)


def _row(path: Any, leaf: np.ndarray, where: str) -> Row:
    name = jax.tree_util.keystr(path)
    return Row(name, leaf.shape, device_dtype(leaf.dtype, f"data{name} in {where}"))


def _common_length(names: Sequence[str], leaves: Sequence[Any], where: str = "") -> int:
    head = f"{where}, argument 'data'" if where else "argument 'data'"
    lengths = {f"data{n}": x.shape[0] if x.shape else None for n, x in zip(names, leaves)}
    if len(set(lengths.values())) == 1 and None not in lengths.values():
        if not where and not leaves[0].shape[0]:
            raise empty("arrays of length 0")
        return int(leaves[0].shape[0])
    listed = "".join(
        f"\n    - {name}: {'a scalar' if n is None else f'{n} rows'}" for name, n in lengths.items()
    )
    raise ShardingError(
        explain_error(
            f"its leaves have no common number of rows:{listed or ' there are none.'}",
            where=head,
            rule="Every leaf has one row per example along its first axis.",
            remedy="bring the leaves to one length; a dataset of single examples has to be batched "
            "or be given with __len__ and __getitem__.",
        )
    )


def empty(label: str) -> ShardingError:
    return ShardingError(
        explain_error(
            f"there are no examples in it ({label}).",
            where="argument 'data'",
            rule="A mean over nothing has no value.",
            remedy="check the path or the filter the data comes from.",
        )
    )


def _unlike(where: str, found: Any, expected: Any) -> ShardingError:
    return ShardingError(
        explain_error(
            f"its structure is {found}.",
            where=f"{where} of the data",
            rule=f"All have the structure of the first: {expected}.",
        )
    )


def _misshapen(where: str, row: Row, found: Any, expected: Any) -> ShardingError:
    def text(x: Any) -> str:
        return str(list(x)).replace("'", "") if isinstance(x, tuple) else str(x)

    return ShardingError(
        explain_error(
            f"{row.label} is {text(found)}, expected {text(expected)}.",
            where=f"{where} of the data",
            rule="Every example has the shape and dtype of the first.",
            remedy="pad examples to one shape, with a mask that fn uses as weights.",
        )
    )
