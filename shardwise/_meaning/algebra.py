"""The algebra that a rule needs, and the dtypes that have it.

A rule relates an operation on parts to an operation on the whole. Most rules rely on a law: a sum
may be taken in any order, a positive factor keeps an order, an index does not wrap around. Some
dtypes lack some laws: the matrix product of booleans is an OR of ANDs, and a position in `uint8`
wraps around at 256. So each rule declares the algebra it needs, and the table does not apply it to
dtypes that lack that algebra.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BOOL, INTEGER, NARROW = "bool", "integer", "narrow integer"
REAL, COMPLEX, KEY, NONE = "floating", "complex", "key", "none"

KINDS = frozenset({BOOL, INTEGER, NARROW, REAL, COMPLEX, KEY, NONE})
"""All kinds of dtypes. Signed integers of 32 bits and more are `INTEGER`, others `NARROW`."""


@dataclasses.dataclass(frozen=True)
class Algebra:
    """The laws that a rule relies on."""

    name: str
    kinds: frozenset[str]
    """The kinds of dtypes that have these laws."""
    wraps: bool
    """Whether integers modulo 2**n have these laws: wrapping around earlier changes nothing."""
    says: str
    """The laws, for the documentation."""


NUMBERS = frozenset({INTEGER, NARROW, REAL, COMPLEX, NONE})

MOVES = Algebra("moves", KINDS, True, "elements are moved, none is computed")
RING = Algebra("ring", NUMBERS, True, "sums in any order, products distribute over sums")
FIELD = Algebra("field", NUMBERS, False, "quotients of floating-point numbers; integers as given")
ORDER = Algebra(
    "order", KINDS - {COMPLEX, KEY}, False, "a total order, which positive factors keep"
)
ANY = Algebra("any", KINDS, False, "any function of the elements as they are held")

ALGEBRAS = (MOVES, RING, FIELD, ORDER, ANY)


def kind_of(dtype: Any) -> str:
    """Return the kind of a dtype."""
    if dtype == jax.dtypes.float0:
        return NONE
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return KEY
    if dtype == np.bool_:
        return BOOL
    if jnp.issubdtype(dtype, jnp.integer):
        return NARROW if few_bits(dtype) else INTEGER
    return COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else REAL


def few_bits(dtype: Any) -> bool:
    """Return whether a dtype is an integer of fewer than 32 bits, or unsigned."""
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return True
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32
