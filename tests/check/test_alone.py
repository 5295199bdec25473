"""What each device does with its own part alone is told at its line, and as such."""

import inspect

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import P, lax

import shardwise as sw

from ..support import normal

X, W = normal(16, 4), normal(4, 4, seed=1)


def negatives(w, x):
    a, b = x @ w, jnp.sin(x) @ w
    logits = a @ b.T  # here
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(logits)))
    return lax.pmean(losses.mean(), "data")


def median(w, x):
    return lax.pmean(jnp.median(x @ w), "data")  # here


def hardest(w, x):
    return lax.pmean(lax.top_k((x @ w)[:, 0], 2)[0].mean(), "data")  # here


def running(w, x):
    return lax.pmean((jnp.cumsum(x @ w, 0) ** 2).mean(), "data")  # here


def product(w, x):
    return lax.psum(jnp.prod((x @ w)[:, 0]), "data")  # here


def mapped(body):
    def program(w, x, *, mesh):
        specs = P(), P("data")
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x)

    return program


def line_of(body):
    lines, first = inspect.getsourcelines(body)
    return first + next(k for k, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize("body", [negatives, median, hardest, running, product])
def test_an_operation_on_a_part(body):
    verdict = sw.check(mapped(body), W, X, mesh={"data": [1, 2, 4]})
    (finding,) = verdict.findings
    assert (finding.code, finding.where.line) == ("SW109", line_of(body))
    if body is median:
        # It may ask for NaN, which is a question about the data that no rule follows.
        assert finding.fix is not None
        assert finding.fix.description.startswith("gather ")
        return
    assert "its own part" in finding.message
    assert "over 'data' alone" in finding.message
    assert "all_gather(x, 'data', tiled=True)" in finding.remedy


def test_gathered_as_the_remedy_says_it_is_right():
    def body(w, x):
        a, b = x @ w, jnp.sin(x) @ w
        logits = a @ lax.all_gather(b, "data", tiled=True).T
        labels = jnp.arange(len(a)) + len(a) * lax.axis_index("data")
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return lax.pmean(losses.mean(), "data")

    assert sw.check(mapped(body), W, X, mesh={"data": [1, 2, 4]})


def test_a_step_of_the_library_is_told_at_the_line_of_the_loss():
    def loss(params, x):
        a, b = x @ params, jnp.sin(x) @ params
        logits = a @ b.T  # here
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(logits)))

    step = sw.data_parallel(loss, optax.adam(0.1))
    finding = sw.check(step, step.init(W), X, mesh={"data": [1, 2]}).findings[0]
    assert finding.where.line == line_of(loss)


def test_parts_that_are_exchanged_later_are_not_called_alone():
    """Sorted parts may be put together by what the devices send each other: here, wrongly."""

    def body(w, x):
        part = jnp.sort((x @ w)[:, 0])
        return lax.all_gather(part, "data", tiled=True)

    def program(w, x, *, mesh):
        specs = P(), P("data")
        mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
        return mapped(w, x)

    verdict = sw.check(program, W, X, mesh={"data": [1, 4]})
    assert not verdict
    assert not any("alone" in finding.message for finding in verdict.findings)
