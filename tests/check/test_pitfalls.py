"""Every pitfall that the introductions to sharding name, and what shardwise says of it.

The table in `docs/check/pitfalls.md` is made from this file: `python -m tests.check.test_pitfalls`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import P, lax, shard_map

import shardwise as sw
from tests.support import normal

PAGE = Path(__file__).parents[2] / "docs" / "check" / "pitfalls.md"
ROWS: list[tuple[str, str]] = []
DATA = {"data": [1, 4]}
X = normal(8, 3)


def pitfall(name: str, says: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Declare a row of the table; the test is its proof."""

    def note(test: Callable[[], None]) -> Callable[[], None]:
        ROWS.append((name, says))
        return test

    return note


def codes(verdict):
    return {finding.code for finding in verdict.findings if finding.certain}


def check(f, *args, **options):
    return sw.check(f, *args, mesh=DATA, **options)


def loss_fn(w, x):
    return jnp.mean((x @ w) ** 2)


# --- evaluation in shards


@pitfall(
    "The batch does not divide by the number of devices.",
    "`ShardingError`: names the argument, the dimension and the nearest sizes that work. "
    "`sw.evaluate` pads and masks instead.",
)
def test_indivisible_batch():
    def total(x, *, mesh):
        body = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    with pytest.raises(sw.ShardingError, match=r"of size 7 .* nearest sizes that work are 4 or 8"):
        check(total, X[:7])


@pitfall(
    "A mean of means is not the mean when the shards are unequal (masked, padded).",
    "`SW405`: a division by a share, at the count; the remedy sums numerators and denominators "
    "separately.",
)
def test_mean_of_means():
    def mean(x, mask, *, mesh):
        def body(x, mask):
            return lax.pmean(jnp.sum(x * mask) / jnp.sum(mask), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, mask)

    verdict = check(mean, X[:, 0], np.float32([1, 1, 1, 0, 1, 1, 0, 1]))
    assert codes(verdict) == {"SW405"}
    assert "division by a share" in str(verdict)
    (finding,) = verdict.findings
    assert "psum(total, 'data') / jax.lax.psum(count, 'data')" in finding.remedy
    assert finding.fix is not None


@pitfall(
    "Parameters are initialised again on every shard.",
    "`SW106`: random numbers that follow the sharding, at the line that draws them.",
)
def test_initialised_per_shard():
    def predict(x, *, mesh):
        def body(x):
            key = jax.random.fold_in(jax.random.key(0), lax.axis_index("data"))
            return x @ jax.random.normal(key, (3, 2))

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    assert codes(check(predict, X)) == {"SW106"}


@pitfall(
    "The sum over shards is divided by the wrong count (or not at all).",
    "`SW401` (n times what it should be) or `SW402` (1/n), with the axis whose size it is.",
)
def test_wrong_count():
    def mean(x, *, mesh):
        body = lambda x: lax.psum(x.sum(), "data") / x.size  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    verdict = check(mean, X)
    assert codes(verdict) == {"SW401"}
    assert "is 4 times what it is" in str(verdict)
    assert "a sum over 'data' is divided by what one device has" in str(verdict)


# --- shard_map


@pitfall(
    "The parts are joined along a different dimension from the one they were split along.",
    "`SW108`: a different shape than on one device; `SW109` where the shape happens to fit.",
)
def test_other_dimension():
    def double(x, *, mesh):
        body = lambda x: 2 * x  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(None, "data"))(x)

    assert codes(check(double, X)) == {"SW108"}


@pitfall(
    "`shard_map` needs a mesh; `vmap` does not.",
    "`ShardingError`: this shard_map has no mesh, and there is no ambient mesh.",
)
def test_no_mesh():
    def total(x):
        body = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
        return shard_map(body, in_specs=P("data"), out_specs=P())(x)

    with pytest.raises(sw.ShardingError, match="has no mesh"):
        sw.simulate(total)(X)
    assert check(total, X)


