"""Every rule attacked in every dtype: what is proved has to be the same on real devices.

An attack is one primitive applied to the rows of a split array, and one thing done with what it
gives: it is returned, widened and added up, compared and counted, or asked for NaN. The numbers are
those at which laws break: the ends of a dtype, NaN, infinities, signed zeros, ties. The program is
run on one and on four real (virtual CPU) devices.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._analysis.prove import prove
from shardwise._engine.tracing import Tracing
from shardwise._program import Leaf, walk

DEVICES = 4
COLUMNS = 4
ROWS = (4, 8, 12, 0, 4, 8)
"""One row for each device is the commonest size in tests."""

DTYPES = [
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "complex64", "key"),
]

Form = Callable[..., Any]
FORMS: dict[str, Form] = {}


def form(*names: str) -> Callable[[Form], Form]:
    """Enter a program of rows `x`, others `y` of the same shape, and whole ones `w`."""

    def enter(f: Form) -> Form:
        for name in names:
            FORMS[name] = f
        return f

    return enter


NAMED = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


def each(names: str, use: Callable[[Form, Any, Any], Any]) -> None:
    """Enter functions of `jax.lax` by their names, with how they are used."""
    for name in names.split():
        own = getattr(lax, NAMED.get(name, name), None)
        if own is not None:
            form(name)(functools.partial(_used, use, own))


def _used(use: Callable[[Form, Any, Any], Any], own: Form, x: Any, y: Any, w: Any) -> Any:
    return use(own, x, y)


each(
    """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil clz conj cos cosh
    digamma erf erf_inv erfc exp exp2 expm1 floor imag is_finite lgamma log log1p log2 logistic neg
    not one_minus_square population_count real round rsqrt sign sin sinh sqrt square tan tanh""",
    lambda f, x, y: f(x),
)
each(
    """add sub mul div max min rem pow atan2 and or xor eq ne lt gt le ge shift_left nextafter
    shift_right_logical shift_right_arithmetic complex igamma igammac igamma_grad_a zeta""",
    lambda f, x, y: f(x, y),
)
each(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor",
    lambda f, x, y: f(x, (0,)),
)
each("cumsum cumprod cummax cummin cumlogsumexp", lambda f, x, y: f(x, axis=1))
each("argmax argmin", lambda f, x, y: f(x, 0, jnp.uint8))

FEW = jnp.uint8
WINDOW = ((1, 2), (1, 1), ((0, 0), (0, 0)))
PAIRS = ((1, 2), (1, 2), ((0, 0), (0, 0)))


def _rows(x: Any) -> Any:
    return lax.iota(FEW, x.shape[0])


form("add_any")(lambda x, y, w: jax.vjp(lambda v: (v, v), x)[1]((x, y))[0])
form("approx_top_k")(lambda x, y, w: lax.approx_max_k(x, 2))
form("top_k")(lambda x, y, w: lax.top_k(x, 2))
form("bitcast_convert_type")(lambda x, y, w: lax.bitcast_convert_type(x, _other(x.dtype)))
form("broadcast_in_dim")(lambda x, y, w: jnp.broadcast_to(w[:1], x.shape) + x)
form("clamp")(lambda x, y, w: lax.clamp(x, y, x))
form("concatenate")(lambda x, y, w: lax.concatenate([x, y], 0))
form("conv_general_dilated")(
    lambda x, y, w: lax.conv_general_dilated(x.T[None], y.T[None], (1,), "VALID")
)
form("cholesky")(lambda x, y, w: lax.linalg.cholesky(_square(x), symmetrize_input=False))
form("lu")(lambda x, y, w: lax.linalg.lu(_square(x)))
form("qr")(lambda x, y, w: lax.linalg.qr(_square(x)))
form("triangular_solve")(
    lambda x, y, w: lax.linalg.triangular_solve(_square(x), y[:, :, None], left_side=True)
)
form("householder_product")(lambda x, y, w: lax.linalg.householder_product(_square(x), y))
form("tridiagonal_solve")(lambda x, y, w: lax.linalg.tridiagonal_solve(x, y, x, y[:, :, None]))
form("lu_pivots_to_permutation")(
    lambda x, y, w: lax.linalg.lu_pivots_to_permutation(_places(y)[:, None], COLUMNS)
)
form("convert_element_type")(lambda x, y, w: x.astype(jnp.int8 if x.dtype != jnp.int8 else FEW))
form("dot_general")(lambda x, y, w: lax.dot(x.T, y))
form("dynamic_slice")(lambda x, y, w: lax.dynamic_slice(x, (w[0, 0].astype(FEW), FEW(0)), (1, 2)))
form("dynamic_update_slice")(
    lambda x, y, w: lax.dynamic_update_slice(x, y[:1], (w[0, 0].astype(FEW), FEW(0)))
)
form("reshape")(lambda x, y, w: x.reshape(-1, 2))
form("fft")(lambda x, y, w: jnp.fft.fft(x, axis=1))
form("gather")(lambda x, y, w: x[_rows(x), _places(y)])
form("integer_pow")(lambda x, y, w: x**3)
form("iota")(lambda x, y, w: lax.broadcasted_iota(x.dtype, x.shape, 0))
form("optimization_barrier")(lambda x, y, w: lax.optimization_barrier((x, y)))
form("pad")(lambda x, y, w: lax.pad(x, w[0, 0], ((1, 0, 0), (0, 0, 0))))
form("polygamma")(lambda x, y, w: lax.polygamma(x, y))
form("reduce_precision")(lambda x, y, w: lax.reduce_precision(x, 8, 7))
form("reduce_window")(lambda x, y, w: lax.reduce_window(x, w[0, 0], lax.bitwise_or, *WINDOW))
form("reduce_window_sum")(lambda x, y, w: lax.reduce_window(x, _zero(x), lax.add, *WINDOW))
form("reduce_window_max")(lambda x, y, w: lax.reduce_window(x, _least(x), lax.max, *WINDOW))
form("reduce_window_min")(lambda x, y, w: lax.reduce_window(x, _most(x), lax.min, *WINDOW))
form("regularized_incomplete_beta")(lambda x, y, w: lax.betainc(x, y, y))
form("rev")(lambda x, y, w: lax.rev(x, (0,)))
form("scatter")(lambda x, y, w: x.at[_rows(x), _places(y)].set(y[:, 0]))
form("scatter-add")(lambda x, y, w: x.at[_rows(x), _places(y)].add(y[:, 0]))
form("scatter-mul")(lambda x, y, w: x.at[_rows(x), _places(y)].mul(y[:, 0]))
form("scatter-min")(lambda x, y, w: x.at[_rows(x), _places(y)].min(y[:, 0]))
form("scatter-max")(lambda x, y, w: x.at[_rows(x), _places(y)].max(y[:, 0]))
form("select_and_scatter_add")(
    lambda x, y, w: jax.vjp(lambda v: lax.reduce_window(v, _least(v), lax.max, *PAIRS), x)[1](
        y[:, :2]
    )[0]
)
form("select_n")(lambda x, y, w: lax.select_n(x != x, x, y))
form("slice")(lambda x, y, w: x[:, 1:3])
form("sort")(lambda x, y, w: lax.sort(x, dimension=0))
form("split")(lambda x, y, w: lax.split(x, (1, 3), 1))
form("squeeze")(lambda x, y, w: lax.squeeze(x[:, :1], (1,)))
form("stack")(lambda x, y, w: jnp.stack([x, y], 1))
form("unstack")(lambda x, y, w: jnp.unstack(x, axis=1))
form("transpose")(lambda x, y, w: x.T)
form("threefry2x32")(
    lambda x, y, w: threefry2x32_p.bind(*(v.astype(jnp.uint32) for v in (x, y) * 2))
)
form("random_bits")(lambda x, y, w: jax.vmap(lambda k: jax.random.bits(k, (2,)))(x[:, 0]))
form("random_split")(lambda x, y, w: jax.vmap(jax.random.split)(x[:, 0]))
form("random_unwrap")(lambda x, y, w: jax.random.key_data(x))
form("random_wrap")(lambda x, y, w: jax.random.wrap_key_data(jax.random.key_data(x)))
form("random_fold_in")(lambda x, y, w: jax.vmap(jax.random.fold_in)(x[:, 0], _rows(x)))
form("random_seed")(lambda x, y, w: jax.vmap(jax.random.key)(x[:, 0].astype(jnp.uint32)))
form("random_gamma")(lambda x, y, w: jax.vmap(lambda k: jax.random.gamma(k, 2.0))(x[:, 0]))


def _other(dtype: Any) -> Any:
    return {1: jnp.int8, 2: jnp.int16, 4: jnp.int32}[jnp.dtype(dtype).itemsize]


def _places(y: Any) -> Any:
    return y[:, 0].astype(jnp.int32) % COLUMNS


def _square(x: Any) -> Any:
    """A finite matrix for each row: algorithms that repeat themselves do not end with NaN."""
    return jnp.where(x[:, :, None] > x[:, None, :], x.dtype.type(1), x.dtype.type(3))


def _zero(x: Any) -> Any:
    return np.zeros((), x.dtype)[()]


def _most(x: Any) -> Any:
    return np.array(jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).max)


def _least(x: Any) -> Any:
    return np.array(-jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers at which laws break."""
    if dtype == "key":
        seeds = rng.integers(0, 100, shape[:-1])
        keys = [jax.random.split(jax.random.key(int(s)), shape[-1]) for s in seeds.reshape(-1)]
        return jnp.stack(keys) if keys else jax.random.split(jax.random.key(0), shape)
    kind = jnp.dtype(dtype)
    if kind == jnp.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(kind, jnp.integer):
        ends = jnp.iinfo(kind)
        small = [0, 1, 2, 3, 1]
        return rng.choice([int(ends.min), int(ends.max), *small], shape).astype(kind)
    few = [0.0, -0.0, 1.0, 2.0, -1.0, 1.0]
    odd = [np.nan] if kind == jnp.float8_e4m3fn else [np.nan, np.inf, -np.inf]
    return rng.choice([*few, *(odd if rng.random() < 0.6 else [])], shape).astype(kind)


