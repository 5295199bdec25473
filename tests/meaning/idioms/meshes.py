"""Several axes, grids, transforms and stencils."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import integers, normal

from . import harder

GRID = {"a": 2, "b": 4}
BOTH = P(("a", "b"))
X = normal(16, 6)


@harder(GRID, BOTH, BOTH, X, reference=lambda x: x * jnp.arange(16)[:, None])
def position_over_two_axes(x):
    rows = lax.axis_index(("a", "b")) * len(x) + jnp.arange(len(x))
    return x * rows[:, None]


@harder(GRID, BOTH, P(), X, reference=lambda x: x[3:11].sum(0))
def rows_between_bounds_over_two_axes(x):
    rows = lax.axis_index(("a", "b")) * len(x) + jnp.arange(len(x))
    return lax.psum(jnp.where(((rows >= 3) & (rows < 11))[:, None], x, 0).sum(0), ("a", "b"))


@harder(GRID, (BOTH, P()), BOTH, X, jax.random.key(1))
def noise_of_the_position_over_two_axes(x, key):
    rows = lax.axis_index(("a", "b")) * len(x) + jnp.arange(len(x))
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(rows)
    return x + jax.vmap(lambda k: jax.random.normal(k, (6,)))(keys)


@harder(
    GRID, (BOTH, P()), P(), normal(16, 6), integers(9, low=0, high=16), reference=lambda t, i: t[i]
)
def embedding_of_rows_over_two_axes(table, ids):
    local = ids - lax.axis_index(("a", "b")) * len(table)
    mine = (local >= 0) & (local < len(table))
    rows = jnp.where(mine[:, None], table[jnp.where(mine, local, 0)], 0)
    return lax.psum(rows, ("a", "b"))


@harder(GRID, (P("a"), P("b"), P("a")), (P("b"), P()), normal(8, 12), normal(12, 6), normal(8, 6))
def gradients_of_split_weights_and_split_rows(x, w, y):
    def loss(w):
        columns = lax.axis_index("b") * len(w)
        part = lax.dynamic_slice_in_dim(x, columns, len(w), axis=1)
        h = lax.psum(part @ w, "b")
        return lax.pmean(jnp.mean((h - y) ** 2), "a")

    value, grads = jax.value_and_grad(loss)(w)
    return grads, value


SQUARE = {"a": 2, "b": 2}
BLOCKS = P("a", "b")


@harder(
    SQUARE,
    (BLOCKS, BLOCKS),
    BLOCKS,
    normal(8, 8),
    normal(8, 8, seed=1),
    reference=lambda x, w: x @ w,
)
def product_of_blocks_step_by_step(x, w):
    """SUMMA: a column of blocks of one and a row of the other are sent to all."""
    total = 0
    for k in range(lax.axis_size("a")):
        left = lax.psum(jnp.where(lax.axis_index("b") == k, x, 0), "b")
        right = lax.psum(jnp.where(lax.axis_index("a") == k, w, 0), "a")
        total = total + left @ right
    return total


@harder(
    SQUARE,
    (P(None, "b"), P("b", "a"), P("a"), BLOCKS),
    P(None, "b"),
    *(normal(8, 8, seed=i) for i in range(2)),
    normal(8),
    normal(8, 8, seed=2),
)
def two_layers_split_both_ways(x, first, bias, second):
    h = jnp.tanh(lax.psum(x @ first, "b") + bias)
    return lax.psum(h @ second, "a")


ONE = {"a": 4}


@harder(ONE, P("a"), P("a"), normal(8, 12), reference=lambda x: x.T)
def transpose_by_exchange(x):
    return lax.all_to_all(x.T, "a", 0, 1, tiled=True)


@harder(ONE, P("a"), P(None, "a"), normal(8, 16), reference=lambda x: jnp.abs(jnp.fft.fft2(x)))
def fourier_transform_of_a_split_plane(x):
    rows = jnp.fft.fft(x, axis=1)
    return jnp.abs(jnp.fft.fft(lax.all_to_all(rows, "a", 1, 0, tiled=True), axis=0))


def plain_heat(u):
    for _ in range(6):
        wide = jnp.pad(u, 1)
        u = u + 0.1 * (wide[:-2] - 2 * u + wide[2:])
    return u


@harder(ONE, P("a"), P("a"), normal(16), reference=plain_heat)
def heat_equation_with_halo(u):
    size = lax.axis_size("a")

    def step(u, _):
        left = lax.ppermute(u[-1:], "a", [(i, i + 1) for i in range(size - 1)])
        right = lax.ppermute(u[:1], "a", [(i + 1, i) for i in range(size - 1)])
        wide = jnp.concatenate([left, u, right])
        return u + 0.1 * (wide[:-2] - 2 * u + wide[2:]), None

    return lax.scan(step, u, None, 6)[0]


@harder(
    ONE, P("a"), P("a"), normal(16, 8), reference=lambda u: jnp.roll(u, 1, 0) - jnp.roll(u, -1, 0)
)
def periodic_difference(u):
    size = lax.axis_size("a")
    around = [(i, (i + 1) % size) for i in range(size)]
    left = lax.ppermute(u[-1:], "a", around)
    right = lax.ppermute(u[:1], "a", [(j, i) for i, j in around])
    return jnp.concatenate([left, u[:-1]]) - jnp.concatenate([u[1:], right])


@harder(SQUARE, BLOCKS, BLOCKS, normal(8, 8))
def stencil_on_a_grid_of_blocks(u):
    def shift(x, axis, step):
        size = lax.axis_size(axis)
        return lax.ppermute(x, axis, [(i, (i + step) % size) for i in range(size)])

    up, down = shift(u[-1:], "a", 1), shift(u[:1], "a", -1)
    left, right = shift(u[:, -1:], "b", 1), shift(u[:, :1], "b", -1)
    rows = jnp.concatenate([up, u, down])
    columns = jnp.concatenate([left, u, right], 1)
    return rows[:-2] + rows[2:] + columns[:, :-2] + columns[:, 2:] - 4 * u


@harder(ONE, (P("a"), P("a")), P(), normal(8, 3), normal(8))
def forces_between_all_pairs_round_a_ring(x, mass):
    size, energy, there, weights = lax.axis_size("a"), 0.0, x, mass
    for _ in range(size):
        distance = jnp.sqrt(((x[:, None] - there) ** 2).sum(-1) + 0.1)
        energy = energy + jnp.sum(mass[:, None] * weights / distance)
        there, weights = lax.ppermute(
            (there, weights), "a", [(i, (i + 1) % size) for i in range(size)]
        )
    return lax.psum(energy, "a")


@harder(
    {"data": 2, "seq": 2, "model": 2},
    (P("data", "seq"), P(None, "model"), P("model")),
    P("data", "seq"),
    normal(4, 8, 6),
    normal(6, 8),
    normal(8, 6),
)
def layer_on_three_axes(x, up, down):
    return x + lax.psum(jax.nn.gelu(x @ up) @ down, "model")


@harder(
    {"data": 2, "seq": 2, "model": 2},
    (P("data", "seq"), P(None, "model"), P("model")),
    (P(None, "model"), P("model")),
    normal(4, 8, 6),
    normal(6, 8),
    normal(8, 6),
)
def gradients_on_three_axes(x, up, down):
    def loss(up, down):
        h = x + lax.psum(jax.nn.gelu(x @ up) @ down, "model")
        return lax.pmean(jnp.mean(h**2), ("data", "seq"))

    return jax.grad(loss, (0, 1))(up, down)
