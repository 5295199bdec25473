"""Whole programs: every value of right and of wrong ones is what its meaning says.

A part of them runs by default; `SHARDWISE_FULL=1` takes all.
"""

import importlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._analysis.check import expand
from shardwise._meaning.rules import RULES

from ..check.corpus import pairs
from ..conformance import table
from ..optional import because
from . import campaign
from .oracle import Meaning, assert_meaning, check_meaning

FULL = bool(os.environ.get("SHARDWISE_FULL"))


def part(rows, step, start=0):
    return rows if FULL else rows[start::step]


PAIRS = [(pair, which) for pair in pairs() for which in ("right", "wrong")]
ROWS = [row for row in table.rows() if row.mesh == 0 and not row.check_vma]
GALLERY = {
    "data_parallel": (8,),
    "tensor_parallel": (8,),
    "zero": (8,),
    "mixture_of_experts": (4,),
    "ring_attention": (4,),
    "pipeline": (4,),
    "transformer_2d": (4, 2),
}


@pytest.mark.parametrize(("pair", "which"), part(PAIRS, 29), ids=lambda x: str(x))
def test_the_corpus(pair, which):
    mesh = expand(pair.mesh)[-1]
    try:
        tally = assert_meaning(getattr(pair, which), *pair.args(), mesh=mesh)
    except sw.DeadlockError:
        assert which == "wrong"
        return
    assert tally.compared


@pytest.mark.skipif(
    not FULL,
    reason=because("Not every value of the examples is compared", "SHARDWISE_FULL=1 make test-all"),
)
@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name):
    module = importlib.import_module(f"examples.{name}")
    mesh = sw.mesh(dict(zip(module.AXES, GALLERY[name], strict=True)))
    meaning = Meaning(module.step, module.example_args(), mesh)
    assert check_meaning(meaning).results or name == "ring_attention"
    apart = Meaning(module.step, module.example_args(), mesh, apart=module.AXES[0], run=meaning.run)
    assert check_meaning(apart).compared


@pytest.mark.parametrize("row", part(ROWS, 97, 3), ids=str)
def test_the_conformance_table(row):
    each = row.program

    def f(*args, mesh):
        return each.around(lambda *args: each.run(table.Spmd(mesh, row.check_vma), *args))(*args)

    with each.setting():
        try:
            assert_meaning(f, *each.args(row.sizes), mesh=sw.mesh(**row.sizes))
        except sw.UnsupportedError as error:
            pytest.skip(f"Not read, so not compared: {str(error).partition(chr(10))[0]}")


@pytest.mark.parametrize("number", range(40 if FULL else 2))
def test_random_programs(number):
    counts, failures = campaign.random_program(7, number)
    assert not failures
    assert counts["values compared"]


@pytest.mark.parametrize("number", range(4))
def test_the_results_of_random_programs(number):
    counts, failures = campaign.random_results(7, number)
    assert not failures
    assert counts["programs"] == 1
    assert sum(n for what, n in counts.items() if what.startswith("results"))


# --- the oracle itself


def shares(x, *, mesh):
    def body(x):
        return lax.psum(-x.sum(0), "a"), jnp.sin(x)

    return jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=(P(), P("a")))(x)


X = np.arange(8.0, dtype=np.float32).reshape(4, 2)


def test_every_value_is_compared():
    tally = assert_meaning(shares, X, mesh=sw.mesh(a=2))
    assert (tally.compared, tally.results, tally.unknown.total()) == (7, 2, 0)


@pytest.mark.parametrize("name", ["neg", "sin", "reduce_sum"])
def test_a_wrong_rule_is_seen(monkeypatch, name):
    """A rule that says something else than the operation does."""
    monkeypatch.setitem(RULES, name, _twice if name == "reduce_sum" else RULES["copy"])
    with pytest.raises(AssertionError, match="off by"):
        assert_meaning(shares, X, mesh=sw.mesh(a=2))


SUMS = RULES["reduce_sum"]


def _twice(w, op, ins):
    (out,) = SUMS(w, op, ins)
    return [out.having((2 * out.coef, out.term))]


def test_what_has_no_numbers_is_counted():
    def program(x, *, mesh):
        def body(x):
            return lax.psum(jnp.exp(x.sum(0)), "a")

        return jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P())(x)

    tally = assert_meaning(program, X, mesh=sw.mesh(a=2))
    assert tally.unknown == {"symbol opaque": 3}
    assert not tally.results
