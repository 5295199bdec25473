"""Programs in float64: what each primitive gives there, and what stays as it is declared."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._analysis.lift import lift
from shardwise._analysis.lift.run import Run
from shardwise._analysis.lift.widths import constant
from shardwise._engine.tracing import Tracing
from shardwise._program import walk
from tests.support import check, normal

from .corpus import pairs
from .plant import DTYPES, planted

MESH = {"data": [1, 2, 4]}


def split(body, out_specs=P(), in_specs=P("data"), **options):  # noqa: B008
    def program(*args, mesh):
        specs = {"in_specs": in_specs, "out_specs": out_specs, **options}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    return program


def spd(x):
    return x.T @ x + jnp.eye(x.shape[1], dtype=x.dtype)


@jax.custom_vjp
def rounded_back(x):
    return x.astype("bfloat16").astype(x.dtype)


rounded_back.defvjp(
    lambda x: (rounded_back(x), None), lambda _, g: (g.astype("float16").astype(g.dtype),)
)

EXACTLY = {
    "elementwise": lambda x: jnp.tanh(jnp.exp(x) / 3 + jnp.sin(x) ** 2 - lax.erf(x)),
    "products": lambda x: jnp.dot(x, x.T, preferred_element_type=x.dtype),
    "convolution": lambda x: lax.conv_general_dilated(
        x[None, None], x[:3, :3][None, None], (1, 1), "SAME", preferred_element_type=x.dtype
    ),
    "scan": lambda x: lax.scan(lambda c, r: (jnp.sin(c) + r, c * 2), x[0], x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5, abs(x)),
    "cond": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i], jnp.zeros(4)),
    "remat": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y) @ y.T)(x).sum()),
    "custom derivative": jax.grad(lambda x: (rounded_back(x) ** 2).sum()),
    "casts": lambda x: (x.astype("bfloat16") * 3).astype("float16").astype("float32") / 7,
    "scatter": lambda x: jnp.zeros(4).at[jnp.array([0, 1, 1, 3])].add(x[0]),
    "scatter of others": lambda x: (
        x.at[0].multiply(x[1]), x.at[1, :2].min(0.1), x.at[2].max(x[0]), x.at[1].apply(jnp.sin)
    ),
    "a reduction with a body": lambda x: lax.reduce(
        x, x.dtype.type(1), lambda a, b: a * jnp.sin(b), (0,)
    ),
    "windows": lambda x: lax.reduce_window(
        x, 0.0, lambda a, b: a + 2 * b, (2, 2), (1, 1), "SAME"
    ),
    "pooling, backwards": jax.grad(
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID") ** 2).sum()
    ),
    "sorting": lambda x: (jnp.sort(x), lax.top_k(x, 2), jnp.argsort(x), jnp.median(x)),
    "running sums": lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cumlogsumexp(x)),
    "complex": lambda x: jnp.abs(jnp.fft.fft(x)) + jnp.conj(x * 1j).imag,
    "real transforms": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2),
    "linear algebra": lambda x: (
        jnp.linalg.cholesky(spd(x)), jnp.linalg.solve(spd(x), x.T), jnp.linalg.eigvalsh(spd(x)),
        jnp.linalg.svd(x, compute_uv=False), jnp.linalg.det(spd(x)), jnp.linalg.qr(spd(x))[1],
    ),
    "reduced precision": lambda x: lax.reduce_precision(x, 8, 7),
    "special functions": lambda x: (
        jax.scipy.special.gammaln(abs(x)), jax.scipy.special.digamma(abs(x) + 1),
        jax.scipy.special.gammainc(abs(x), abs(x)), jax.scipy.special.erfinv(jnp.tanh(x)),
    ),
    "batched": jax.vmap(lambda row: lax.scan(lambda c, r: (c * r, c), row[0], row)[1]),
    "an einsum": lambda x: jnp.einsum("ij,kj->ik", x.astype("bfloat16"), x.astype("bfloat16")),
}  # fmt: skip


def lifted_results(f, *args):
    return Run(Tracing(f, sw.mesh(data=1)), args).results()


ALREADY = {"casts", "custom derivative", "reduced precision", "an einsum"}
"""Programs that cast to a narrower dtype; with float64 arguments JAX rounds there."""


@pytest.mark.parametrize("name", sorted({*EXACTLY} - ALREADY))
def test_a_program_in_float64_is_what_jax_computes_in_float64(name):
    """The oracle is JAX itself, on float64 arguments."""
    f, x = EXACTLY[name], normal(4, 4)
    found = lifted_results(f, x)
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        want = jax.tree.leaves(jax.jit(f)(np.float64(x)))
    for got, value in zip(found, want, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-11, atol=1e-12)


CAST = {
    "casts": lambda x: x * 3 / 7,
    "custom derivative": lambda x: 2 * x,
    "reduced precision": lambda x: x,
    "an einsum": lambda x: x @ x.T,
}


@pytest.mark.parametrize("name", CAST)
def test_a_cast_to_a_narrower_dtype_is_the_identity(name):
    x = normal(4, 4)
    (found,) = lifted_results(EXACTLY[name], x)
    np.testing.assert_allclose(found, CAST[name](np.float64(x)), rtol=1e-13)


@pytest.mark.parametrize("name", EXACTLY)
def test_every_value_is_wide_or_an_integer(name):
    body = Tracing(EXACTLY[name], sw.mesh(data=1))((normal(4, 4),), {}).program.body
    lifted = lift(body)
    made = [var for op in walk(lifted.body.ops) for var in op.outs]
    assert {np.dtype(var.dtype).name for var in made} <= {
        "float64", "complex128", "int32", "uint32", "bool"
    }  # fmt: skip
    assert not any(lifted.eps(atom) for atom in body.outs)


# --- what runs in its declared dtype


def stochastic(x, key):
    """Stochastic rounding to bfloat16, on bits."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint32) & 0xFFFF
    return lax.bitcast_convert_type((bits + noise) & np.uint32(0xFFFF0000), jnp.float32).astype(
        "bfloat16"
    )


