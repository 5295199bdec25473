"""Values as JSON, so that nothing that comes out of a solution's process is ever unpickled."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

LIMIT = 1 << 20
"""How many numbers of one array are handed back, at most."""

KINDS = "biuf"
"""Types of arrays that come back as they are."""

NARROW = "V"
"""What NumPy calls bfloat16 and the like: they come back as float64. All others do in words."""


def pack(value: Any) -> Any:
    """A result as plain data: arrays, and dicts, lists and tuples of them."""
    if value is None:
        return {"none": True}
    if isinstance(value, dict):
        return {"dict": {str(key): pack(one) for key, one in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [pack(one) for one in value]}
    try:
        array = np.asarray(value)
        if array.dtype.kind in NARROW:
            array = array.astype(np.float64)
    except Exception:
        return {"other": type(value).__name__}
    if array.dtype.kind not in KINDS:
        return {"other": f"array of {array.dtype}" if array.shape else type(value).__name__}
    if array.size > LIMIT:
        return {"other": f"{type(value).__name__} of shape {array.shape}"}
    whole = np.ascontiguousarray(array)
    data = base64.b64encode(whole.tobytes()).decode("ascii")
    return {"array": data, "dtype": whole.dtype.str, "shape": list(array.shape)}


def unpack(data: Any) -> Any:
    """The value again; `Other` for what could not be handed over."""
    if not isinstance(data, dict) or not data:
        raise ValueError("not a value")
    if "none" in data:
        return None
    if "dict" in data:
        return {str(key): unpack(one) for key, one in dict(data["dict"]).items()}
    if "list" in data:
        return [unpack(one) for one in list(data["list"])]
    if "array" in data:
        dtype = np.dtype(str(data["dtype"]))
        shape = tuple(int(size) for size in data["shape"])
        if dtype.kind not in KINDS or any(size < 0 for size in shape) or math.prod(shape) > LIMIT:
            raise ValueError("not an array")
        raw = base64.b64decode(str(data["array"]), validate=True)
        return np.frombuffer(raw, dtype).reshape(shape)
    return Other(str(data["other"])[:200])


class Other:
    """Something that is no array: only its kind is known."""

    def __init__(self, kind: str):
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"