def _wide(r: Any) -> Any:
    if jnp.issubdtype(r.dtype, jax.dtypes.prng_key):
        r = jax.random.key_data(r)
    inexact = jnp.issubdtype(r.dtype, jnp.inexact)
    return r if r.dtype == jnp.complex64 else r.astype(jnp.float32 if inexact else jnp.int32)


def _sum(r: Any) -> Any:
    return lax.psum(_wide(r).sum(), "data")


ENDINGS: dict[str, tuple[Form, Any]] = {
    "returned": (_wide, P("data")),
    "added up": (_sum, P()),
    "added up in its dtype": (lambda r: _wide(lax.psum(r, "data").sum()), P()),
    "counted": (lambda r: _sum((_wide(r).real > 0).any()), P()),
    "whether any": (lambda r: _sum(r.astype(bool).all()), P()),
    "asked for NaN": (lambda r: _sum(jnp.isnan(_wide(r)).any()), P()),
    "NaN left out": (lambda r: _sum(jnp.nan_to_num(_wide(r).sum())), P()),
    "the largest": (lambda r: lax.pmax(_wide(r).real.max(initial=-9), "data"), P()),
    "compared with itself": (lambda r: _sum(_wide(r).sum() == _wide(r).sum()), P()),
}
TOLERANCE = {"float8_e4m3fn": 0.3, "float8_e5m2": 0.3, "bfloat16": 0.05, "float16": 0.01}