def rounding(by=0.0):
    def body(x, key):
        total = lax.psum(x.sum(0), "data")
        return stochastic(total * (1 if lax.axis_size("data") == 1 else 1 + by), key)

    return split(body, in_specs=(P("data"), P()))


def test_stochastic_rounding_on_bits():
    args = normal(64, 128), jax.random.key(0)
    assert (verdict := check(rounding(), *args, mesh=MESH)), verdict
    assert not check(rounding(0.02), *args, mesh=MESH)


def test_what_comes_after_bits_of_numbers_has_the_accuracy_of_their_dtype():
    def body(x):
        bits = lax.bitcast_convert_type(x, jnp.int32)
        return lax.bitcast_convert_type(bits, jnp.float32) * 2, x * 2

    traced = Tracing(split(body, P("data")), sw.mesh(data=2))((normal(4),), {})
    eps = [lift(traced.program.body).eps(atom) for atom in traced.program.body.outs]
    assert eps == [np.finfo(np.float32).eps, 0]


def test_random_numbers_lose_no_accuracy():
    """They are made of bits, which are the same on every mesh."""

    def body(x, key):
        noise = jax.random.normal(key, (4,)) + jax.random.uniform(key)
        return lax.psum(x.sum(0), "data") * (1 + 0.1 * noise)

    program = split(body, in_specs=(P("data"), P()))
    args = normal(16, 4), jax.random.key(3)
    traced = Tracing(program, sw.mesh(data=2))(args, {})
    assert not any(lift(traced.program.body).eps(atom) for atom in traced.program.body.outs)
    want = sw.simulate(program, mesh=sw.mesh(data=1))(*args)
    np.testing.assert_allclose(lifted_results(lambda *a: program(*a, mesh=sw.mesh(data=1)), *args)[0], want, rtol=1e-5)  # fmt: skip # noqa: E501
    assert check(program, *args, mesh=MESH)


def test_a_callback_is_given_its_declared_dtypes():
    seen = []

    def host(x):
        seen.append(x.dtype)
        return x * 2

    def body(x):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(host, out, x, vmap_method="sequential")

    assert check(split(body, P("data")), normal(8, 4), mesh={"data": [1, 2]})
    assert {dtype.name for dtype in seen} == {"float32"}


# --- constants


