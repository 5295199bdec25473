"""The axis of a factor: the one along which the result is wrong, whatever the sizes are."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

from shardwise._analysis.faults.powers import powers, size_words
from tests.support import check, normal

from .marks import line_of

SPECS = {"wi": P(None, "tp"), "wo": P("tp", None), "bo": P()}
X = normal(8, 4)


def weights(bias):
    return {"wi": normal(4, 8, seed=1), "wo": normal(8, 4, seed=2), "bo": bias}


def forward(p, x):
    return lax.psum(jnp.tanh(x @ p["wi"]) @ p["wo"] + p["bo"], "tp")  # counted


def output(p, x, *, mesh):
    specs = {"in_specs": (SPECS, P("dp")), "out_specs": P("dp")}
    return jax.shard_map(forward, mesh=mesh, **specs)(p, x)


def gradients(p, x, *, mesh):
    def body(p, x):
        return jax.value_and_grad(lambda p: lax.pmean((forward(p, x) ** 2).mean(), "dp"))(p)

    specs = {"in_specs": (SPECS, P("dp")), "out_specs": (P(), SPECS)}
    return jax.shard_map(body, mesh=mesh, **specs)(p, x)


EQUAL, UNEQUAL = {"dp": [1, 2, 4], "tp": [1, 2, 4]}, {"dp": [1, 4], "tp": [1, 2]}


@pytest.mark.parametrize("mesh", [EQUAL, UNEQUAL, {"dp": 4, "tp": 4}])
@pytest.mark.parametrize("program", [output, gradients])
def test_the_axis_does_not_depend_on_the_sizes(program, mesh):
    verdict = check(program, weights(normal(4, seed=3)), X, mesh=mesh)
    first = verdict.findings[0]
    assert (first.code, first.where.line) == ("SW404", line_of(forward, "# counted"))
    assert "before the sum over 'tp'" in first.message
    assert "'dp'" not in first.message + first.remedy


@pytest.mark.parametrize("mesh", [EQUAL, UNEQUAL])
def test_a_bias_of_zeros_hides_it_from_the_numbers_and_not_from_the_verdict(mesh):
    verdict = check(output, weights(jnp.zeros(4)), X, mesh=mesh)
    assert verdict.ok
    assert "passed a weak test" in str(verdict)
    (finding,) = verdict.findings
    assert (finding.code, finding.where.line) == ("SW404", line_of(forward, "# counted"))
    assert "in which p['bo'] is zero" in finding.message


@pytest.mark.parametrize("mesh", [EQUAL, UNEQUAL])
def test_a_gradient_is_explained_by_what_the_loss_hides(mesh):
    verdict = check(gradients, weights(jnp.zeros(4)), X, mesh=mesh)
    (finding,) = (one for one in verdict.findings if one.certain)
    assert (finding.code, finding.where.line) == ("SW404", line_of(forward, "# counted"))
    assert finding.leaf == "result[1]['bo']"


def test_with_a_reference_too():
    def body(x):
        return lax.psum(lax.pmean(x.sum(), "dp") * lax.axis_size("dp"), "tp")

    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("dp"), out_specs=P())(x)

    verdict = check(program, X, mesh=EQUAL, reference=lambda x: x.sum())
    (finding,) = (one for one in verdict.findings if one.code == "SW401")
    assert "4 times what it is on one device: it is summed over 'tp'" in finding.message
    assert "autodiff" not in str(verdict)
    assert "leave the sum out" in finding.remedy


def test_what_came_out_different_is_not_said_to_be_the_same():
    def body(x):
        return jnp.tanh(x.sum())

    def program(x, *, mesh):
        specs = {"in_specs": P("dp"), "out_specs": P(), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    verdict = check(program, X, mesh={"dp": [1, 2]})
    assert not verdict
    assert "came out the same" not in str(verdict)


BOTH = {"dp": 4, "tp": 4}


@pytest.mark.parametrize(
    ("sizes", "factor", "seen", "found"),
    [
        (BOTH, 4, [], [{"tp": 1}, {"dp": 1}]),
        (BOTH, 4, [({"dp": 4, "tp": 1}, 1)], [{"tp": 1}]),
        (BOTH, 4, [({"dp": 2, "tp": 4}, 2)], [{"dp": 1}]),
        ({"dp": 4, "tp": 2}, 4, [({"dp": 1, "tp": 2}, 4)], [{"tp": 2}]),
        ({"dp": 4, "tp": 2}, 4, [({"dp": 4, "tp": 1}, 1)], [{"tp": 2}]),
        (BOTH, Fraction(1, 4), [({"dp": 4, "tp": 2}, Fraction(1, 4))], [{"dp": -1}]),
        ({"dp": 4, "tp": 2}, Fraction(1, 2), [({"dp": 1, "tp": 2}, 2)], [{"dp": -1, "tp": 1}]),
        (BOTH, 3, [], []),
        (BOTH, 1, [], []),
    ],
)
def test_powers_fit_every_mesh(sizes, factor, seen, found):
    assert powers(sizes, Fraction(factor), [(m, Fraction(n)) for m, n in seen]) == found


def test_powers_in_words():
    assert size_words({"tp": 2}) == "the square of the size of 'tp'"
    assert size_words({"dp": -1, "tp": 1}) == "the size of 'tp' over that of 'dp'"
    assert size_words({"dp": -1}) == "1 over the size of 'dp'"
