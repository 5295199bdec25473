"""Decisions: collectives that not all devices reach, loops that end at different times."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import normal

from . import pair

DATA = {"data": [1, 4]}


def values():
    x = normal(8)
    x[:2] = 0.5, 0.25
    x[5] = 9.0
    return (x,)


def varying(x):
    return lax.pcast(x, "data", to="varying")


@pair(mesh=DATA, args=values, codes={"SW301"})
class collective_on_some_devices:
    """Devices with a large value ask for the global sum; the others do not come."""

    def right(x, *, mesh):
        def body(x):
            large = lax.pmax(jnp.abs(x).max(), "data") > 5
            return x / jnp.where(large, lax.psum(jnp.abs(x).sum(), "data"), 1.0)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def wrong(x, *, mesh):
        def body(x):
            def scaled(x):
                return x / lax.psum(jnp.abs(x).sum(), "data")  # wrong

            return lax.cond(jnp.abs(x).max() > 5, scaled, lambda x: x, x)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pair(mesh=DATA, args=values, codes={"SW301"})
class logging_on_the_first_device:
    """Only device 0 wants the mean for its log, and waits for the others for ever."""

    def right(x, *, mesh):
        def body(x):
            return lax.pmean(x.mean(), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    def wrong(x, *, mesh):
        def body(x):
            def mean(x):
                return varying(lax.pmean(x.mean(), "data"))  # wrong

            first = lax.axis_index("data") == 0
            return lax.cond(first, mean, lambda x: x.mean(), x)[None]  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pair(mesh=DATA, args=values, codes={"SW301"})
class loop_ends_by_the_local_error:
    """Each device stops when its own values are small; the psum inside waits for all."""

    def right(x, *, mesh):
        def body(x):
            def more(state):
                return lax.pmax(jnp.abs(state[0]).max(), "data") > 1

            def step(state):
                x, total = state
                return x / 2, total + lax.psum(x.sum(), "data")

            return lax.while_loop(more, step, (x, jnp.zeros(())))[1]

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    def wrong(x, *, mesh):
        def body(x):
            def more(state):
                return jnp.abs(state[0]).max() > 1

            def step(state):
                x, total = state
                return x / 2, total + varying(lax.psum(x.sum(), "data"))  # wrong

            start = (x, varying(jnp.zeros(())))
            return lax.while_loop(more, step, start)[1][None]  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pair(mesh=DATA, args=values, codes={"SW109"})
class iterations_of_each_device:
    """A loop without collectives ends when this device is done: the number of steps differs."""

    def right(x, *, mesh):
        def body(x):
            def more(x):
                return lax.pmax(jnp.abs(x).max(), "data") > 1

            return lax.while_loop(more, lambda x: x / 2, x)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def wrong(x, *, mesh):
        def body(x):
            return lax.while_loop(lambda x: jnp.abs(x).max() > 1, lambda x: x / 2, x)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pair(mesh=DATA, args=lambda: (normal(3), *values()), codes={"SW403", "SW405", "SW406"})
class update_skipped_by_some:
    """Devices whose gradient is too large skip the step, the others take it."""

    def right(w, x, *, mesh):
        def body(w, x):
            grads = lax.pmean(x.mean() * w, "data")
            small = lax.pmax(jnp.abs(x).max(), "data") < 5
            return jnp.where(small, w - grads, w)

        return shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    def wrong(w, x, *, mesh):
        def body(w, x):
            grads = lax.pmean(x.mean() * w, "data")
            small = jnp.abs(x).max() < 5  # wrong
            return jnp.where(small, w - grads, w)  # wrong

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)


def sparse():
    mask = jnp.zeros(8).at[:3].set(1.0)
    return normal(8), mask


@pair(mesh=DATA, args=sparse, codes={"SW107", "SW405"})
class mean_of_nothing:
    """A device whose examples are all padding divides by zero."""

    def right(x, mask, *, mesh):
        def body(x, mask):
            total, count = lax.psum((jnp.sum(x * mask), jnp.sum(mask)), "data")
            return total / count

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, mask)

    def wrong(x, mask, *, mesh):
        def body(x, mask):
            mean = jnp.sum(x * mask) / jnp.sum(mask)  # wrong
            return lax.pmean(mean, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, mask)


@pair(mesh=DATA, args=lambda: (normal(8, 2) / 2, normal(2)), codes={"SW109"})
class recurrence_restarted:
    """A recurrence over the examples is run on each part from the same start."""

    def right(x, state, *, mesh):
        def body(x, state):
            every = lax.all_gather(x, "data", tiled=True)
            first = lambda s, x: (jnp.tanh(s + x), None)  # noqa: E731
            return lax.scan(first, varying(state), every)[0]

        specs = (P("data"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(x, state)

    def wrong(x, state, *, mesh):
        def body(x, state):
            step = lambda s, x: (jnp.tanh(s + x), None)  # noqa: E731
            last = lax.scan(step, varying(state), x)[0]  # wrong
            return lax.pmean(last, "data")  # wrong

        specs = (P("data"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, state)


@pair(mesh=DATA, args=lambda: (normal(16),), codes={"SW109", "SW406"})
class best_of_one_part:
    """The best three of each device, and those of the first are kept."""

    def right(x, *, mesh):
        def body(x):
            every = lax.all_gather(lax.top_k(x, 3)[0], "data", tiled=True)
            return lax.top_k(every, 3)[0]

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

    def wrong(x, *, mesh):
        def body(x):
            return lax.top_k(x, 3)[0]  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)


@pair(mesh=DATA, args=lambda: (normal(4, 2), normal(8, 4)), codes={"SW109", "SW405"})
class branch_by_the_local_mean:
    """A schedule is chosen by the loss of this device."""

    def right(w, x, *, mesh):
        def body(w, x):
            mean = lax.pmean(jnp.mean(jax.nn.relu(x @ w)), "data")
            return x * lax.cond(mean > 0.35, lambda: 2.0, lambda: 0.5)

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(w, x)

    def wrong(w, x, *, mesh):
        def body(w, x):
            mean = jnp.mean(jax.nn.relu(x @ w))  # wrong
            rate = lax.cond(mean > 0.35, lambda: 2.0, lambda: 0.5)  # wrong
            return x * rate

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(w, x)
