"""Helpers of the tests of messages."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw

STEP = Path(__file__).name
"""The file of the `shard_map` in `step`, which messages name."""

X = jnp.ones((12, 4))


DATA = P("data")


def step(in_specs=DATA, out_specs=DATA, body=lambda *xs: xs[0]):
    def f(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(*args)

    return f


def message(f, *args, mesh=None, **options):
    """The text of the ShardingError, which is a ValueError as well."""
    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(f, mesh=mesh or sw.mesh(data=8, model=2), **options)(*args)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, sw.ShardwiseError)
    return str(caught.value)


def assert_facts(text, *facts):
    for fact in facts:
        assert re.search(fact, text), f"{fact!r} is not in:\n{text}"
