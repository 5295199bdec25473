"""Mistakes between the gradient and the new parameters."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import normal

from . import pair

DATA = {"data": [1, 4]}
SPECS = (P(), P("data"), P("data"))


def batch():
    return normal(4, 2), normal(8, 4), normal(8, 2)


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def local_grads(w, x, y):
    return jax.grad(loss)(lax.pcast(w, "data", to="varying"), x, y)


@pair(mesh=DATA, args=batch, codes={"SW401"})
class scattered_sum_not_divided:
    """ZeRO: psum_scatter adds the gradients of mean losses, and nobody divides."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            full = lax.all_gather(w, "data", tiled=True)
            grads = lax.psum_scatter(jax.grad(loss)(full, x, y), "data", tiled=True)
            return grads / lax.axis_size("data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            full = lax.all_gather(w, "data", tiled=True)
            grads = jax.grad(loss)(full, x, y)
            return lax.psum_scatter(grads, "data", tiled=True)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW401"})
class scattered_update_not_divided:
    """The same, seen in the new parameters."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            full = lax.all_gather(w, "data", tiled=True)
            grads = lax.psum_scatter(jax.grad(loss)(full, x, y), "data", tiled=True)
            return w - 0.1 * grads / lax.axis_size("data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            full = lax.all_gather(w, "data", tiled=True)
            grads = jax.grad(loss)(full, x, y)
            grads = lax.psum_scatter(grads, "data", tiled=True)  # wrong
            return w - 0.1 * grads  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW403", "SW405", "SW406"})
class adam_on_local_gradients:
    """Each device normalises its own gradient, and they drift apart."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(local_grads(w, x, y), "data")
            return w - 0.1 * grads / (jnp.sqrt(grads**2) + 1e-3)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = jax.grad(loss)(w, x, y)  # wrong
            return w - 0.1 * grads / (jnp.sqrt(grads**2) + 1e-3)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW405"})
class normalised_before_the_mean:
    """Adam's normalisation is applied to local gradients, then averaged."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(local_grads(w, x, y), "data")
            return w - 0.1 * grads / (jnp.sqrt(grads**2) + 1e-3)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = local_grads(w, x, y)
            update = grads / (jnp.sqrt(grads**2) + 1e-3)  # wrong
            return w - 0.1 * lax.pmean(update, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW405"})
class clipped_by_the_local_norm:
    """Each device clips its own gradient before the mean."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(local_grads(w, x, y), "data")
            return grads / jnp.maximum(1, jnp.linalg.norm(grads) / 0.1)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = local_grads(w, x, y)
            clipped = grads / jnp.maximum(1, jnp.linalg.norm(grads) / 0.1)  # wrong
            return lax.pmean(clipped, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class clipped_by_the_norm_of_a_part:
    """With split parameters the norm is a sum over all devices."""

    def right(grads, *, mesh):
        def body(grads):
            norm = jnp.sqrt(lax.psum(jnp.sum(grads**2), "data"))
            return grads / jnp.maximum(1, norm)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(grads)

    def wrong(grads, *, mesh):
        def body(grads):
            norm = jnp.sqrt(jnp.sum(grads**2))  # wrong
            return grads / jnp.maximum(1, norm)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(grads)


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class norms_added:
    """Norms are added where their squares should be."""

    def right(grads, *, mesh):
        def body(grads):
            return jnp.sqrt(lax.psum(jnp.sum(grads**2), "data"))

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(grads)

    def wrong(grads, *, mesh):
        def body(grads):
            return lax.psum(jnp.sqrt(jnp.sum(grads**2)), "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(grads)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW404"})
class decay_summed:
    """Weight decay is added to every device's gradient, and the gradients are summed."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(local_grads(w, x, y), "data") + 0.1 * w
            return w - 0.1 * grads

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = local_grads(w, x, y) / lax.axis_size("data") + 0.1 * w  # wrong
            return w - 0.1 * lax.psum(grads, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW401"})
class rate_scaled_by_devices:
    """The learning rate grows with the devices though the batch does not."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(local_grads(w, x, y), "data")
            return w - 0.1 * grads

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(local_grads(w, x, y), "data")
            rate = 0.1 * lax.axis_size("data")
            return w - rate * grads  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(
    mesh=DATA,
    args=lambda: (normal(4, 2), normal(16, 4), normal(16, 2)),
    codes={"SW402"},
)
class accumulated_by_a_fixed_count:
    """The number of microbatches is taken to be that of one device."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            steps = zip(x.reshape(-1, 2, 4), y.reshape(-1, 2, 2), strict=True)
            grads = [local_grads(w, *step) for step in steps]
            return lax.pmean(sum(grads) / len(grads), "data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            steps = zip(x.reshape(-1, 2, 4), y.reshape(-1, 2, 2), strict=True)
            grads = [local_grads(w, *step) for step in steps]
            return lax.pmean(sum(grads) / 8, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


def accumulated(w, x, y):
    def step(total, xy):
        return total + local_grads(w, *xy), None

    start = lax.pcast(jnp.zeros_like(w), "data", to="varying")
    return lax.scan(step, start, (x.reshape(-1, 2, 4), y.reshape(-1, 2, 2)))[0]


@pair(mesh=DATA, args=lambda: (normal(4, 2), normal(16, 4), normal(16, 2)), codes={"SW402"})
class accumulated_in_a_loop:
    """Microbatches of two rows, as many as a device has, and a divisor that is not their number."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.pmean(accumulated(w, x, y) / (x.shape[0] // 2), "data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.pmean(accumulated(w, x, y) / 8, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=lambda: (normal(4, 2), normal(8, 4), normal(8, 2)), codes={"SW109"})
class updated_at_every_microbatch:
    """The parameters move between microbatches, so that how many there are matters."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return w - 0.1 * lax.pmean(local_grads(w, x, y), "data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            def step(w, xy):
                return w - 0.1 * jax.grad(loss)(w, xy[0][None], xy[1][None]), None

            new, _ = lax.scan(step, lax.pcast(w, "data", to="varying"), (x, y))  # wrong
            return lax.pmean(new, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=lambda: (normal(4, 2), normal(4, 2)), codes={"SW109", "SW401"})
class average_summed:
    """A running average of the parameters, the same everywhere, is summed for good measure."""

    def right(average, w, *, mesh):
        def body(average, w):
            return 0.9 * average + 0.1 * w

        return shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())(average, w)

    def wrong(average, w, *, mesh):
        def body(average, w):
            return lax.psum(0.9 * average + 0.1 * w, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(average, w)
