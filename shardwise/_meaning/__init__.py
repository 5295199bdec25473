"""Meaning: what each value of a sharded program is of the whole, found by reading it once."""

from .value import Value as Value
from .walk import Walk as Walk
