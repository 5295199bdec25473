"""One small program for each primitive that has a rule, over operands of random cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .draw import KINDS, OWED, Draw, bits, fraction, integers, natural, normal, positive, truth

CASES: dict[str, Callable[[Draw], Any]] = {}

ABSENT = {
    *("copy", "mulhi", "stop_gradient", "random_clone", "eq_to", "le_to", "lt_to"),
}
"""Primitives that are not left in a program, or only within a sort."""

RECENT = {"log2": positive, "one_minus_square": normal}
"""Primitives that not every supported version of JAX has, and what they are drawn from."""
ABSENT |= {name for name in RECENT if not hasattr(lax, name)}

ANY = (*KINDS, *KINDS, *OWED)


def case(*names: str) -> Callable[..., Any]:
    """Enter a program for some primitives."""

    def enter(f: Callable[[Draw], Any]) -> Callable[[Draw], Any]:
        for name in names:
            assert name not in CASES, name
            CASES[name] = f
        return f

    return enter


def each(name: str, f: Callable[..., Any], *hows: Any, kinds: Any = KINDS) -> None:
    """A function of each element, of operands that are drawn as said."""

    def run(d: Draw) -> Any:
        shape = d.shape()
        return f(*(d.operand(*shape, how=how, kinds=kinds) for how in hows))

    case(name)(run)


for name in [
    "exp",
    "tanh",
    "logistic",
    "sign",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "asinh",
    "erf",
    "erfc",
    "abs",
    "is_finite",
    "floor",
    "ceil",
    "atan",
    "sinh",
    "cosh",
    "exp2",
    "expm1",
    "bessel_i0e",
    "bessel_i1e",
]:
    each(name, getattr(lax, name), normal)
for name in ["log", "log1p", "sqrt", "rsqrt", "acosh", "lgamma", "digamma"]:
    each(name, getattr(lax, name), positive)
for name in RECENT.keys() - ABSENT:
    each(name, getattr(lax, name), RECENT[name])
for name in ["asin", "acos", "atanh", "erf_inv"]:
    each(name, getattr(lax, name), fraction, kinds=("cut", "reshaped", "turned", "spread", "row"))
each("round", lambda x: (lax.round(x), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)), normal)
each("square", lax.square, normal)
each("max", lax.max, normal, normal)
each("min", lax.min, normal, normal)
each("pow", lax.pow, positive, normal)
each("atan2", lax.atan2, normal, normal)
each("polygamma", lambda x: lax.polygamma(jnp.ones_like(x), x + 1), positive)
each("igamma", lambda a, x: lax.igamma(a + 1, x + 1), positive, positive)
each("igammac", lambda a, x: lax.igammac(a + 1, x + 1), positive, positive)
each(
    "regularized_incomplete_beta",
    lambda a, b, x: lax.betainc(a + 1, b + 1, jnp.clip(x, 0.1, 0.9)),
    *(positive, positive, fraction),
)
each("igamma_grad_a", lambda a, x: lax.igamma_grad_a(a + 1, x + 1), positive, positive)
each("zeta", lambda x: lax.zeta(x + 1.5, jnp.ones_like(x)), positive)
each("rem", lambda x, y: lax.rem(x, y + 1), integers, natural)
each("nextafter", lax.nextafter, normal, normal)
each(
    "and",
    lambda x, y, p, q: (x & y, p & q),
    integers,
    integers,
    truth,
    truth,
    kinds=("cut", "spread", "zeros", "row", "turned"),
)
each(
    "or",
    lambda x, y, p, q: (x | y, p | q),
    integers,
    integers,
    truth,
    truth,
    kinds=("cut", "spread", "zeros", "row", "turned"),
)
each("xor", lambda x, y: (x ^ y, x ^ x), integers, integers)
each(
    "not",
    lambda x, p: (~x, ~p, (~p).astype(int) - ~(p.astype(int))),
    integers,
    truth,
    kinds=("cut", "spread", "zeros", "reshaped"),
)
each("shift_left", lambda x: x << 3, integers)
each("shift_right_logical", lambda x: lax.shift_right_logical(x, jnp.full_like(x, 2)), integers)
each("shift_right_arithmetic", lambda x, y: x >> y, integers, natural)
each("population_count", lax.population_count, natural)
each("clz", lax.clz, natural)
each("neg", lambda x: -x, normal, kinds=(*ANY, "owed max", "owed max"))
each("add", lambda x, y, z: (x + y) + (z + 2 * x), normal, normal, normal, kinds=ANY)
each("sub", lambda x, y: ((x - y), (x - y) - x), normal, normal, kinds=ANY)
each("mul", lambda x, y: (x * y) * x, normal, normal)
each("div", lambda x, y: (x / (y + 9), 1 / (y + 9) / x), normal, normal)
each("integer_pow", lambda x: (x**3, (x + 9) ** -2, x**11), normal)
each("reduce_precision", lambda x: lax.reduce_precision(x, 11, 52), normal, kinds=ANY)
each(
    "optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), normal, normal, kinds=ANY
)
each("clamp", lambda x: lax.clamp(-0.5, x, 0.5), normal)
each("complex", lambda x, y: jnp.abs(lax.complex(x, y) * 2), normal, normal)
each("real", lambda x, y: lax.real(lax.complex(x, y) ** 2), normal, normal)
each("imag", lambda x, y: lax.imag(lax.complex(x, y) ** 2), normal, normal)
each("conj", lambda x, y: lax.real(lax.conj(lax.complex(x, y)) * lax.complex(y, x)), normal, normal)


@case("add_any")
def _(d: Draw) -> Any:
    x = d.operand(*d.shape(1))
    return jax.grad(lambda y: jnp.sum(y * jnp.sin(y)))(x)


@case("convert_element_type")
def _(d: Draw) -> Any:
    x, k, p = (
        d.operand(3, kinds=ANY),
        d.operand(3, how=integers),
        d.operand(3, how=truth, kinds=["cut"]),
    )
    y = d.operand(3)
    return (
        x.astype(jnp.float32),
        k.astype(float),
        p.astype(float),
        (y * 3).astype(int),
        k.astype(bool),
    )


for name in ("eq", "ne", "lt", "gt", "le", "ge"):

    def compare(d: Draw, name: str = name) -> Any:
        shape, f = d.shape(), getattr(lax, name)
        k, n = d.operand(*shape, how=integers), d.operand(*shape, how=integers)
        x, y = d.operand(*shape), d.operand(*shape)
        p = d.operand(*shape, how=truth, kinds=["cut"])
        u = d.operand(*shape, how=bits, kinds=["cut", "spread"])
        return f(k, n), f(-2 * x, y), f(2 * k, k + k), f(p, ~p), f(u, u + 1)

    case(name)(compare)


@case("select_n")
def _(d: Draw) -> Any:
    shape = d.shape()
    which = d.operand(*shape, how=truth, kinds=["cut", "spread", "turned", "zeros"])
    x, y = d.operand(*shape, kinds=ANY), d.operand(*shape, kinds=ANY)
    by_device = lax.axis_index(d.pick(list(d.mesh))) == 0
    return jnp.where(which, x, y), jnp.where(which, 0.0, 3 * y), jnp.where(by_device, x, y)


@case("transpose")
def _(d: Draw) -> Any:
    shape = d.shape(2)
    order = d.random.sample(range(len(shape)), len(shape))
    x = d.operand(*shape, kinds=ANY)
    return lax.transpose(x * 2, order), lax.transpose(x, range(len(shape))[::-1])


@case("reshape")
def _(d: Draw) -> Any:
    old, new = d.pick(
        [
            ((2, 3), (6,)),
            ((4,), (2, 2)),
            ((2, 6), (4, 3)),
            ((1, 4), (4, 1)),
            ((2, 2, 3), (4, 3)),
            ((2, 2, 3), (2, 1, 6)),
            ((12,), (3, 2, 2)),
            ((4, 1), (2, 2, 1)),
            ((1,), ()),
            ((), (1, 1)),
            ((2, 4, 1, 2), (8, 2)),
        ]
    )
    x = d.operand(*old, kinds=ANY)
    return jnp.reshape(x, new), jnp.reshape(jnp.sin(d.operand(*old)), new) + 1


@case("squeeze")
def _(d: Draw) -> Any:
    return lax.squeeze(d.operand(1, 3, 1, kinds=ANY), d.pick([(0,), (2,), (0, 2)]))


@case("broadcast_in_dim")
def _(d: Draw) -> Any:
    x, y = d.operand(3, kinds=ANY), d.operand(1, 3, kinds=ANY)
    z = lax.broadcast_in_dim(y, (2, 4, 3), (1, 2))
    return (
        lax.broadcast_in_dim(x, (2, 3), (1,)),
        lax.broadcast_in_dim(x, (3, 2), (0,)),
        z,
        jnp.sin(y) + z,
    )


@case("iota")
def _(d: Draw) -> Any:
    axis = d.pick(list(d.mesh))
    at = lax.axis_index(axis) * 4 + lax.iota(int, 4)
    return at, at < 7, lax.broadcasted_iota(int, (4, 3), 0) + at[:, None], at * 2 + 1


@case("rev")
def _(d: Draw) -> Any:
    return lax.rev(d.operand(2, 3, kinds=ANY), d.pick([(0,), (1,), (0, 1)]))


@case("slice")
def _(d: Draw) -> Any:
    x = d.operand(4, 3, kinds=ANY)
    return x[1:3], x[:, 1:], x[::2, :2], x[0], x[:, -1:]


@case("split")
def _(d: Draw) -> Any:
    return lax.split(d.operand(4, 2, kinds=ANY), (1, 3), 0), lax.split(d.operand(4, 2), (1, 1), 1)


@case("pad")
def _(d: Draw) -> Any:
    x, y = d.operand(2, 3, kinds=ANY), d.operand(2, 3)
    fill = d.operand(kinds=("same", "spread", "hidden"))
    inside = jnp.exp(lax.pad(y, 0.0, [(1, 2, 0), (0, 0, 0)])) * 2 + jnp.pad(y, ((2, 1), (0, 0)))
    start = d.pick([0, 1, 2])
    return (
        lax.pad(x, 0.0, [(1, 0, 0), (0, 2, 1)]),
        lax.pad(y, fill, [(0, 0, 0), (-1, 2, 0)]),
        lax.slice_in_dim(inside, start, start + d.pick([1, 2, 3])),
        lax.slice_in_dim(lax.pad(x, 0.0, [(1, 2, 0), (0, 0, 0)]), start, start + 2),
    )


@case("concatenate")
def _(d: Draw) -> Any:
    parts = [d.operand(2, 3, kinds=ANY), d.operand(1, 3, kinds=ANY), d.operand(2, 3)]
    return jnp.concatenate(parts[:2], 0), jnp.concatenate([parts[0], parts[2] * 2], 1)


@case("stack")
def _(d: Draw) -> Any:
    x, y, z = d.operand(2, 3, kinds=ANY), d.operand(2, 3, kinds=ANY), d.operand(2, 3)
    return jnp.stack([x, y], 0), jnp.stack([x, z * 2, y], 1), jnp.stack([z, y], 2)


@case("unstack")
def _(d: Draw) -> Any:
    x = d.operand(2, 3, kinds=ANY)
    first, second = jnp.unstack(x)
    return first * 2 - second, jnp.unstack(x, axis=1)[1]


@case("dynamic_slice")
def _(d: Draw) -> Any:
    x = d.operand(8, 3, kinds=ANY)
    axis = d.pick(list(d.mesh))
    n, i = d.mesh[axis], lax.axis_index(axis)
    k = d.operand(how=natural, kinds=("same", "spread", "hidden")).astype(i.dtype)
    whole = d.operand(2 * n, 3, kinds=ANY)
    own = lax.dynamic_slice_in_dim(whole, i * 2, 2)
    back = lax.dynamic_slice_in_dim(whole, (n - 1 - i) * 2, 2)
    return own, back, lax.dynamic_slice_in_dim(x, k, 3), lax.dynamic_slice(x, (i, k), (2, 2))


@case("dynamic_update_slice")
def _(d: Draw) -> Any:
    axis = d.pick(list(d.mesh))
    n, i = d.mesh[axis], lax.axis_index(axis)
    k = d.operand(how=natural, kinds=("same", "spread", "hidden")).astype(i.dtype)
    new = d.operand(2, 3, kinds=ANY)
    zeros, x = jnp.zeros((2 * n, 3)), d.operand(2 * n, 3, kinds=ANY)
    own = lax.dynamic_update_slice_in_dim(zeros, new, i * 2, 0)
    return (
        own,
        lax.dynamic_update_slice_in_dim(x, new, i * 2, 0),
        lax.dynamic_update_slice(x, new, (k, 0 * k)),
        lax.dynamic_update_slice_in_dim(x, new, d.pick([0, 1, 2 * n - 1]), 0),
    )


for name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):

    def reduced(d: Draw, name: str = name) -> Any:
        shape = d.shape(1)
        f = {"reduce_sum": jnp.sum, "reduce_max": jnp.max, "reduce_min": jnp.min}.get(
            name, jnp.prod
        )
        kinds = (*ANY, "owed max") if name != "reduce_prod" else KINDS
        axes = tuple(d.random.sample(range(len(shape)), d.random.randint(1, len(shape))))
        x = d.operand(*shape, kinds=kinds)
        return f(x, axes), f(2 * x - x, axes), f(-3 * f(x, axis=0))

    case(name)(reduced)

for name in ("reduce_and", "reduce_or", "reduce_xor"):

    def combined(d: Draw, name: str = name) -> Any:
        f = {"reduce_and": lax.reduce_and, "reduce_or": lax.reduce_or}.get(name, lax.reduce_xor)
        p, k = (
            d.operand(2, 3, how=truth, kinds=["cut", "zeros", "row"]),
            d.operand(2, 3, how=natural),
        )
        return f(p, d.pick([(0,), (1,), (0, 1)])), f(k, (0,))

    case(name)(combined)

for name in ("argmax", "argmin"):

    def position(d: Draw, name: str = name) -> Any:
        f = getattr(lax, name)
        return f(-2 * d.operand(4, 3), d.pick([0, 1]), np.int32)

    case(name)(position)

for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):

    def running(d: Draw, name: str = name) -> Any:
        f = getattr(lax, name)
        kinds = (*ANY, "owed max") if name == "cumsum" else KINDS
        return f(2 * d.operand(3, 2, kinds=kinds), d.pick([0, 1]), reverse=d.pick([True, False]))

    case(name)(running)


@case("fft")
def _(d: Draw) -> Any:
    x, y = d.operand(2, 4, kinds=ANY), d.operand(2, 4, kinds=ANY)
    return (
        jnp.abs(jnp.fft.fft(lax.complex(x, y))),
        jnp.fft.rfft2(x).imag,
        jnp.fft.irfft(jnp.fft.rfft(3 * x), 4),
        jnp.fft.ifft(lax.complex(x, 0 * x)).real,
    )


@case("sort")
def _(d: Draw) -> Any:
    x, y = d.operand(4, 2), d.operand(4, 2)
    return lax.sort(x, dimension=d.pick([0, 1])), lax.sort((x, y), dimension=0, num_keys=1)


@case("approx_top_k")
def _(d: Draw) -> Any:
    x = d.operand(2, 4, kinds=("cut", "turned", "reshaped", "hidden"))
    return lax.approx_max_k(x, 2, recall_target=1.0), lax.approx_min_k(x, 2, recall_target=1.0)


@case("top_k")
def _(d: Draw) -> Any:
    return lax.top_k(d.operand(2, 4, kinds=("cut", "turned", "reshaped", "hidden")), 2)


@case("dot_general")
def _(d: Draw) -> Any:
    kinds = ANY
    x, y = d.operand(2, 3, kinds=kinds), d.operand(3, 4, kinds=kinds)
    u, v = d.operand(2, 3, 2, kinds=kinds), d.operand(2, 2, 3, kinds=kinds)
    batched = lax.dot_general(u, v, (((1,), (2,)), ((0,), (0,))))
    return (
        x @ y,
        batched,
        jnp.einsum("abc,acb->", u, v),
        (2 * x) @ (-y),
        jnp.einsum("ab,cd->acbd", x, y),
    )


@case("conv_general_dilated")
def _(d: Draw) -> Any:
    x, k = d.operand(2, 4, 6, kinds=ANY), d.operand(4, 4, 3, kinds=ANY)
    plain = lax.conv_general_dilated(x, k, (1,), d.pick(["SAME", "VALID"]))
    g = d.operand(4, 2, 3)
    grouped = lax.conv_general_dilated(x, g, (2,), "VALID", feature_group_count=2)
    by_batch = lax.conv_general_dilated(d.operand(2, 4, 6), k, (1,), "VALID", batch_group_count=2)
    numbers = ("NHC", "HIO", "NHC")
    other = lax.conv_general_dilated(
        d.operand(2, 5, 2), d.operand(3, 2, 4), (1,), [(1, 1)], dimension_numbers=numbers
    )
    split, patch = d.operand(2, 4, 6), d.operand(4, 4, 2)
    patches = lax.conv_general_dilated(split, patch, (2,), "VALID")
    wide = lax.conv_general_dilated(split, d.operand(4, 4, 2), (3,), "VALID", rhs_dilation=(2,))
    points = lax.conv_general_dilated(split, d.operand(4, 4, 1), (1,), "VALID")
    channels = lax.conv_general_dilated(
        split, d.operand(4, 1, 3), (1,), "SAME", feature_group_count=4
    )
    pairs = lax.conv_general_dilated(
        split, d.operand(2, 2, 2), (2,), "VALID", feature_group_count=2
    )
    return plain, grouped, by_batch, other, patches, wide, points, channels, pairs


for name in ("reduce_window_sum", "reduce_window_max", "reduce_window_min"):

    def windows(d: Draw, name: str = name) -> Any:
        start, f = {
            "reduce_window_sum": (0.0, lax.add),
            "reduce_window_max": (-np.inf, lax.max),
        }.get(name, (np.inf, lax.min))
        x = d.operand(4, 3, kinds=(*ANY, "owed max") if name == "reduce_window_sum" else KINDS)
        size, padding = d.pick(
            [((2, 1), "VALID"), ((1, 3), "SAME"), ((2, 2), "VALID"), ((1, 1), [(1, 0), (0, 0)])]
        )
        y = d.operand(4, 6, kinds=KINDS)
        aligned = lax.reduce_window(y, start, f, (2, 3), (2, 3), "VALID")
        sparse = lax.reduce_window(y, start, f, (1, 2), (2, 3), "VALID", window_dilation=(1, 2))
        crossing = lax.reduce_window(y, start, f, (3, 2), (2, 2), "VALID")
        return lax.reduce_window(x, start, f, size, (1, 1), padding), aligned, sparse, crossing

    case(name)(windows)


@case("reduce_window")
def _(d: Draw) -> Any:
    return lax.reduce_window(d.operand(4, 3), 1.0, lax.mul, (2, 1), (1, 1), "VALID")


@case("select_and_scatter_add")
def _(d: Draw) -> Any:
    x = d.operand(4, 6, kinds=KINDS)

    def back(size: Any, stride: Any, shape: Any, padding: str = "VALID") -> Any:
        def pool(v: Any) -> Any:
            return lax.reduce_window(v, -np.inf, lax.max, size, stride, padding)

        return jax.vjp(pool, x)[1](d.operand(*shape))[0]

    return (
        back((2, 3), (2, 3), (2, 2)),
        back((1, 2), (1, 2), (4, 3)),
        back((2, 1), (1, 1), (3, 6)),
        back((1, 3), (1, 1), (4, 6), "SAME"),
    )


@case("gather")
def _(d: Draw) -> Any:
    x = d.operand(5, 3, kinds=(*ANY, "owed max"))
    index = d.operand(4, how=natural)
    return (
        x[index],
        x[:, index % 3],
        x.at[index].get(mode="clip"),
        jnp.take_along_axis(d.operand(4, 3), d.operand(4, 2, how=natural) % 3, axis=1),
        *_by_position(d),
    )


def _by_position(d: Draw) -> Any:
    """One entry of each row: where the positions are its own, where not, and with more beside."""
    x, y = d.operand(4, 3), d.operand(4, how=natural) % 3
    deep, z = d.operand(4, 2, 3), d.operand(4, 2, how=natural) % 3
    rows = jnp.arange(4)
    return (
        x[rows, y],
        x[rows[:, None], y[:, None]],
        x[rows[::-1], y],
        deep[rows[:, None], jnp.arange(2), z],
        deep[rows, y % 2, y],
    )


@case("scatter-add")
def _(d: Draw) -> Any:
    x = d.operand(5, 3, kinds=(*ANY, "owed max"))
    index = d.operand(4, how=natural)
    new = d.operand(4, 3, kinds=(*ANY, "owed max"))
    return (
        x.at[index].add(new),
        jnp.zeros((5, 3)).at[index].add(new),
        jnp.zeros((3, 5)).at[:, index].add(new.T),
        jax.grad(
            lambda y: jnp.sum(
                jnp.sin(jnp.take_along_axis(y, d.operand(5, 2, how=natural) % 3, axis=1))
            )
        )(d.operand(5, 3)),
        jax.grad(
            lambda y: jnp.sum(jnp.sin(y[jnp.arange(y.shape[0]), d.operand(5, how=natural) % 3]))
        )(d.operand(5, 3)),
    )


for name in ("scatter", "scatter-mul", "scatter-min", "scatter-max"):

    def placed(d: Draw, name: str = name) -> Any:
        x, new = d.operand(7, 3), d.operand(4, 3)
        index = jnp.array([3, 0, 6, 2]) if name == "scatter" else d.operand(4, how=natural)
        if d.pick([True, False]) and name == "scatter":
            index = (index + lax.axis_index(d.pick(list(d.mesh)))) % 7
        at = x.at[index]
        method = {"scatter": "set", "scatter-mul": "multiply"}.get(name, name[-3:])
        return getattr(at, method)(new)

    case(name)(placed)


def _keys(d: Draw) -> Any:
    seeds = d.operand(2, how=natural, kinds=("cut", "same", "hidden"))
    return jax.vmap(jax.random.key)(seeds)


@case("random_bits", "random_seed")
def _(d: Draw) -> Any:
    return jax.vmap(lambda key: jax.random.bits(key, (3,)))(_keys(d))


@case("random_split", "random_unwrap")
def _(d: Draw) -> Any:
    return jax.random.key_data(jax.vmap(lambda key: jax.random.split(key, 3))(_keys(d)))


@case("random_fold_in", "random_wrap")
def _(d: Draw) -> Any:
    k = lax.axis_index(d.pick(list(d.mesh)))
    keys = jax.vmap(lambda key: jax.random.fold_in(key, k))(_keys(d))
    again = jax.random.wrap_key_data(d.operand(3, 2, how=bits, kinds=["cut", "same"]))
    return jax.random.key_data(keys), jax.vmap(lambda key: jax.random.bits(key, (2,)))(again)


@case("random_gamma")
def _(d: Draw) -> Any:
    return jax.random.gamma(jax.random.key(3), d.operand(3, how=positive))


@case("threefry2x32")
def _(d: Draw) -> Any:
    from jax.extend.random import threefry2x32_p

    x = d.operand(3, how=bits, kinds=["cut", "same", "spread"])
    words = [x, x + 1, x * 2, x ^ 3]
    return threefry2x32_p.bind(*words)


@case("bitcast_convert_type")
def _(d: Draw) -> Any:
    x = d.operand(3, kinds=["cut", "spread", "row"])
    return lax.bitcast_convert_type(
        d.operand(3, how=bits, kinds=["cut"]), jnp.int32
    ), jax.random.uniform(jax.random.key(1), (4,)) + lax.bitcast_convert_type(
        lax.bitcast_convert_type(x, jnp.uint64), jnp.float64
    )[0]


def _matrix(d: Draw) -> Any:
    """Batches of matrices that are well-behaved, however they are split."""
    return 0.1 * d.operand(2, 3, 3) + 3 * jnp.eye(3)


case("cholesky")(lambda d: lax.linalg.cholesky(_matrix(d), symmetrize_input=False))
case("lu")(lambda d: lax.linalg.lu(_matrix(d)))
case("qr")(lambda d: lax.linalg.qr(_matrix(d), full_matrices=d.pick([True, False])))


@case("triangular_solve")
def _(d: Draw) -> Any:
    a, b, c = _matrix(d), d.operand(2, 3, 4), d.operand(2, 4, 3)
    lower = d.pick([True, False])
    return (
        lax.linalg.triangular_solve(a, b, left_side=True, lower=lower),
        lax.linalg.triangular_solve(a, c, left_side=False, lower=lower, transpose_a=True),
    )


@case("householder_product")
def _(d: Draw) -> Any:
    return lax.linalg.householder_product(_matrix(d), 0.1 * d.operand(2, 3))


@case("tridiagonal_solve")
def _(d: Draw) -> Any:
    low, mid, high = (d.operand(2, 4) for _ in range(3))
    return lax.linalg.tridiagonal_solve(0.1 * low, 0.1 * mid + 3, 0.1 * high, d.operand(2, 4, 2))


@case("lu_pivots_to_permutation")
def _(d: Draw) -> Any:
    last = d.operand(2, 3, how=natural) % 3
    return lax.linalg.lu_pivots_to_permutation(last.astype(jnp.int32), 4)