@pitfall(
    "The body gets all rows of its shard, not one row: without `vmap` it reduces over them.",
    "`SW108`: a result for each device instead of one for each row.",
)
def test_all_local_rows():
    def largest(x, *, mesh):
        body = lambda rows: jnp.max(rows)[None]  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def right(x, *, mesh):
        return shard_map(jax.vmap(jnp.max), mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    assert codes(check(largest, X)) == {"SW108"}
    assert check(right, X)


@pitfall(
    "`P('data')` splits dimension 0. A spec that splits the features makes local results partial.",
    "`SW403`: only the first device's share, and which reduction gives the whole.",
)
def test_features_split():
    def squares(x, *, mesh):
        body = jax.vmap(lambda row: jnp.sum(row**2))
        specs = {"in_specs": P(None, "data"), "out_specs": P(), "check_vma": False}
        return shard_map(body, mesh=mesh, **specs)(x)

    verdict = check(squares, normal(3, 8))
    assert codes(verdict) == {"SW403"}
    assert "jax.lax.psum(..., 'data')" in verdict.findings[0].remedy


@pitfall(
    "Results of two ways of computing are stacked, and their shapes do not match.",
    "JAX's own error, as it is: it is raised while the program is traced.",
)
def test_stacked_shapes():
    def both(x, *, mesh):
        body = lambda rows: jnp.sum(rows**2)[None]  # noqa: E731
        parts = shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
        return jnp.stack([parts, jax.vmap(lambda r: jnp.sum(r**2))(x)])

    with pytest.raises(ValueError, match="same shape"):
        check(both, X)


@pitfall(
    "`vmap` with an axis name stands in for `shard_map` and passes what is n times wrong.",
    "`sw.simulate` and `sw.check` run what `shard_map` runs: `SW401`.",
)
def test_vmap_is_no_stand_in():
    def body(w, x):
        return lax.pmean(jax.grad(loss_fn)(w, x), "data")

    def step(w, x, *, mesh):
        return shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    w = normal(3, 2)
    parts = X.reshape(4, 2, 3)
    by_vmap = jax.vmap(body, in_axes=(None, 0), axis_name="data")(w, parts)[0]
    np.testing.assert_allclose(by_vmap, jax.grad(loss_fn)(w, X), rtol=1e-5)
    assert codes(check(step, w, X)) == {"SW401"}


# --- collectives


@pitfall(
    "A collective under a condition that some devices do not meet: the others wait forever.",
    "`SW301`: who waits at which line, and who never comes. `SW202` where it may happen.",
)
def test_deadlock():
    def some(x, *, mesh):
        def body(x):
            total = lambda x: lax.pcast(lax.psum(x, "data"), "data", to="varying")  # noqa: E731
            return lax.cond(lax.axis_index("data") == 0, total, lambda x: x, x)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    assert "SW301" in codes(check(some, X))


@pitfall(
    "The axis name of a collective or a spec is not one of the mesh's.",
    "`ShardingError`: there is no mesh axis 'batch' here; the mesh has 'data'.",
)
def test_axis_name():
    def by_collective(x, *, mesh):
        body = lambda x: lax.psum(x.sum(), "batch")  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    def by_spec(x, *, mesh):
        return shard_map(jnp.sin, mesh=mesh, in_specs=P("batch"), out_specs=P("batch"))(x)

    for program in (by_collective, by_spec):
        with pytest.raises(
            sw.ShardingError, match="no mesh axis 'batch' here; the mesh has 'data'"
        ):
            check(program, X)


@pitfall(
    "`out_specs` of a reduced value: it is the same everywhere, so the spec is `P()`.",
    "Declared split, it comes back n times over: `SW108`.",
)
def test_reduced_but_declared_split():
    def total(x, *, mesh):
        body = lambda x: lax.psum(x.sum(0), "data")  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    assert codes(check(total, X)) == {"SW108"}


@pitfall(
    "`psum` is forgotten: each device returns its partial sum.",
    "`SW206` (JAX rejects the spec), with the fix; with `check_vma=False`, `SW403`.",
)
def test_forgotten_psum():
    def total(x, *, mesh, **options):
        body = lambda x: x.sum()  # noqa: E731
        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), **options)(x)

    def unchecked(x, *, mesh):
        return total(x, mesh=mesh, check_vma=False)

    verdict = check(total, X)
    assert codes(verdict) == {"SW206"}
    assert verdict.findings[0].fix.verified == "proved"
    assert codes(check(unchecked, X)) == {"SW403"}


# --- a data-parallel step


def make():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def model_loss(model, x):
    return jnp.mean(model(x) ** 2)


def nnx_step(body):
    def step(model, optimizer, x, *, mesh):
        specs = {"in_specs": (P(), P(), P("data")), "out_specs": P()}
        return nnx.shard_map(body, mesh=mesh, **specs)(model, optimizer, x)

    return step