def test_a_fraction_that_was_rounded_when_it_was_traced():
    assert constant(jnp.bfloat16(1 / 3)) == 1 / 3
    assert constant(np.float32(0.1)) == 0.1
    assert constant(np.float32(np.pi)) == np.float64(np.float32(np.pi))
    assert constant(np.float32(-np.inf)) == -np.inf
    assert constant(np.int32(7)).dtype == np.int32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sum_of_parts_of_a_third(dtype):
    def body(x):
        return lax.psum(x.mean(0) * (1 / lax.axis_size("data")), "data")

    x = jnp.asarray(normal(30, 4), dtype)
    assert (verdict := check(split(body), x, mesh={"data": [1, 3, 5]})), verdict


# --- integers that stand for numbers


def quantized(by=0.0, scale=lambda x: lax.pmax(jnp.abs(x).max(), "data") / 127):
    """Gradients that are sent as int8, with one scale for all devices."""

    def body(x):
        mine = x.sum(0) * (1 if lax.axis_size("data") == 1 else 1 + by)
        unit = scale(mine)
        sent = jnp.clip(jnp.round(mine / unit), -127, 127).astype(jnp.int8)
        return lax.psum(sent.astype(jnp.int32), "data") * unit

    return split(body)


def test_gradients_sent_as_int8_that_share_a_scale():
    x = normal(64, 256)
    assert (verdict := check(quantized(), x, mesh=MESH)), verdict
    for by in (0.001, 0.01, 0.1):
        assert not check(quantized(by), x, mesh=MESH), by
    first = lambda x: lax.psum(jnp.abs(x).max() * (lax.axis_index("data") == 0), "data") / 127  # noqa: E731
    assert not check(quantized(scale=first), x, mesh=MESH), "others are clipped"


# --- ties


def test_a_tie_is_no_mistake_and_is_reported():
    def body(x, w):
        return jnp.argmax(lax.psum(x @ w, "data"), -1)

    w = normal(16, 6)
    w = np.concatenate([w, w], 1)  # every score twice
    program = split(body, in_specs=(P(None, "data"), P("data")))
    verdict = check(program, normal(256, 16, seed=1), w, mesh=MESH)
    assert verdict, verdict
    wrong = split(lambda x, w: body(x, w) + (lax.axis_size("data") > 1), in_specs=(P(None, "data"), P("data")))  # fmt: skip # noqa: E501
    assert not check(wrong, normal(256, 16, seed=1), w, mesh=MESH)


def test_a_threshold_that_is_met_exactly():
    def body(x, by=1.0):
        total = 3 * lax.psum((x / 3).sum(0), "data")
        return total < by * lax.psum(x.sum(0), "data")

    x = np.sin(np.arange(1024, dtype="f")).reshape(64, 16)
    verdict = check(split(body), x, mesh=MESH)
    assert verdict
    assert [one.code for one in verdict.findings] == ["SW506"]
    assert "tie" in verdict.findings[0].message
    clear = lambda x: body(x + 1, 2 if lax.axis_size("data") == 1 else 0.5)  # noqa: E731
    assert not check(split(clear), x, mesh=MESH)


# --- ranges


@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2", "float8_e4m3fn"])
def test_the_line_at_which_a_value_leaves_its_range(dtype):
    def body(x):
        total = (x * 6).astype(dtype).astype("float32").sum(0)
        own = (total / x.shape[0] * 16).astype(dtype)  # here
        return lax.pmean(own.astype("float32") / 16, "data")

    most = float(jnp.finfo(dtype).max)
    x = jnp.full((16, 4), most / 64, "float32").at[:8, 1].multiply(-1)
    x = x.at[:, 2].multiply(0.5)
    verdict = check(split(body), x, mesh=MESH)
    assert {one.code for one in verdict.findings} == {"SW107"}
    (finding,) = verdict.findings
    assert "leaves the range of " + dtype in finding.message
    assert "# here" in Path(__file__).read_text().splitlines()[finding.where.line - 1]


# --- planted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", list(pairs())[3::36], ids=str)
def test_errors_in_single_elements_are_seen(pair, dtype):
    found = list(planted(pair, dtype))
    assert found
    assert not [one for one in found if not one.seen]
