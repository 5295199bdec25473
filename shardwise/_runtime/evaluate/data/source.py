"""A source of examples: one small interface over arrays, datasets and iterables.

A source is read by one thread, step by step, from the first example to the last. `read` returns the
rows of a step as host arrays; where possible these are views, so that the first copy of the data is
the transfer to the device.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...._base.errors import ShardingError, UnsupportedError, listed, note
from ...._base.numbers import device_dtype

SAMPLES = 16


@dataclass(frozen=True)
class ExampleLeaf:
    """One leaf of an example.

    Attributes:
        path: Its path in the batch, such as `['x']`; empty if the batch is one array.
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


def leaves_of_rows(
    names: Sequence[str], arrays: Sequence[Any], where: str = "", rows: int = 1
) -> list[ExampleLeaf]:
    """Return the leaves of an example.

    Args:
        names: Their paths.
        arrays: The arrays of an example or of a batch.
        where: Which of them, for messages.
        rows: The number of leading axes of the arrays that count examples.
    """
    suffix = f" in {where}" if where else ""
    return [
        ExampleLeaf(name, tuple(x.shape[rows:]), device_dtype(x.dtype, f"data{name}{suffix}"))
        for name, x in zip(names, arrays, strict=True)
    ]


class DataSource:
    """Examples that can be read in order.

    Attributes:
        structure: The tree structure of a batch.
        rows: Its leaves.
        length: The number of examples, or None if it is unknown before the end.
        label: A description, for messages.
        chunk: The natural size of a step, if the source has one.
        on_devices: Whether reading allocates memory on the devices.
        at_hand: Whether all data is in ordinary memory, so that reading returns views immediately.
        reading: A lock held while a thread reads; an abandoned thread may still hold it.
        failure: The error of reading. An iterator that has raised looks as if it had ended.
        retains: Whether rows may have to be read again, in smaller steps.
        rounded: The leaves whose values lost digits in the conversion to the device dtype.
    """

    structure: Any
    rows: list[ExampleLeaf]
    length: int | None
    label: str
    chunk: int | None = None
    on_devices: bool = False
    at_hand: bool = False

    def __init__(self) -> None:
        self.reading = threading.Lock()
        self.failure: Exception | None = None
        self.retains = True
        self.rounded: set[str] = set()

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the rows from start to stop as host arrays; fewer, or none, only at the end."""
        raise NotImplementedError

    def final_length(self) -> int | None:
        """Return the number of examples, if reading has reached the end."""
        return self.length

    def release(self, start: int) -> None:
        """Drop the rows before `start`, which will not be read again."""

    def close(self) -> None:
        """Close the source."""

    def samples(self) -> list[Any]:
        """Return a few evenly spread examples, for the fingerprint."""
        assert self.length is not None
        count = min(self.length, SAMPLES)
        spread = [k * (self.length - 1) // max(count - 1, 1) for k in range(count)]
        parts = [self.read(k, k + 1) for k in spread]
        return [np.concatenate([np.asarray(p) for p in leaf]) for leaf in zip(*parts, strict=True)]

    def fingerprint(self) -> dict[str, str]:
        """Return length, dtypes, shapes and a hash of some examples, which identify the data."""
        facts = {} if self.length is None else {"the length of the data": str(self.length)}
        for row, sample in zip(self.rows, self.samples(), strict=True):
            facts[row.label] = str(row)
            content = np.ascontiguousarray(sample).tobytes()
            facts[f"the content of {row.label}"] = hashlib.sha256(content).hexdigest()[:16]
        return facts


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Add a note to an exception of the data."""
    try:
        yield
    except Exception as error:
        note(error, f"shardwise.evaluate: while {what}")
        raise


def refuse_masked(leaf: Any, where: str) -> None:
    """Raise for an array of `numpy.ma`, whose mask JAX would drop."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise UnsupportedError(
            "a masked array of NumPy.",
            where=where,
            rule="JAX has no masked arrays: the masked values would count.",
            remedy="{'x': x.filled(0), 'kept': ~np.ma.getmaskarray(x)}, and fn returns "
            "(values, batch['kept']): a mask is a weight.",
        )


def common_length(names: Sequence[str], leaves: Sequence[Any], where: str = "") -> int:
    head = f"{where}, argument 'data'" if where else "argument 'data'"
    lengths = {
        f"data{n}": x.shape[0] if x.shape else None for n, x in zip(names, leaves, strict=True)
    }
    if len(set(lengths.values())) == 1 and None not in lengths.values():
        if not where and not leaves[0].shape[0]:
            raise empty("arrays of length 0")
        return int(leaves[0].shape[0])
    lines = [f"{name}: {'a scalar' if n is None else f'{n} rows'}" for name, n in lengths.items()]
    raise ShardingError(
        f"its leaves differ in length:{listed(lines) or ' there are none.'}",
        where=head,
        rule="Every leaf has one row per example along its first axis.",
        remedy="give all leaves one length, np.stack(rows) instead of a list of rows; a dataset of "
        "single examples has to be batched or have __len__ and __getitem__.",
    )


def empty(label: str) -> ShardingError:
    return ShardingError(
        f"there are no examples in it ({label}).",
        where="argument 'data'",
        rule="A mean over nothing has no value.",
        remedy="check the path or the filter the data comes from.",
    )


def unlike(where: str, actual: Any, expected: Any) -> ShardingError:
    differs = _difference(actual, expected)
    return ShardingError(
        differs or f"its structure is {actual}.",
        where=f"{where} of the data",
        rule="All examples have the structure of the first"
        + ("." if differs else f": {expected}."),
        remedy="remove such examples, or give all of them an array there and return (values, "
        "weights) "
        "from fn, with weight 0 where it does not count."
        if differs
        else "give all of them one structure.",
    )


def _difference(actual: Any, expected: Any) -> str | None:
    """Return the first leaf that differs, if the trees differ in more than their containers."""
    try:
        current, first = _places(actual), _places(expected)
    except Exception:  # a user's class that validates its arrays
        return None
    for name in [*first, *current]:
        if current.get(name) != first.get(name):
            new, reference = (places.get(name, "missing") for places in (current, first))
            return f"data{name} is {new}; in the first it is {reference}."
    return None


def _places(structure: Any) -> dict[str, str]:
    """Return what is at each path of a structure: an array or None."""
    tree = jax.tree.unflatten(structure, ["an array"] * structure.num_leaves)
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda x: x is None)
    return {jax.tree_util.keystr(path): str(leaf) for path, leaf in leaves}


def misshapen(where: str, row: ExampleLeaf, actual: Any, expected: Any) -> ShardingError:
    shapes = isinstance(actual, tuple)

    def text(x: Any) -> str:
        return str(list(x)).replace("'", "") if shapes else str(x)

    return ShardingError(
        f"{row.label} is {text(actual)}, expected {text(expected)}.",
        where=f"{where} of the data",
        rule="Every example has the shape and dtype of the first.",
        remedy="pad examples to one shape, with a mask that fn uses as weights."
        if shapes
        else "give all of them one dtype, np.float32(x) for instance.",
    )