@pitfall(
    "The textbook recipe, `pmean` of the gradients inside `shard_map`, as printed.",
    "`SW206`: its loss is returned as `P()` and never reduced; the fix averages it before it is "
    "differentiated. Averaged afterwards, `SW401`: the gradient is n times what it should be, "
    "since autodiff has summed it already.",
)
def test_textbook_recipe():
    def as_printed(model, optimizer, x):
        loss, grads = nnx.value_and_grad(model_loss)(model, x)
        grads = jax.tree.map(lambda g: lax.pmean(g, "data"), grads)
        optimizer.update(model, grads)
        return loss

    def fixed(model, optimizer, x):
        return lax.pmean(as_printed(model, optimizer, x), "data")

    verdict = check(nnx_step(as_printed), *make(), X)
    assert codes(verdict) == {"SW206"}
    assert "+    return lax.pmean(jnp.mean(model(x) ** 2)" in verdict.findings[0].fix.diff
    verdict = check(nnx_step(fixed), *make(), X)
    assert codes(verdict) == {"SW401"}
    assert "autodiff sums this gradient over 'data'" in str(verdict)


@pitfall(
    "The optimizer is updated once per shard instead of once with the mean.",
    "`SW109`, at the line of the loop.",
)
def test_updated_per_shard():
    def step(w, x, *, mesh):
        def body(w, x):
            def one(w, row):
                return w - 0.1 * jax.grad(loss_fn)(w, row[None]), None

            return lax.pmean(lax.scan(one, lax.pcast(w, "data", to="varying"), x)[0], "data")

        return shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    assert codes(check(step, normal(3, 2), X)) == {"SW109"}


@pitfall(
    "Gradients are summed instead of averaged: an n times larger learning rate.",
    "`SW401`, at the `psum`; also where only new parameters are returned.",
)
def test_summed_gradients():
    def body(w, x):
        own = lax.pcast(w, "data", to="varying")
        return lax.psum(jax.grad(loss_fn)(own, x), "data")

    def gradients(w, x, *, mesh):
        return shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    def step(w, x, *, mesh):
        return w - 0.1 * gradients(w, x, mesh=mesh)

    for program in (gradients, step):
        (finding,) = (f for f in check(program, normal(3, 2), X).findings if f.certain)
        assert finding.code == "SW401"
        assert "is 4 times what it is" in finding.message
        assert "lax.psum" in finding.where.text


@pitfall(
    "`nnx.Optimizer` without `wrt=nnx.Param`.",
    "Flax's own `TypeError`, as it is.",
)
def test_without_wrt():
    def step(x, *, mesh):
        model, _ = make()
        nnx.Optimizer(model, optax.sgd(0.1))  # pyright: ignore
        return x

    with pytest.raises(TypeError, match="wrt"):
        check(step, X)


@pitfall(
    "The optimizer is made again inside the step, so its momentum is lost.",
    "Wrong alike on every mesh, so only `reference=` can show it: `SW110`.",
)
def test_optimizer_made_again():
    tx = optax.sgd(0.1, momentum=0.9)

    def mean_loss(w, x):
        return lax.pmean(loss_fn(w, x), "data")

    def step(w, state, x, *, mesh):
        def body(w, state, x):
            updates, _ = tx.update(jax.grad(mean_loss)(w, x), tx.init(w), w)
            return optax.apply_updates(w, updates)

        specs = {"in_specs": (P(), P(), P("data")), "out_specs": P()}
        return shard_map(body, mesh=mesh, **specs)(w, state, x)

    def dense(w, state, x):
        updates, _ = tx.update(jax.grad(loss_fn)(w, x), state, w)
        return optax.apply_updates(w, updates)

    w = jnp.asarray(normal(3, 2))
    _, state = tx.update(jax.grad(loss_fn)(w, X), tx.init(w), w)
    assert check(step, w, state, X)
    assert codes(check(step, w, state, X, reference=dense)) == {"SW110"}


UNSEEN = """\
Three of the pitfalls are not in the program and cannot be seen in it: initialising on the full
batch (memory before the program starts), jitting the Python loop over shards (when memory is
freed), and too few devices on the machine at hand. For the last, see `sw.simulate`.
"""


def page() -> str:
    """The page of the documentation."""
    lines = [
        "# Pitfalls, and what shardwise says",
        "",
        "Every mistake that introductions to `shard_map`, collectives and data parallelism warn",
        "of, and the finding or the error that it gets. Each row has a test in",
        "`tests/check/test_pitfalls.py`, from which this page is made.",
        "",
        "| pitfall | what shardwise says |",
        "|---|---|",
        *(f"| {name} | {says} |" for name, says in ROWS),
        "",
        UNSEEN,
    ]
    return "\n".join(lines).rstrip() + "\n"


def test_the_page_is_made_from_this_file():
    assert PAGE.read_text() == page(), "python -m tests.check.test_pitfalls"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit()
