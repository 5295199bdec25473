"""Mistakes in pipelines: layers split over `stage`, microbatches that flow through them."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import normal

from . import pair

STAGES = {"stage": [1, 4]}
SPECS = (P("stage"), P(), P())


def work():
    return normal(4, 3, 3) / 2, normal(3, 2, 3), normal(3, 2, 3)


def layers(w, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w + 0.1), None), x, w)[0]


def forward(n):
    return [(s, s + 1) for s in range(n - 1)]


def start(x):
    return lax.pcast((jnp.zeros_like(x[0]), jnp.zeros(())), "stage", to="varying")


def loss_of(w, x, y):
    """The sum of the losses of all microbatches on the last stage, zero elsewhere."""
    stage, n, m = lax.axis_index("stage"), lax.axis_size("stage"), len(x)

    def tick(carry, t):
        got, total = carry
        out = layers(w, jnp.where(stage == 0, x[jnp.minimum(t, m - 1)], got))
        done = t - (n - 1)
        error = jnp.sum((out - y[jnp.maximum(done, 0)]) ** 2)
        total += jnp.where((stage == n - 1) & (done >= 0), error, 0.0)
        return (lax.ppermute(out, "stage", forward(n)), total), None

    return lax.scan(tick, start(x), jnp.arange(m + n - 1))[0][1]


def right_loss(w, x, y, *, mesh):
    def body(w, x, y):
        return lax.psum(loss_of(w, x, y), "stage")

    return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=STAGES, args=work, codes={"SW403", "SW406"})
class loss_of_the_first_stage:
    """Only the last stage knows the loss, and the first one's zero is returned."""

    right = right_loss

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            return loss_of(w, x, y) / len(x)  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)


@pair(mesh=STAGES, args=work, codes={"SW402"})
class loss_averaged_over_stages:
    """One stage has the loss and the others zero: their mean is 1/n of it."""

    right = right_loss

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.pmean(loss_of(w, x, y), "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=STAGES, args=work, codes={"SW109"})
class bubble_in_the_loss:
    """Ticks in which the last stage has nothing real are counted as well."""

    right = right_loss

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            stage, n, m = lax.axis_index("stage"), lax.axis_size("stage"), len(x)

            def tick(carry, t):
                got, total = carry
                out = layers(w, jnp.where(stage == 0, x[jnp.minimum(t, m - 1)], got))
                error = jnp.sum((out - y[jnp.maximum(t - (n - 1), 0)]) ** 2)
                total += jnp.where(stage == n - 1, error, 0.0)  # wrong
                return (lax.ppermute(out, "stage", forward(n)), total), None

            loss = lax.scan(tick, start(x), jnp.arange(m + n - 1))[0][1]  # wrong
            return lax.psum(loss, "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=STAGES, args=work, codes={"SW109"})
class loss_of_every_stage:
    """Stages in the middle compare their activations with the targets."""

    right = right_loss

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            stage, n, m = lax.axis_index("stage"), lax.axis_size("stage"), len(x)

            def tick(carry, t):
                got, total = carry
                out = layers(w, jnp.where(stage == 0, x[jnp.minimum(t, m - 1)], got))
                done = t - (n - 1)
                error = jnp.sum((out - y[jnp.maximum(done, 0)]) ** 2)
                total += jnp.where(done >= 0, error, 0.0)  # wrong
                return (lax.ppermute(out, "stage", forward(n)), total), None

            loss = lax.scan(tick, start(x), jnp.arange(m + n - 1))[0][1]  # wrong
            return lax.psum(loss, "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=STAGES, args=work, codes={"SW109"})
class too_few_ticks:
    """The loop ends when the first stage is done, not when the last one is."""

    right = right_loss

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            stage, n, m = lax.axis_index("stage"), lax.axis_size("stage"), len(x)

            def tick(carry, t):
                got, total = carry
                out = layers(w, jnp.where(stage == 0, x[t], got))
                done = t - (n - 1)
                error = jnp.sum((out - y[jnp.maximum(done, 0)]) ** 2)
                total += jnp.where((stage == n - 1) & (done >= 0), error, 0.0)
                return (lax.ppermute(out, "stage", forward(n)), total), None

            loss = lax.scan(tick, start(x), jnp.arange(m))[0][1]  # wrong
            return lax.psum(loss, "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


def one():
    return normal(4, 3, 3) / 2, normal(2, 3)


def right_output(w, x, *, mesh):
    def body(w, x):
        stage, n = lax.axis_index("stage"), lax.axis_size("stage")
        x = lax.pcast(x, "stage", to="varying")
        for _ in range(n):
            out = layers(w, x)
            x = lax.ppermute(out, "stage", forward(n))
        return lax.psum(jnp.where(stage == n - 1, out, 0), "stage")

    return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)


@pair(mesh=STAGES, args=one, codes={"SW109"})
class sent_backwards:
    """The activations go to the stage before."""

    right = right_output

    def wrong(w, x, *, mesh):
        def body(w, x):
            stage, n = lax.axis_index("stage"), lax.axis_size("stage")
            x = lax.pcast(x, "stage", to="varying")
            for _ in range(n):
                out = layers(w, x)
                x = lax.ppermute(out, "stage", [(s + 1, s) for s in range(n - 1)])  # wrong
            return lax.psum(jnp.where(stage == n - 1, out, 0), "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)


@pair(mesh=STAGES, args=one, codes={"SW109"})
class output_of_the_first_stage:
    """The result is taken where the pipeline begins."""

    right = right_output

    def wrong(w, x, *, mesh):
        def body(w, x):
            stage, n = lax.axis_index("stage"), lax.axis_size("stage")
            x = lax.pcast(x, "stage", to="varying")
            for _ in range(n):
                out = layers(w, x)
                x = lax.ppermute(out, "stage", forward(n))
            return lax.psum(jnp.where(stage == 0, out, 0), "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)


@pair(mesh=STAGES, args=one, codes={"SW109"})
class output_of_all_stages:
    """What the stages hold at the end is added up, finished or not."""

    right = right_output

    def wrong(w, x, *, mesh):
        def body(w, x):
            n = lax.axis_size("stage")
            x = lax.pcast(x, "stage", to="varying")
            for _ in range(n):
                out = layers(w, x)
                x = lax.ppermute(out, "stage", forward(n))
            return lax.psum(out, "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)


@pair(mesh=STAGES, args=one, codes={"SW109", "SW403", "SW406"})
class nothing_sent:
    """Every stage runs its layers on the input, and nobody hands anything on."""

    right = right_output

    def wrong(w, x, *, mesh):
        def body(w, x):
            stage, n = lax.axis_index("stage"), lax.axis_size("stage")
            out = layers(w, lax.pcast(x, "stage", to="varying"))
            return lax.psum(jnp.where(stage == n - 1, out, 0), "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)


@pair(mesh=STAGES, args=work, codes={"SW109", "SW401", "SW403", "SW406"})
class gradient_of_the_summed_loss_without_check:
    """Without JAX's check the transpose of psum is another psum: n times the gradient."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return jax.grad(lambda w: lax.psum(loss_of(w, x, y), "stage"))(w)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("stage"))(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            return jax.grad(lambda w: lax.psum(loss_of(w, x, y), "stage"))(w)  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("stage"), check_vma=False)(
            w, x, y
        )
