"""Every rule alone, on random shapes and cuts: what it says is what the devices hold."""

import jax
import pytest

import shardwise as sw
from shardwise._meaning.collectives import RULES as COLLECTIVES
from shardwise._meaning.rules import RULES

from .cases import ABSENT, CASES
from .draw import MESHES, program
from .exchanges import EXCHANGES
from .oracle import assert_meaning

SLOW = {"igamma", "igammac", "regularized_incomplete_beta", "polygamma", "random_gamma"}
"""XLA takes seconds to compile each of these; the command of `tests.meaning` runs them."""


def groups(names, size):
    names = sorted(names)
    return [names[i : i + size] for i in range(0, len(names), size)]


def check(bodies, seed, sizes, **options):
    with jax.enable_x64(True):
        f, args = program(bodies, seed, sizes)
        return assert_meaning(f, *args, mesh=sw.mesh(sizes), tolerance=1e-7, **options)


def test_every_rule_has_a_case():
    assert set(RULES) - ABSENT == set(CASES)
    assert set(COLLECTIVES) <= set(EXCHANGES)


@pytest.mark.parametrize("number", range(14))
def test_rules_on_random_cuts(number):
    names = groups(set(CASES) - SLOW, 9)[number]
    sizes = MESHES[number % len(MESHES)]
    tally = check([CASES[name] for name in names], ("rules", number), sizes)
    assert tally.compared > 2 * len(names)


def test_all_groups_are_tested():
    assert len(groups(set(CASES) - SLOW, 9)) == 14


@pytest.mark.parametrize("name", sorted(EXCHANGES))
def test_collectives_on_random_cuts(name):
    number = sorted(EXCHANGES).index(name)
    sizes = MESHES[number % len(MESHES)]
    assert check([EXCHANGES[name]] * 3, (name, 1), sizes).compared > 5


def test_the_case_of_a_rule_uses_it():
    """A case that does not run its primitive tests nothing."""
    unused = []
    for name in sorted(set(CASES) - SLOW):
        with jax.enable_x64(True):
            f, args = program([CASES[name]], (name, 0), {"a": 2})
            traced = sw._simulate.Tracing(f, sw.mesh(a=2))(args, {})
        ops = {getattr(op, "name", "") for op in sw._program.walk(traced.program.body.ops)}
        if name not in ops:
            unused.append(name)
    assert not unused
