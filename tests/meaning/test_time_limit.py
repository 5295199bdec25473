"""The time limit of `prove`: what is left out once it is reached, and that the result says so."""

import types

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._meaning import TooLate, step, within
from shardwise._meaning import term as T
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


@pytest.mark.parametrize("mesh", [1, 4])
def test_a_program_is_not_read_to_its_end(mesh):
    found = proof(f"following each value on {{data: {mesh}}}")
    assert found.status == "unknown"
    assert [result.reason for result in found.results] == [f"not reached: {LIMIT}"]
    assert found.numbers == f"The program was not run: {LIMIT}."
    assert f"SW409 (may be right): {{data: 4}}: not reached: {LIMIT}" in str(found)
    assert "lax.scan" in str(found)


def mean(x, *, mesh):
    body = lambda x: lax.pmean(jnp.mean(x), "data")  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


@pytest.fixture
def clock(monkeypatch):
    """A clock for the deadline that stands still, or goes on by `tick` whenever it is read."""
    clock = types.SimpleNamespace(now=0.0, tick=0.0, looks=0)

    def monotonic():
        clock.now += clock.tick
        clock.looks += 1
        return clock.now

    monkeypatch.setattr(work, "time", types.SimpleNamespace(monotonic=monotonic))
    return clock


def later(clock, activity, to):
    """Return a function that sets the clock at a report."""

    def told(reported):
        if reported.startswith(activity):
            clock.now = to

    return told


def test_a_program_is_read_once_on_its_first_mesh_after_the_limit(clock):
    told = later(clock, "tracing on {data: 4}", 26.0)
    assert sw.prove(mean, jnp.arange(16.0), mesh={"data": 4}, progress=told)
    clock.now = 0.0
    found = sw.prove(mean, jnp.arange(16.0), mesh={"data": [4, 8]}, progress=told)
    assert [result.status for result in found.results] == ["proved", "unknown"]
    assert "{data: 8}: not reached" in str(found)
    assert "mesh={'data': 8}" in str(found)


def test_that_has_a_limit_too(clock):
    told = later(clock, "tracing on {data: 4}", 56.0)
    assert sw.prove(mean, jnp.arange(16.0), mesh={"data": 4}, progress=told).status == "unknown"


@pytest.mark.parametrize("sizes", [[4, 8], "n"])
def test_a_program_that_is_long_is_left_in_the_middle(clock, sizes):
    """Every operation looks at the clock: one of a thousand is not far behind the limit."""

    def local(x):
        for _ in range(1000):
            x = jnp.sin(x)
        return x

    def long(x, *, mesh):
        return jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    clock.tick = 1.0
    assert sw.prove(long, jnp.arange(16.0), mesh={"data": sizes}, run=False).status == "unknown"
    assert clock.looks < 100


def test_one_operation_that_is_long_is_left_in_the_middle():
    """Work on terms is counted, so that no single rule is longer than the limit."""
    terms = [T.symbol("argument", index, shape=()) for index in range(work.OFTEN)]
    assert T.add(terms, ())
    with within(-1.0), pytest.raises(TooLate):
        T.add(terms, ())


def test_results_that_there_was_no_time_to_compare_are_unknown(clock):
    """Equal ones are proved at once; the first of the others uses the time up."""

    def local(x):
        total = lax.psum(x.sum(), "data")
        return total, lax.psum(x.sum() ** 2, "data"), total + 1, lax.psum(x.max(), "data")

    def several(x, *, mesh):
        return jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    told = later(clock, "comparing", 26.0)
    found = sw.prove(several, jnp.arange(16.0), mesh={"data": 4}, progress=told)
    assert [result.status for result in found.results] == ["proved", "unknown", "proved", "unknown"]
    assert "too long to take apart" in str(found)
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
