"""What a run is recognised by: its data, its function and metrics, its state, its batch.

The fingerprint is a dictionary of short strings with readable keys, so that a journal which belongs
to something else can be refused with the difference named.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .plan import Plan
from .program import Function
from .source import Source

_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]{6,}")


def fingerprint(function: Function, plan: Plan, source: Source, batch: int) -> dict[str, str]:
    """All that has to be the same for finished steps to count."""
    return {
        **source.fingerprint(),
        "the program of fn": _program(function, batch),
        "the metrics": plan.describe(),
        "the shapes of the state": _digest(
            ", ".join(str(jax.typeof(a)) for a in function.state.arrays)
        ),
        "the content of the state": _content(function.state.arrays),
        "batch": str(batch),
    }


def _program(function: Function, batch: int) -> str:
    """A hash of what `fn` computes, its captured constants included."""
    traced = jax.make_jaxpr(function.call)(*function.shapes(batch))
    text = _ADDRESS.sub("", str(traced))
    constants = [np.asarray(c).tobytes() for c in traced.consts if hasattr(c, "dtype")]
    return _digest(text, *constants)


def _digest(text: str, *more: bytes) -> str:
    found = hashlib.sha256(text.encode())
    for part in more:
        found.update(part)
    return found.hexdigest()[:16]


def _content(arrays: list[Any]) -> str:
    """A checksum of every bit of the state, computed where the state is.

    Integer arithmetic modulo 2^32, so that no order of summation changes it.
    """
    if not arrays:
        return "empty"
    sums = jax.device_get(_checksums(arrays))
    return _digest("", *(np.asarray(s).tobytes() for s in sums))


@jax.jit
def _checksums(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(x) for x in arrays]


def _checksum(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    words = _words(x).reshape(-1)
    places = jax.lax.iota(jnp.uint32, words.shape[0]) * jnp.uint32(2654435761) | jnp.uint32(1)
    return jnp.sum(words * places, dtype=jnp.uint32)


def _words(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.concatenate([_words(jnp.real(x)).reshape(-1), _words(jnp.imag(x)).reshape(-1)])
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.uint32)
    if x.dtype.itemsize == 8:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
