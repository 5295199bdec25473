"""Loops of many steps: proved by one turn, and given up where they are too long to take apart."""

import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._meaning import term as T
from shardwise._meaning.term import work
from tests.support import normal

U = normal(48)


def zeros(u):
    return 0 * u


def ones(u):
    return jnp.ones_like(u)


def positions(u):
    return jnp.arange(u.shape[0]) + lax.axis_index("r") * u.shape[0] + 0 * u


def own_positions(u):
    return jnp.arange(u.shape[0], dtype=u.dtype)


def wave(steps, *, scan=True, back=-1, own=False, start=zeros):
    """A wave on a ring: each device has its part of it, and sees one point of its neighbours."""

    def body(u):
        size = lax.axis_size("r")

        def shifted(x, by):
            return lax.ppermute(x, "r", [(i, (i + by) % size) for i in range(size)])

        def step(carry, _):
            u, v = carry
            wide = jnp.concatenate([shifted(u[-1:], 1), u, shifted(u[:1], back)])
            v = v + 0.1 * (wide[:-2] - 2 * u + wide[2:])
            energy = (v**2).sum()
            return (u + 0.1 * v, v), energy if own else lax.psum(energy, "r")

        if scan:
            return lax.scan(step, (u, start(u)), None, length=steps)
        carry, energies = (u, start(u)), []
        for _ in range(steps):
            carry, energy = step(carry, None)
            energies.append(energy)
        return carry, jnp.stack(energies)

    def program(u, *, mesh):
        specs = ((P("r"), P("r")), P())
        return jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=specs, check_vma=False)(u)

    return program


@pytest.mark.parametrize("steps", [2, 20, 500])
def test_a_loop_is_proved_by_one_turn_however_many_there_are(steps):
    proof = sw.prove(wave(steps), U, mesh={"r": [2, 8]}, run=False)
    assert proof, proof


@pytest.mark.parametrize("start", [ones, positions])
def test_a_loop_is_proved_by_one_turn_whatever_it_begins_with(start):
    """What each device begins with need not be an argument, nor be cut as one."""
    proof = sw.prove(wave(50, start=start), U, mesh={"r": [2, 8]}, run=False)
    assert proof, proof


def test_a_loop_that_each_device_begins_with_its_own_positions_is_not_proved():
    assert sw.prove(wave(3, start=own_positions), U, mesh={"r": [8]}).status == "refuted"


def test_work_is_counted_for_all_results_together():
    left = T.Left(15)
    with T.at_most(10, left):
        work.spend(10)
    with pytest.raises(T.TooMuch), T.at_most(10, left):
        work.spend(6)
    assert left.work == 0


def test_work_also_counts_for_the_limit_around_it():
    with T.at_most(15) as left:
        with T.at_most(10):
            work.spend(10)
        with pytest.raises(T.TooMuch), T.at_most(10):
            work.spend(6)
    assert left.work == 0


def test_numbers_of_many_digits_are_more_work():
    terms = [T.symbol("argument", i, shape=())[1] for i in range(3)]

    def spent(coef):
        left = T.Left(1 << 12)
        with T.at_most(1 << 12, left):
            made = T.add([(coef * (i + 1), t) for i, t in enumerate(terms)], ())
            T.add([made, (1, terms[0])], ())
        return (1 << 12) - left.work

    assert spent(Fraction(3, 7)) < 30
    assert spent(Fraction(3**60, 7**60)) > 100


@pytest.mark.parametrize("wrong", [{"back": 1}, {"own": True}])
def test_a_loop_whose_turn_is_wrong_is_not(wrong):
    assert sw.prove(wave(3, **wrong), U, mesh={"r": [8]}).status == "refuted"
    assert not sw.prove(wave(500, **wrong), U, mesh={"r": [8]}, run=False)


def test_a_loop_that_begins_with_something_else_is_not_proved():
    def program(x, *, mesh):
        def body(x):
            def step(c, _):
                n = lax.axis_size("r")
                return c + lax.ppermute(c, "r", [(i, (i + 1) % n) for i in range(n)]), None

            start = x * jnp.where(lax.axis_index("r") == 1, 2, 1)
            return lax.scan(step, start, None, length=300)[0]

        return jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P("r"))(x)

    assert not sw.prove(program, U, mesh={"r": [4]}, run=False)


def test_what_a_loop_gives_at_each_step_is_proved_where_it_is_cut_as_what_is_carried():
    def program(x, *, mesh):
        def body(x):
            n = lax.axis_size("r")

            def step(c, by):
                left = lax.ppermute(c[-1:], "r", [(i, (i + 1) % n) for i in range(n)])
                c = jnp.tanh(by * jnp.concatenate([left, c[:-1]]))
                return c, c**2

            return lax.scan(step, x, jnp.arange(300.0))

        out = (P("r"), P(None, "r"))
        return jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=out)(x)

    proof = sw.prove(program, U, mesh={"r": [2, 8]}, run=False)
    assert proof, proof


@pytest.mark.parametrize("what", ["ways", "read"])
def test_what_is_too_long_to_take_apart_is_unknown_and_says_so(what, monkeypatch):
    assert sw.prove(wave(4, scan=False), U, mesh={"r": [8]}, run=False)
    module = sys.modules[f"shardwise._meaning.{what}"]  # the package has a function of this name
    monkeypatch.setattr(module, "WORK", 1 << 11)
    proof = sw.prove(wave(4, scan=False), U, mesh={"r": [8]}, run=False)
    assert proof.status == "unknown", proof
    assert "too long to take apart" in str(proof)
