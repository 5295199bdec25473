"""Statistics, clusters, linear algebra."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import integers, normal

from . import harder

DATA = {"data": 4}
ROWS = P("data")
X, BINS, WEIGHTS = normal(16, 6), integers(16, low=0, high=5), normal(16) ** 2


def whole_sum(x):
    return lax.psum(x, "data")


@harder(DATA, ROWS, P(), BINS)
def histogram_by_one_hot(bins):
    return whole_sum(jax.nn.one_hot(bins, 5, dtype=jnp.int32).sum(0))


@harder(DATA, ROWS, P(), BINS, reference=lambda b: jnp.zeros(5, int).at[b].add(1))
def histogram_by_scatter(bins):
    return whole_sum(jnp.zeros(5, int).at[bins].add(1))


@harder(DATA, (ROWS, ROWS), P(), X[:, 0], WEIGHTS)
def histogram_with_bounds_of_the_data(x, weights):
    low, high = lax.pmin(x.min(), "data"), lax.pmax(x.max(), "data")
    bins = jnp.clip(jnp.floor((x - low) / (high - low) * 5), 0, 4).astype(jnp.int32)
    return whole_sum(jax.ops.segment_sum(weights, bins, 5))


@harder(DATA, ROWS, P(), X, reference=lambda x: (x.mean(0), ((x - x.mean(0)) ** 2).mean(0)))
def variance_in_two_passes(x):
    mean = lax.pmean(x.mean(0), "data")
    return mean, lax.pmean(((x - mean) ** 2).mean(0), "data")


@harder(DATA, ROWS, P(), X, reference=lambda x: x.var(0))
def variance_combined_from_local_ones(x):
    mean, variance = x.mean(0), x.var(0)
    total = lax.pmean(mean, "data")
    return lax.pmean(variance + (mean - total) ** 2, "data")


@harder(DATA, (ROWS, ROWS), P(), X, WEIGHTS)
def weighted_mean_and_variance(x, weights):
    count = whole_sum(weights.sum())
    mean = whole_sum(weights @ x) / count
    return mean, whole_sum(weights @ (x - mean) ** 2) / count


@harder(DATA, ROWS, P(), X)
def covariance_and_correlation(x):
    x = x - lax.pmean(x.mean(0), "data")
    covariance = whole_sum(x.T @ x) / (len(x) * lax.axis_size("data") - 1)
    deviation = jnp.sqrt(jnp.diag(covariance))
    return covariance / deviation / deviation[:, None]


@harder(DATA, (ROWS, P()), P(), X, normal(6))
def power_iteration(x, start):
    def step(v, _):
        v = whole_sum(x.T @ (x @ v))
        return v / jnp.linalg.norm(v), None

    return lax.scan(step, start, None, 5)[0]


@harder(DATA, (ROWS, P()), P(), X, normal(3, 6))
def a_step_of_k_means(x, centres):
    nearest = ((x[:, None] - centres) ** 2).sum(-1).argmin(-1)
    mine = jax.nn.one_hot(nearest, 3)
    return whole_sum(mine.T @ x) / jnp.maximum(whole_sum(mine.sum(0)), 1)[:, None]


@harder(DATA, (ROWS, P(), P()), P(), X, normal(3, 6), normal(3))
def a_step_of_a_mixture_of_gaussians(x, means, logits):
    distance = -((x[:, None] - means) ** 2).sum(-1) / 2
    share = jax.nn.softmax(distance + jax.nn.log_softmax(logits), -1)
    count = whole_sum(share.sum(0))
    return whole_sum(share.T @ x) / count[:, None], jnp.log(count)


@harder(DATA, (ROWS, ROWS), P(), X, normal(16))
def ridge_regression(x, y):
    gram, right = whole_sum(x.T @ x) + 0.1 * jnp.eye(6), whole_sum(x.T @ y)
    return jnp.linalg.solve(gram, right)


@harder(DATA, (ROWS, ROWS), ROWS, normal(8, 5, 5), normal(8, 5))
def systems_of_a_split_batch(a, b):
    return jnp.linalg.solve(a, b[..., None])[..., 0]


@harder(DATA, ROWS, ROWS, normal(8, 5, 5))
def decompositions_of_a_split_batch(a):
    factor = jnp.linalg.cholesky(jnp.einsum("bij,bkj->bik", a, a) + jnp.eye(5))
    return factor, jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(-1)


@harder(DATA, (P(None, "data"), P("data")), P(), normal(6, 16), normal(16))
def conjugate_gradient_step_of_split_columns(a, direction):
    product = whole_sum(a @ direction)
    back = product @ a
    step = whole_sum(jnp.sum(direction * direction)) / (product @ product)
    return lax.psum(jnp.sum((direction - step * back) ** 2), "data")


@harder(DATA, ROWS, P(), X[:, 0], reference=jnp.median, check_vma=False)
def median_of_gathered_rows(x):
    return jnp.median(lax.all_gather(x, "data", tiled=True))


@harder(DATA, (ROWS, ROWS), P(), X[:, 0], BINS > 2, check_vma=False)
def area_under_the_curve_by_pairs(scores, labels):
    every = lax.all_gather(scores, "data", tiled=True)
    others = lax.all_gather(labels, "data", tiled=True)
    pairs = labels[:, None] & ~others[None]
    wins = jnp.where(scores[:, None] > every, 1.0, 0.5 * (scores[:, None] == every))
    return whole_sum(jnp.sum(wins * pairs)) / whole_sum(pairs.sum())


@harder(DATA, (ROWS, P(), P(), P()), P(), X, normal(6, 6), normal(3, 6), normal(2, 6))
def distances_to_the_nearest_of_all(x, w, first, second):
    codes = jnp.concatenate([first, second]) @ w
    distance = ((x[:, None] - codes) ** 2).sum(-1)
    return lax.pmean(distance.min(-1).mean(), "data")


EDGES = integers(24, 2, low=0, high=16)


@harder(DATA, (P(), ROWS, P()), P(), X, EDGES, normal(6, 6))
def messages_along_split_edges(nodes, edges, w):
    sent = jnp.tanh(nodes[edges[:, 0]] @ w)
    total = whole_sum(jax.ops.segment_sum(sent, edges[:, 1], 16))
    degree = whole_sum(jax.ops.segment_sum(jnp.ones(len(edges)), edges[:, 1], 16))
    return nodes + total / jnp.maximum(degree, 1)[:, None]


@harder(
    DATA,
    (ROWS, P()),
    P(),
    X[:, 0],
    normal(7),
    reference=lambda x, g: jnp.exp(-((g[:, None] - x) ** 2)).mean(1),
)
def kernel_density(x, grid):
    return lax.pmean(jnp.exp(-((grid[:, None] - x) ** 2)).mean(1), "data")


@harder(DATA, ROWS, P(), X, reference=lambda x: (x.max(0), x.min(0), (x**2).sum() ** 0.5))
def largest_smallest_and_norm(x):
    return lax.pmax(x.max(0), "data"), lax.pmin(x.min(0), "data"), jnp.sqrt(whole_sum((x**2).sum()))


@harder(
    DATA,
    (ROWS, P()),
    P(),
    X,
    jax.random.key(5),
    reference=lambda x, key: x[jax.random.permutation(key, 16)[:4]].sum(0),
    check_vma=False,
)
def a_random_sample_of_gathered_rows(x, key):
    x = lax.all_gather(x, "data", tiled=True)
    return x[jax.random.permutation(key, len(x))[:4]].sum(0)
