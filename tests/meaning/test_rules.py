"""Every rule alone, on random shapes and cuts: what it says is what the devices hold."""

import os

import jax
import pytest

import shardwise as sw
from shardwise._engine.tracing import Tracing
from shardwise._meaning.collectives import RULES as COLLECTIVES
from shardwise._meaning.rules import RULES

from ..optional import because
from .cases import ABSENT, CASES
from .draw import MESHES, program
from .exchanges import EXCHANGES
from .oracle import Meaning, check_meaning

SLOW = {
    *("igamma", "igammac", "igamma_grad_a", "zeta", "polygamma", "random_gamma"),
    "regularized_incomplete_beta",
    *("random_bits", "random_seed", "random_fold_in", "random_wrap", "conv_general_dilated"),
}
"""XLA takes seconds to compile each of these: they run with `SHARDWISE_FULL=1`."""

QUICK = sorted(set(CASES) - SLOW)


FULL = bool(os.environ.get("SHARDWISE_FULL"))
GROUPS = [QUICK[i::12] for i in range(12)]


def check(bodies, seed, sizes):
    with jax.enable_x64(True):
        f, args = program(bodies, seed, sizes)
        mesh = sw.mesh(sizes)
        meaning = Meaning(f, args, mesh)
        apart = Meaning(f, args, mesh, apart="a", run=meaning.run)
        assert check_meaning(apart, 1e-7).compared
        entirely = Meaning(f, args, mesh, apart="a", run=meaning.run, entirely=True)
        assert check_meaning(entirely, 1e-7).compared
        return check_meaning(meaning, 1e-7)


def test_every_rule_has_a_case():
    assert set(RULES) - ABSENT == set(CASES)
    assert set(COLLECTIVES) <= set(EXCHANGES)


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_rules_on_random_cuts(number):
    names = GROUPS[number]
    sizes = MESHES[number % len(MESHES)]
    tally = check([CASES[name] for name in names], ("rules", number), sizes)
    assert tally.compared > 2 * len(names)


@pytest.mark.skipif(
    not FULL,
    reason=because(
        "Rules that XLA is slow to compile are not tried", "SHARDWISE_FULL=1 make test-all"
    ),
)
@pytest.mark.parametrize("name", sorted(SLOW))
def test_slow_rules_on_random_cuts(name):
    assert check([CASES[name]] * 2, (name, 0), {"a": 2, "b": 2}).compared


@pytest.mark.parametrize("name", sorted(EXCHANGES))
def test_collectives_on_random_cuts(name):
    number = sorted(EXCHANGES).index(name)
    sizes = MESHES[number % len(MESHES)]
    assert check([EXCHANGES[name]] * 3, (name, 1), sizes).compared > 5


def test_the_case_of_a_rule_uses_it():
    """A case that does not run its primitive tests nothing."""
    unused = []
    for name in QUICK:
        with jax.enable_x64(True):
            f, args = program([CASES[name]], (name, 0), {"a": 2})
            traced = Tracing(f, sw.mesh(a=2))(args, {})
        ops = {getattr(op, "name", "") for op in sw._program.walk(traced.program.body.ops)}
        if name not in ops:
            unused.append(name)
    assert not unused
