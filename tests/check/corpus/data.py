"""Mistakes in data-parallel code: losses, gradients, metrics, statistics of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax, shard_map

from tests.support import integers, normal

from . import pair

DATA = {"data": [1, 4]}


def batch():
    return normal(3, 2), normal(8, 3), normal(8, 2)


def local_loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


SPECS = (P(), P("data"), P("data"))


@pair(mesh=DATA, args=batch, codes={"SW201", "SW401"})
class textbook_gradient:
    """The gradient of replicated parameters is already summed; a mean of it does nothing."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return jax.grad(lambda w: lax.pmean(local_loss(w, x, y), "data"))(w)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = jax.grad(local_loss)(w, x, y)  # wrong
            return lax.pmean(grads, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW401"})
class gradients_summed:
    """Gradients of mean losses are summed: the learning rate is n times what was set."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = jax.grad(local_loss)(w, x, y)
            return w - 0.1 * lax.pmean(grads, "data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = jax.grad(local_loss)(w, x, y)
            return lax.psum(grads, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW401"})
class update_with_summed_gradients:
    """The same, seen only in the new parameters."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.pmean(jax.grad(local_loss)(w, x, y), "data")
            return w - 0.1 * grads

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            grads = lax.psum(jax.grad(local_loss)(w, x, y), "data")  # wrong
            return w - 0.1 * grads

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW403"})
class loss_not_reduced:
    """The loss of the first device's examples is reported as that of the batch."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.pmean(local_loss(w, x, y), "data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            error = x @ w - y
            return jnp.mean(error**2)  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW401"})
class mean_losses_summed:
    """A psum where a pmean belongs: each device's loss is a mean already."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.pmean(local_loss(w, x, y), "data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.psum(local_loss(w, x, y), "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW401"})
class sum_divided_by_the_local_batch:
    """The sum is over all devices, the count over one."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            total = lax.psum(jnp.sum((x @ w - y) ** 2), "data")
            return total / (len(x) * lax.axis_size("data"))

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            total = lax.psum(jnp.sum((x @ w - y) ** 2), "data")
            return total / len(x)  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=batch, codes={"SW402"})
class divided_twice:
    """pmean divides by the number of devices, and then the author does."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.psum(local_loss(w, x, y), "data") / lax.axis_size("data")

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            loss = lax.pmean(local_loss(w, x, y), "data")
            return loss / lax.axis_size("data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


def masked():
    return normal(8), np.float32([1, 1, 1, 0, 1, 1, 0, 1])


@pair(mesh=DATA, args=masked, codes={"SW405"})
class mean_of_unequal_means:
    """Devices with few real tokens count as much as devices with many."""

    def right(values, mask, *, mesh):
        def body(values, mask):
            total, count = lax.psum((jnp.sum(values * mask), jnp.sum(mask)), "data")
            return total / count

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(values, mask)

    def wrong(values, mask, *, mesh):
        def body(values, mask):
            mean = jnp.sum(values * mask) / jnp.sum(mask)  # wrong
            return lax.pmean(mean, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(values, mask)


def found():
    return np.float32([1, 1, 0, 1, 1, 1, 0, 1]), np.float32([1, 0, 1, 1, 1, 1, 0, 0])


@pair(mesh=DATA, args=found, codes={"SW405"})
class precision_averaged:
    """Precision is a ratio of counts; the mean of the devices' ratios is another number."""

    def right(score, hit, *, mesh):
        def body(score, hit):
            found = score > 0
            return lax.psum(jnp.sum(found * hit), "data") / lax.psum(jnp.sum(found), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(score, hit)

    def wrong(score, hit, *, mesh):
        def body(score, hit):
            found = score > 0
            precision = jnp.sum(found * hit) / jnp.sum(found)  # wrong
            return lax.pmean(precision, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(score, hit)


@pair(
    mesh=DATA,
    args=lambda: (integers(16, low=0, high=4), integers(16, low=0, high=3)),
    codes={"SW402"},
)
class correct_answers_averaged:
    """A count of right answers is averaged where it should be summed."""

    def right(answer, label, *, mesh):
        def body(answer, label):
            return lax.psum(jnp.sum(answer == label).astype("float32"), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(answer, label)

    def wrong(answer, label, *, mesh):
        def body(answer, label):
            hits = jnp.sum(answer == label).astype("float32")
            return lax.pmean(hits, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(answer, label)


@pair(mesh=DATA, args=lambda: (integers(16, low=0, high=5),), codes={"SW403"})
class histogram_of_one_device:
    """Counts by class, never added up."""

    def right(labels, *, mesh):
        def body(labels):
            return lax.psum(jnp.bincount(labels, length=5), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(labels)

    def wrong(labels, *, mesh):
        def body(labels):
            return jnp.bincount(labels, length=5)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(
            labels
        )


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class largest_by_sum:
    """A psum of the devices' maxima."""

    def right(x, *, mesh):
        def body(x):
            return lax.pmax(x.max(0), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    def wrong(x, *, mesh):
        def body(x):
            return lax.psum(x.max(0), "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class mean_of_roots:
    """The root of a mean is taken before the mean over devices."""

    def right(error, *, mesh):
        def body(error):
            return jnp.sqrt(lax.pmean(jnp.mean(error**2), "data"))

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(error)

    def wrong(error, *, mesh):
        def body(error):
            root = jnp.sqrt(jnp.mean(error**2))  # wrong
            return lax.pmean(root, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(error)


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class perplexity_averaged:
    """The exponential of a mean loss is not the mean of exponentials."""

    def right(losses, *, mesh):
        def body(losses):
            return jnp.exp(lax.pmean(jnp.mean(losses), "data"))

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(losses)

    def wrong(losses, *, mesh):
        def body(losses):
            return lax.pmean(jnp.exp(jnp.mean(losses)), "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(losses)


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class mean_of_variances:
    """The variance of a batch is not the mean of its parts' variances."""

    def right(x, *, mesh):
        def body(x):
            mean = lax.pmean(x.mean(0), "data")
            return lax.pmean(((x - mean) ** 2).mean(0), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    def wrong(x, *, mesh):
        def body(x):
            return lax.pmean(x.var(0), "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


@pair(mesh=DATA, args=lambda: (normal(8, 3),), codes={"SW109", "SW405"})
class batch_norm_of_one_device:
    """Every device normalises by the statistics of its own examples."""

    def right(x, *, mesh):
        def body(x):
            mean = lax.pmean(x.mean(0), "data")
            second = lax.pmean((x**2).mean(0), "data")
            return (x - mean) * lax.rsqrt(second - mean**2 + 1e-5)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def wrong(x, *, mesh):
        def body(x):
            mean = x.mean(0)  # wrong
            second = (x**2).mean(0)  # wrong
            return (x - mean) * lax.rsqrt(second - mean**2 + 1e-5)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pair(mesh=DATA, args=batch, codes={"SW109", "SW404"})
class penalty_counted_by_every_device:
    """Weight decay is in the loss of every device, and the losses are summed."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            return lax.psum(jnp.sum((x @ w - y) ** 2), "data") + 0.1 * jnp.sum(w**2)

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            loss = jnp.sum((x @ w - y) ** 2) + 0.1 * jnp.sum(w**2)  # wrong
            return lax.psum(loss, "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


@pair(mesh=DATA, args=lambda: (normal(8, 8),), codes={"SW108"})
class predictions_gathered_along_features:
    """The parts are put side by side instead of one below the other."""

    def right(x, *, mesh):
        def body(x):
            return lax.all_gather(x, "data", tiled=True)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

    def wrong(x, *, mesh):
        def body(x):
            return lax.all_gather(x, "data", axis=1, tiled=True)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)


@pair(mesh=DATA, args=lambda: (normal(8, 4), normal(8, 4)), codes={"SW109"})
class contrast_within_a_device:
    """A contrastive loss has only the negatives of its own device."""

    def right(a, b, *, mesh):
        def body(a, b):
            every = lax.all_gather(b, "data", tiled=True)
            scores = a @ every.T
            own = jnp.sum(a * b, -1)
            return lax.pmean(jnp.mean(jax.nn.logsumexp(scores, -1) - own), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(a, b)

    def wrong(a, b, *, mesh):
        def body(a, b):
            scores = a @ b.T  # wrong
            own = jnp.sum(a * b, -1)
            return lax.pmean(jnp.mean(jax.nn.logsumexp(scores, -1) - own), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(a, b)