def attack(name: str, dtype: str, seed: Any, ending: str = "") -> tuple[Counter, list[str]]:
    """One primitive in one dtype, with one ending, on random numbers.

    If JAX refuses an ending that is drawn, such as a sum of keys, the result is returned as it is.
    """
    rng = np.random.default_rng(zlib.crc32(repr((name, dtype, seed)).encode()))
    rows = int(rng.choice(ROWS))
    if name in ("iota", "gather", "scatter", "argmax") and rng.random() < 0.4:
        rows = 1024  # more than a byte counts
    drawn, ending = not ending, ending or str(rng.choice(list(ENDINGS)))
    if dtype.startswith("float8") and ending == "added up in its dtype":
        ending = "added up"  # 7 + 0.4375 is 7: how much is lost depends on the order alone
    last, out = ENDINGS[ending]
    args = [numbers(rng, (n, COLUMNS), dtype) for n in (rows, rows, 2)]

    def f(*args: Any, mesh: Any) -> Any:
        def body(*parts: Any) -> Any:
            return [last(r) for r in jax.tree.leaves(FORMS[name](*parts))]

        specs = (P("data"), P("data"), P())
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)(*args)

    try:
        traced = Tracing(f, sw.mesh(data=DEVICES))(tuple(args), {})
        used = any(isinstance(op, Leaf) and op.name == name for op in walk(traced.program.body.ops))
        pairs = list(zip(_run(f, args, DEVICES), _run(f, args, 1), strict=True))
    except Exception:  # the primitive is not defined for this dtype, or not with this ending
        if drawn:
            return attack(name, dtype, seed, "returned")
        return Counter({"attacks that JAX refuses": 1}), []
    proof = prove(f, *args, mesh=sw.mesh(data=DEVICES), run=False)
    counts = Counter({f"results {proof.status}": 1, f"rule {name}, {dtype}": int(used)})
    wrong = [
        f"{name} of {dtype}, {rows} rows, {ending}: proved, and {got!r} is {want!r} on one device"
        for one, (got, want) in zip(proof.results, pairs, strict=True)
        if one.status == "proved" and not _alike(got, want, TOLERANCE.get(dtype, 1e-3))
    ]
    return counts, wrong


def _run(f: Any, args: list[Any], count: int) -> list[np.ndarray]:
    mesh = Mesh(np.array(jax.devices()[:count]), ("data",))
    return [np.asarray(one) for one in jax.tree.leaves(jax.jit(lambda *a: f(*a, mesh=mesh))(*args))]


def _alike(got: np.ndarray, want: np.ndarray, near: float) -> bool:
    if got.shape != want.shape:
        return False
    if not np.issubdtype(got.dtype, np.inexact):
        return bool((got == want).all())
    got, want = got.astype(complex), want.astype(complex)
    with np.errstate(all="ignore"):
        close = np.abs(got - want) <= near * np.maximum(1.0, np.abs(want))
    return bool(((got == want) | close | (np.isnan(got) & np.isnan(want))).all())


def nth(seed: int, number: int) -> tuple[Counter, list[str]]:
    """An attack by its number: every rule in every dtype, over and over."""
    names = sorted(FORMS)
    name = names[number % len(names)]
    dtype = DTYPES[number // len(names) % len(DTYPES)]
    try:
        return attack(name, dtype, (seed, number))
    except Exception as error:
        return Counter(), [f"{name} of {dtype}: {type(error).__name__}: {error}"]
