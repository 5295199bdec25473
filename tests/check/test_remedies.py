"""The line and the remedy of small mistakes: what is named is what was done, and mends it."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw
from tests.support import check, normal

from .marks import line_of

MESH = {"data": [1, 2, 4]}


def over_a_mean(x, m):
    return lax.psum((x * m).sum(), "data") / lax.pmean(m.sum(), "data")  # wrong


def averaged_and_scaled(x, m):
    share = lax.pmean(x.sum(), "data")  # wrong
    return share * 0.3


def times_the_devices(x, m):
    total = lax.psum(x.sum(), "data")
    return total * lax.axis_size("data")  # wrong


def divided_twice(x, m):
    grad = jax.grad(lambda w: jnp.mean((x * w - 1) ** 2))(jnp.float32(0.7))
    return grad / lax.axis_size("data") ** 2  # wrong


def summed_loss(x, m):
    def loss(w):
        return lax.psum(jnp.mean((x * w - 1) ** 2), "data")  # wrong

    value, grad = jax.value_and_grad(loss)(jnp.float32(0.7))
    return grad + 0 * value


def around_own_mean(x, m):
    middle = x.mean()  # wrong
    return x - middle


def over_own_sum(x, m):
    weights = jnp.exp(x)
    return weights / weights.sum()  # wrong


def whole_over_a_share(x, m):
    whole = lax.psum(x @ x, "data")
    return lax.pmean(whole / (x @ (x + m)), "data")  # wrong


def scaled_by_own_largest(x, m):
    top = jnp.abs(x).max()  # wrong
    return x / top


def stretched_to_own_range(x, m):
    low = x.min()  # wrong
    return x - low


def own_softmax(x, m):
    top = x.max()  # wrong
    return jnp.exp((x - top) * 2)


def held_against_own_size(x, m):
    above = lax.psum((x > 0.6).sum(), "data")  # wrong
    return jnp.where(above * 2 < x.size, lax.pmin(x.min(), "data"), lax.pmax(x.max(), "data"))


SPLIT = around_own_mean, over_own_sum, scaled_by_own_largest, stretched_to_own_range, own_softmax


def upside_down(x, m):
    top = lax.pmax(x.max(), "data")
    weights = jnp.exp(x - x.max()) * jnp.exp(x.max() - top)
    over = lax.psum(weights @ x, "data")
    under = lax.pmean(weights.sum(), "data")  # wrong
    return over / under


def put_into_zeros(x, m):
    both = jnp.zeros(3).at[0].set(x.mean()).at[1].set((x**2).mean())
    return lax.psum(both, "data")  # wrong


def real_part(x, m):
    return lax.psum((x * (1 + 2j)).mean().imag, "data")  # wrong


CASES = {
    over_a_mean: ("SW401", "divide by the number of all"),
    averaged_and_scaled: ("SW402", "sum instead of averaging"),
    times_the_devices: ("SW401", "leave the number of devices out"),
    divided_twice: ("SW402", "leave out one factor"),
    summed_loss: ("SW401", "average it: jax.lax.pmean"),
    around_own_mean: ("SW405", "or pmean if they are means"),
    over_own_sum: ("SW405", "sum only what it is divided by: x / jax.lax.psum(..., 'data')"),
    whole_over_a_share: ("SW405", "sum only what it is divided by: x / jax.lax.psum(..., 'data')"),
    scaled_by_own_largest: ("SW405", "combine them first: jax.lax.pmax(..., 'data') of maxima"),
    stretched_to_own_range: ("SW405", "combine them first: jax.lax.pmax(..., 'data') of maxima"),
    own_softmax: ("SW405", "With it the logsumexp of all parts is"),
    held_against_own_size: ("SW401", "jax.lax.psum(x.size, 'data') that of the whole"),
    upside_down: ("SW401", "sum instead of averaging"),
    put_into_zeros: ("SW401", "average instead of summing"),
    real_part: ("SW401", "average instead of summing"),
}


def program(body, x, m, *, mesh, checked=True):
    out = P("data") if body in SPLIT else P()
    specs = {"in_specs": (P("data"), P("data")), "out_specs": out, "check_vma": checked}
    return jax.shard_map(body, mesh=mesh, **specs)(x, m)


def certain(verdict):
    return [finding for finding in verdict.findings if finding.certain]


@pytest.mark.parametrize("body", CASES, ids=lambda body: body.__name__)
def test_the_line_and_the_remedy(body):
    code, remedy = CASES[body]
    mask = (jnp.arange(16) % 5 != 0).astype("float32")
    (found,) = certain(sw.check(functools.partial(program, body), normal(16), mask, mesh=MESH))
    assert found.code == code
    assert found.where.line == line_of(body, "# wrong")
    assert remedy in found.remedy


def differentiated_sum(x, m):
    def loss(w):
        return lax.psum(jnp.sum((x * w - 1) ** 2), "data")  # wrong

    return lax.psum(jax.grad(loss)(jnp.float32(0.7)), "data")


def differentiated_mean(x, m):
    def loss(w):
        total = lax.psum(jnp.sum((x * w - 1) ** 2), "data")  # wrong
        return total / lax.psum(m.sum(), "data")

    return lax.psum(jax.grad(loss)(jnp.float32(0.7)), "data")


@pytest.mark.parametrize("body", [differentiated_sum, differentiated_mean])
def test_a_sum_that_is_differentiated_unchecked(body):
    """There the derivative of a sum over devices is a sum over devices."""
    unchecked = functools.partial(program, body, checked=False)
    (found,) = certain(check(unchecked, normal(16), normal(16), mesh=MESH))
    assert found.code == "SW401"
    assert found.where.line == line_of(body, "# wrong")
    assert "check_vma=False" in found.message


def around_the_ring(x, divisor):
    n = lax.axis_size("data")
    total = part = x.sum()
    for _ in range(n - 1):
        part = lax.ppermute(part, "data", [(i, (i + 1) % n) for i in range(n)])
        total = total + part
    return total / divisor(x)  # wrong


def test_what_went_round_a_ring_is_nobodys_share():
    body = functools.partial(around_the_ring, divisor=lambda x: x.size)
    ring = lambda x, *, mesh: jax.shard_map(  # noqa: E731
        body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False
    )(x)
    (found,) = certain(sw.check(ring, normal(16), mesh=MESH))
    assert found.code == "SW401"
    assert found.where.line == line_of(around_the_ring, "# wrong")


def test_a_gradient_around_the_shard_map_is_not_mended_outside_it():
    def step(w, x, *, mesh):
        def loss(w):
            body = lambda w, x: lax.psum(jnp.mean((x @ w) ** 2), "data")  # noqa: E731
            return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

        return jax.grad(loss)(w)

    (found,) = certain(sw.check(step, normal(3), normal(8, 3, seed=1), mesh=MESH))
    assert "jax.lax.pmean instead of psum inside the shard_map" in found.remedy
    assert "pcast" not in found.remedy


def test_split_parameters_differ_already():
    def step(w, x, *, mesh):
        def body(w, x):
            whole = lambda w: lax.all_gather(w, "data", axis=0, tiled=True)  # noqa: E731
            return jax.grad(lambda w: jnp.mean((x @ whole(w)) ** 2))(w)

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(w, x)

    (found,) = certain(sw.check(step, normal(8, 4), normal(16, 8, seed=1), mesh=MESH))
    assert "differentiate the reduced loss" in found.remedy
    assert "pcast" not in found.remedy


def test_what_tells_two_numbers_apart_is_printed():
    def slip(x, *, mesh):
        off = 0 if mesh.size == 1 else 2e-5
        split = {"in_specs": P("data"), "out_specs": P("data")}
        return jax.shard_map(lambda x: x.at[0].add(off), mesh=mesh, **split)(x)

    with jax.enable_x64(True):
        verdict = sw.check(slip, jnp.full(8, 3.5), mesh={"data": [1, 2]})
    assert "3.50002 instead of 3.5" in str(verdict)
