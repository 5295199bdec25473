"""What the tests of the simulator share: real meshes, test data, and what "the same" means."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

import shardwise as sw

# Relative to the largest entry of an array. Sums over shards may be taken in another order, so
# floating-point results agree to a few roundings; everything else agrees exactly.
TOLERANCE = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
}

# For tests of the verdict: the search for a fix takes about as long as the check.
check = functools.partial(sw.check, fix=False)

# The data is of order one. An array that is zero but for rounding has no scale of its own.
SMALLEST_SCALE = 1e-2


def real_mesh(**sizes: int) -> Mesh:
    """A mesh of real (virtual CPU) devices with Auto axes, as `sw.mesh` makes without devices."""
    devices = np.array(jax.devices()[: prod(sizes.values())]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def normal(*shape: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    """Random numbers that depend on nothing but the arguments."""
    key = zlib.crc32(repr((shape, str(dtype), seed)).encode())
    rng = np.random.default_rng(key)
    values = rng.standard_normal(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def integers(*shape: int, low: int = -9, high: int = 10, dtype: Any = "int32") -> np.ndarray:
    """Random integers that depend on nothing but the arguments."""
    key = zlib.crc32(repr((shape, low, high, str(dtype))).encode())
    return np.asarray(np.random.default_rng(key).integers(low, high, shape)).astype(dtype)


def booleans(*shape: int) -> np.ndarray:
    return integers(*shape, low=0, high=2).astype(bool)


def vary(x: Any, axes: Iterable[str]) -> Any:
    """Cast `x` to vary over `axes` too; JAX refuses the cast for axes it varies over already."""

    def cast(leaf):
        missing = tuple(a for a in axes if a not in jax.typeof(leaf).manual_axis_type.varying)
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, x)


def assert_same(got: Any, want: Any) -> None:
    """Fail unless structure, shapes and dtypes are equal, and values up to rounding."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    problems = [p for (path, a), b in pairs if (p := _difference(jax.tree_util.keystr(path), a, b))]
    assert not problems, "\n".join(problems)


def _difference(path: str, got: Any, want: Any) -> str | None:
    got, want = _plain(got), _plain(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{path}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    error = relative_error(got, want)
    if error <= TOLERANCE.get(str(want.dtype), 0.0):
        return None
    return f"{path}: off by {error:.3g} of the largest entry\n  got  {got}\n  want {want}"


def relative_error(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest entry; infinite where only one is NaN."""
    got, want = _plain(got), _plain(want)
    if got.size == 0 or np.array_equal(got, want):
        return 0.0
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    got, want = got.astype(wide), want.astype(wide)
    scale = np.max(np.abs(want), initial=SMALLEST_SCALE, where=np.isfinite(want))
    differ = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    errors = np.abs(got[differ] - want[differ])
    return float(errors.max(initial=0.0) / scale) if np.isfinite(errors).all() else float("inf")


def _plain(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
