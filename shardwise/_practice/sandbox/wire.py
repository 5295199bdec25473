"""The answer of a solution's process: JSON, validated against a schema with bounds.

The solution shares its process with the code that writes the answer, so it may write any bytes
instead. `read` returns an answer whose fields all have the right types and bounds, or None; it
never raises. Control characters in texts are escaped.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..text import visible

ANSWER = 8 << 20
"""The maximum size of an answer in bytes."""

NUMBERS = 1 << 18
"""The maximum number of elements of an array in an answer."""

DTYPES = frozenset(("|b1", "|i1", "|u1", *(f"<{kind}{n}" for kind in "iuf" for n in (2, 4, 8))))
"""The dtypes of arrays that are sent unchanged: booleans, integers and floats."""

NARROW = "V"
"""The NumPy kind of bfloat16 and similar dtypes, which are sent as float64."""

DEPTH, ITEMS, DIMENSIONS = 12, 4_096, 16
"""The maximum depth and length of a result or a list of records."""

BIG = 1 << 62

Check = Callable[[Any], Any]


class Malformed(ValueError):
    """An answer that does not fit the schema."""


class NonArray:
    """A placeholder for an object that is no array, with its type."""

    def __init__(self, kind: str):
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def pack(value: Any, leaf: Callable[[Any], Any] | None = None) -> Any:
    """Return a result as plain data: dicts, lists and tuples, with `leaf` applied to arrays."""
    if value is None:
        return {"none": True}
    if isinstance(value, dict):
        return {"dict": {str(key): pack(item, leaf) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [pack(item, leaf) for item in value]}
    return leaf(value) if leaf else _packed_array(value)


def _packed_array(value: Any) -> Any:
    try:
        array = np.asarray(value)
        if array.dtype.kind in NARROW:
            array = array.astype(np.float64)
    except Exception:
        return {"other": type(value).__name__}
    if array.dtype.str not in DTYPES:
        return {"other": f"array of {array.dtype}" if array.shape else type(value).__name__}
    if array.size > NUMBERS:
        return {"other": f"{type(value).__name__} of shape {array.shape}"}
    whole = np.ascontiguousarray(array)
    data = base64.b64encode(whole.tobytes()).decode("ascii")
    return {"array": data, "dtype": whole.dtype.str, "shape": list(array.shape)}


def unpack(data: Any, depth: int = DEPTH) -> Any:
    """Return the value of packed data; raise `Malformed` if it is invalid."""
    _demand(isinstance(data, dict) and depth > 0)
    if "dict" in data:
        return table(lambda item: unpack(item, depth - 1))(data["dict"])
    if "list" in data:
        return each(lambda item: unpack(item, depth - 1))(data["list"])
    if "array" in data:
        return _array(data)
    if "other" in data:
        return NonArray(text(200)(data["other"]))
    _demand(data.get("none") is True)
    return None


def _array(data: Mapping[str, Any]) -> np.ndarray:
    _demand(data.get("dtype") in DTYPES and isinstance(data["array"], str))
    dtype = np.dtype(data["dtype"])
    shape = each(integer(0, NUMBERS), DIMENSIONS)(data.get("shape"))
    _demand(math.prod(shape) <= NUMBERS)
    try:
        raw = base64.b64decode(data["array"], validate=True)
    except ValueError as error:
        raise Malformed("not base64") from error
    _demand(len(raw) == math.prod(shape) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape)


# --- the schema


def _demand(ok: bool) -> None:
    if not ok:
        raise Malformed("not what the judge's own code writes")


def text(most: int = 200) -> Check:
    """Check a string; return it truncated, with control characters escaped."""

    def check(data: Any) -> str:
        _demand(isinstance(data, str))
        return visible(data[:most])

    return check


def integer(low: int = -BIG, high: int = BIG) -> Check:
    """Check an integer within bounds."""

    def check(data: Any) -> int:
        _demand(type(data) is int and low <= data <= high)
        return data

    return check


def number(data: Any) -> float:
    """Check an integer within bounds, or any float."""
    return data if type(data) is float else integer()(data)


def flag(data: Any) -> bool:
    """Check a boolean."""
    _demand(isinstance(data, bool))
    return data


def each(item: Check, most: int = ITEMS, least: int = 0) -> Check:
    """Check a list, item by item."""

    def check(data: Any) -> list[Any]:
        _demand(isinstance(data, list) and least <= len(data) <= most)
        return [item(entry) for entry in data]

    return check


def table(item: Check, most: int = ITEMS) -> Check:
    """Check a dict with any keys, value by value."""

    def check(data: Any) -> dict[str, Any]:
        _demand(isinstance(data, dict) and len(data) <= most)
        return {visible(key[:200]): item(entry) for key, entry in data.items()}

    return check


def encoded(data: Any) -> str:
    """Check a string of plain characters, such as base64, of any length."""
    _demand(isinstance(data, str) and data.isascii())
    return data


def one_of(*names: str) -> Check:
    """Check that a string is one of these."""

    def check(data: Any) -> str:
        _demand(data in names)
        return data

    return check


def form(data: Any, depth: int = DEPTH) -> Any:
    """Check the form of a result: dicts and lists of the numbers of its arrays."""
    _demand(isinstance(data, dict) and depth > 0)
    if "dict" in data:
        return {"dict": table(lambda item: form(item, depth - 1))(data["dict"])}
    if "list" in data:
        return {"list": each(lambda item: form(item, depth - 1))(data["list"])}
    return {"leaf": integer(0, ITEMS)(data["leaf"])} if "leaf" in data else {"none": True}


def record(optional: Mapping[str, Check] | None = None, **fields: Check) -> Check:
    """Check a dict with these keys, and perhaps the optional ones; drop all others."""

    def check(data: Any) -> dict[str, Any]:
        _demand(isinstance(data, dict) and fields.keys() <= data.keys())
        more = {key: field for key, field in (optional or {}).items() if data.get(key) is not None}
        return {key: field(data[key]) for key, field in {**fields, **more}.items()}

    return check


def nested(depth: int = DEPTH) -> Check:
    """Check numbers, short texts, and lists of them."""

    def check(data: Any) -> Any:
        if isinstance(data, list):
            _demand(depth > 0)
            return each(nested(depth - 1))(data)
        if isinstance(data, bool):
            return data
        return text()(data) if isinstance(data, str) else number(data)

    return check


LINE = integer(0, 1 << 24)
SHAPE = each(integer(0), DIMENSIONS)
NAMES = each(text(), 64)
MESH = table(integer(0, 1 << 20), DIMENSIONS)
CALL = record(module=text(), shape=SHAPE, line=LINE)
WHERE = record(line=LINE)

FACTS = record(
    shard_maps=each(
        record(
            mesh=MESH,
            split=NAMES,
            checked=flag,
            rows=each(record(shape=SHAPE, axes=NAMES)),
            collectives=each(
                record(
                    name=text(),
                    axes=NAMES,
                    line=LINE,
                    backward=flag,
                    differs=NAMES,
                    shape=SHAPE,
                )
            ),
        )
    ),
    inits=each(CALL),
    calls=each(CALL),
    optimizers=each(WHERE),
    updates=each(record(line=LINE, grads=each(each(number)))),
    vmaps=integer(0),
)

ERROR = record({"kinds": each(text(), 6), "line": LINE}, type=text(100), message=text(4_000))

DEVICES = each(MESH, least=1)
WHOLE = record(devices=DEVICES, values=nested())
RANGE = record(devices=DEVICES, first=each(nested()), min=nested(), max=nested())

NAME_OF_DTYPE = one_of(
    "bool",
    "bfloat16",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)

PROGRAM = record(
    module=encoded, form=form, outs=each(record(shape=SHAPE, dtype=NAME_OF_DTYPE), ITEMS)
)

STEP = record(
    kind=text(),
    where=WHERE,
    name=text(),
    operation=text(),
    differs_over=NAMES,
    backward=flag,
    held=each(lambda data: (WHOLE if "values" in data else RANGE)(data)),
)

FIX = record(description=text())

RUN = record(
    {
        "value": unpack,
        "error": ERROR,
        "program": PROGRAM,
        "findings": each(record({"fix": FIX}, certain=flag, where=WHERE)),
        "inspection": record(mesh=MESH, steps=each(STEP)),
    },
    facts=FACTS,
)


def read(raw: bytes, count: int) -> list[dict[str, Any]] | None:
    """Return the answer of a process that was asked for `count` runs; None if it is none."""
    if len(raw) > ANSWER:
        return None
    try:
        data = json.loads(raw)
        if isinstance(data, dict) and "error" in data:
            return [{"error": ERROR(data["error"]), "facts": {}}] * count
        return _exactly(each(RUN)(record(runs=lambda runs: runs)(data)["runs"]), count)
    except Exception:  # any error means that the answer is invalid
        return None


def _exactly(runs: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    _demand(len(runs) == count)
    return runs
