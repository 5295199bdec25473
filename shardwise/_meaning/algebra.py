"""Which algebra a rule needs, and of which dtypes it holds.

A rule says what an operation on parts is of the whole. Most rules rely on a law: that a sum may be
taken in any order, that a positive factor keeps an order, that an index does not wrap around. Laws
hold for some dtypes and not for others: the matrix product of booleans is an OR of ANDs, and a
position in `uint8` wraps around at 256. So each rule declares the algebra it needs, and the table
applies it to no dtype of which that algebra does not hold.
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
"""All kinds of dtypes. Signed integers of 32 bits and more are `INTEGER`, the others `NARROW`."""


@dataclasses.dataclass(frozen=True)
class Algebra:
    """The laws that a rule relies on."""

    name: str
    kinds: frozenset[str]
    """The kinds of dtypes of which the laws hold."""
    wraps: bool
    """Whether the laws hold of integers modulo 2**n: wrapping around first changes nothing."""
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
    """The kind of a dtype."""
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
    """Whether integers have fewer than 32 bits, or none for a sign."""
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return True
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32
