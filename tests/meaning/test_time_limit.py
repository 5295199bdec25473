"""The time limit of `prove`: what is left out once it is reached, and that the result says so."""

import jax
import jax.numpy as jnp
import pytest
from jax import P

import shardwise as sw
from shardwise._meaning import TooLate, step, within
from shardwise._meaning.term import work

LIMIT = "the time limit of 30 s was reached"


def norm(x, *, mesh):
    """Return the norm of the first shard: wrong, and known to be so by numbers alone."""

    def local(x):
        return jax.lax.pmax(jnp.sqrt(jnp.sum(jnp.sin(x) ** 2)), "data")

    return jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def proof(over_at):
    """Prove, with the deadline passing at the report that starts with these words."""

    def told(activity):
        deadline = work._DEADLINE.get()
        assert deadline is not None
        if activity.startswith(over_at):
            deadline.at = float("-inf")

    return sw.prove(norm, jnp.arange(8.0), mesh={"data": 4}, progress=told)


def test_without_a_limit_the_line_is_found():
    found = proof("never")
    assert found.status == "refuted"
    assert LIMIT not in str(found)


def test_the_line_is_not_looked_for():
    found = proof("looking for the line")
    assert found.status == "refuted"
    assert f"After that, the line was not looked for: {LIMIT}." in str(found)


@pytest.mark.parametrize("over_at", ["tracing", "comparing", "compiling on {data: 1}"])
def test_the_program_is_not_run(over_at):
    found = proof(over_at)
    assert found.status == "unknown"
    assert found.numbers == f"The program was not run: {LIMIT}."


def test_a_step_that_would_end_too_late_is_not_begun():
    with within(60.0):
        with step():
            deadline = work._DEADLINE.get()
            assert deadline is not None
            deadline.longest = 61.0
        with pytest.raises(TooLate), step():
            raise AssertionError("begun")
    with step():
        pass
