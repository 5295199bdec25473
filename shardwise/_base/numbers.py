"""The dtype that host arrays get on a device, and whether their values fit it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import ShardingError, UnsupportedError

_UNCHANGED = frozenset(map(np.dtype, "?bhiBHIefF"))
"""Dtypes that devices have: booleans, numbers of up to 32 bits, complex numbers of up to 64."""


def device_dtype(dtype: Any, where: str) -> np.dtype:
    """Return the dtype on a device of data of this dtype; raise if no device has one."""
    if str(dtype).startswith("key<"):
        raise _unplaceable(
            dtype, where, "pass jax.random.key_data(keys), and wrap it in the function."
        )
    dtype = _numpy_dtype(dtype)
    if remedy := dtype_remedy(dtype):
        raise _unplaceable(dtype, where, remedy)
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def short_dtype(dtype: str) -> str:
    """Return the name of a dtype in short: `f32`."""
    head = dtype.rstrip("0123456789")
    return _SHORT.get(head, head) + dtype[len(head) :]


def changes(leaf: Any) -> bool:
    """Return whether a NumPy array may get another dtype on a device."""
    return isinstance(leaf, np.ndarray) and leaf.dtype not in _UNCHANGED


def to_device_dtype(leaf: np.ndarray, where: str) -> np.ndarray:
    """Return a NumPy array that JAX can put on a device; raise if a value would change."""
    dtype = device_dtype(leaf.dtype, where)
    if leaf.dtype.itemsize > dtype.itemsize and not _is_within(leaf, dtype):
        convert(leaf, dtype, where)
    return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))


def _is_within(leaf: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether minimum and maximum fit; a NaN or an infinity counts as not fitting."""
    if not leaf.size:
        return True
    parts = (np.real(leaf), np.imag(leaf)) if leaf.dtype.kind == "c" else (leaf,)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    return all(limits.min <= part.min() and part.max() <= limits.max for part in parts)


def convert(leaf: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """Convert an array to the device's dtype; raise if a value does not fit."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = leaf.astype(dtype)
    if leaf.dtype.kind in "iu":
        lost = converted != leaf
    elif leaf.dtype.kind in "fc":
        lost = ~np.isfinite(converted)
        if lost.any():
            lost &= np.isfinite(leaf)
    else:
        return converted
    if np.any(lost):
        raise ShardingError(
            f"{leaf[lost][0]} does not fit {dtype}.",
            where=where,
            rule=f"Without jax_enable_x64, {leaf.dtype} becomes {dtype} on a device.",
            remedy="jax.config.update('jax_enable_x64', True), or smaller numbers.",
        )
    return converted


def dtype_remedy(dtype: np.dtype) -> str:
    """Return the remedy for data of a dtype that no device has; "" for other dtypes."""
    if dtype in _UNCHANGED:
        return ""
    if dtype.names:
        return f"one leaf for each field: x[{dtype.names[0]!r}], ..."
    if dtype.kind == "O":
        return "x.astype(np.float32) if all values are numbers; or leave this leaf out."
    if dtype.kind in "Mm":
        start = "(t - t.min())" if dtype.kind == "M" else "t"
        return f"{start} / np.timedelta64(1, 's') are seconds; or leave this leaf out."
    if dtype.kind in "SUTV" and not jnp.issubdtype(dtype, np.number):  # bfloat16 is of kind V
        return "leave this leaf out, or encode it as numbers."
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        return f"x.astype({'np.float64' if dtype.kind == 'f' else 'np.complex128'})"
    return ""


def _unplaceable(dtype: Any, where: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"its dtype is {dtype}.",
        where=where,
        rule="Only numbers of up to 64 bits and booleans can be put on a device.",
        remedy=remedy,
    )


def _numpy_dtype(dtype: Any) -> np.dtype:
    if type(dtype).__module__.split(".")[0] == "torch":
        return np.dtype(str(dtype).removeprefix("torch."))
    return np.dtype(getattr(dtype, "numpy_dtype", dtype))  # a dtype of tensorstore
