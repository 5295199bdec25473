"""The fingerprint of a run: its data, function and metrics, state and batch.

The fingerprint is a dictionary of short strings with readable keys, so that the error about a
journal of another run can name the difference.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from .data.source import DataSource
from .lanes import Lanes
from .reduce.plan import MetricsPlan
from .step.program import Function

_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]{6,}")


_PLURAL = ("the metrics", "the shapes of the state")
"""Keys in the plural, for the grammar."""


def fingerprint(
    function: Function, plan: MetricsPlan, source: DataSource, batch: int, lanes: Lanes
) -> dict[str, str]:
    """Return everything that has to be equal for finished steps to count."""
    return {
        **source.fingerprint(),
        "the program of fn": _program(function, batch, lanes),
        "the metrics": plan.describe(),
        "the shapes of the state": _digest(
            ", ".join(str(jax.typeof(a)) for a in function.state.arrays)
        ),
        "the content of the state": _content(function),
        "batch": str(batch),
    }


def _program(function: Function, batch: int, lanes: Lanes) -> str:
    """Return a hash of what `fn` computes, its captured constants included.

    It is traced for one lane, since the number of lanes does not identify a run. Host callbacks are
    not part of it.
    """
    arrays, *rest = function.shapes(batch)
    arrays = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    with jax.set_mesh(lanes.first):
        traced = jax.make_jaxpr(function.call)(arrays, *rest)
    text = _ADDRESS.sub("", str(traced))
    constants = [_untyped(c) for c in _jax.constants(traced) if hasattr(c, "dtype")]
    return _digest(text, *(f"{c.dtype}{c.shape}".encode() + c.tobytes() for c in constants))


def _untyped(constant: Any) -> np.ndarray:
    if jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
        constant = jax.random.key_data(constant)
    return np.asarray(constant)


def _digest(text: str, *more: bytes) -> str:
    hasher = hashlib.sha256(text.encode())
    for part in more:
        hasher.update(part)
    return hasher.hexdigest()[:16]


def _content(function: Function) -> str:
    """Return a checksum of every bit of the state, computed on its devices.

    Every word is mixed with its position, so that two changes cancel only by chance (once in 2^64),
    and summed modulo 2^32, so that the order of summation does not matter.
    """
    if not function.state.arrays:
        return "empty"
    with jax.set_mesh(function.mesh):
        sums = jax.device_get(_checksums(function.state.arrays))
    return _digest("", *(np.asarray(s).tobytes() for s in sums))


@jax.jit
def _checksums(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(x) for x in arrays]


def _checksum(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    words = _words(x).reshape(-1)
    places = jax.lax.iota(jnp.uint32, words.shape[0])
    return jnp.stack(
        [
            jnp.sum(_mixed(words ^ _mixed(places + jnp.uint32(seed))), dtype=jnp.uint32)
            for seed in (0x9E3779B9, 0x7F4A7C15)
        ]
    )


def _mixed(x: jax.Array) -> jax.Array:
    """Return a permutation of the 32-bit words after which every bit depends on every other.

    The last step of MurmurHash3, by Austin Appleby.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _words(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.concatenate([_words(jnp.real(x)).reshape(-1), _words(jnp.imag(x)).reshape(-1)])
    if x.dtype != jnp.bool_ and x.dtype.itemsize == 8:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    return x.astype(jnp.uint32)


def differences(
    recorded: dict[str, str],
    current: dict[str, str],
    recorded_name: str = "the journal",
    current_name: str = "this run",
) -> list[str]:
    """Return the differences of two fingerprints as sentences."""
    absent = "(none)"
    keys = [key for key in {**recorded, **current} if recorded.get(key) != current.get(key)]
    if "batch" in keys:  # the program then differs as well
        keys = [key for key in keys if not key.startswith("the program of")]
    return [
        f"{key} {'differ' if key in _PLURAL else 'differs'}: "
        f"{recorded_name} has {recorded.get(key, absent)}, "
        f"{current_name} {current.get(key, absent)}"
        for key in keys
    ]
