"""Every rule can be attacked, and what the attacks find is seen."""

import dataclasses

import pytest

from shardwise._meaning.algebra import ALGEBRAS, KINDS
from shardwise._meaning.rules import RULES

from . import attack
from .cases import ABSENT

SLOW = {
    *("igamma", "igammac", "igamma_grad_a", "zeta", "polygamma", "random_gamma"),
    "regularized_incomplete_beta",
    *("bessel_i0e", "bessel_i1e", "lgamma", "digamma", "erf_inv", "threefry2x32"),
}


def test_every_rule_is_attacked():
    assert set(RULES) - ABSENT == set(attack.FORMS)


def test_every_rule_declares_its_algebra():
    assert {rule.needs for rule in RULES.values()} <= {*ALGEBRAS}
    assert all(algebra.kinds <= KINDS for algebra in ALGEBRAS)


DEALT = [(name, dtype) for name in sorted(attack.FORMS) for dtype in attack.DTYPES]


@pytest.mark.parametrize("part", range(8))
def test_what_is_proved_is_the_same_on_real_devices(part):
    rows = [row for row in DEALT if row[0] not in SLOW][part * 5 :: 79]
    for name, dtype in rows:
        _, failures = attack.attack(name, dtype, ("test", part))
        assert not failures


def test_a_rule_that_holds_for_too_many_dtypes_is_found(monkeypatch):
    """A sum of products is no OR of ANDs: declared to hold of booleans, it is caught."""
    rule = RULES["dot_general"]
    too_many = dataclasses.replace(rule.needs, kinds=KINDS)
    monkeypatch.setitem(RULES, "dot_general", dataclasses.replace(rule, needs=too_many))
    found = [attack.attack("dot_general", "bool", seed)[1] for seed in range(24)]
    assert any(found)
