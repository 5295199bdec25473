"""Numbers that leave the range of their type, on some meshes and not on others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._analysis.lift.run import Run
from shardwise._engine.tracing import Tracing
from tests.support import check, real_mesh

SIZES = [1, 2, 4, 8]


def split(body, in_specs=P("data"), out_specs=P()):  # noqa: B008
    def program(*args, mesh):
        specs = {"in_specs": in_specs, "out_specs": out_specs, "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    return program


def product(x, w):
    """`preferred_element_type` is forgotten: a product of int8 is an int8."""
    return lax.psum((x @ w).astype(jnp.int32), "data")


STEPS = jnp.asarray([20] * 8 + [-15] * 8, jnp.int8)


def scanned(x):
    return lax.scan(lambda c, v: (c + v.astype(jnp.int8), None), jnp.int8(0), x)[0]


def in_floats(total):
    return lax.psum(total.astype(jnp.float32), "data")


WRAPS = {
    "on two devices alone": (
        split(product, (P(None, "data"), P("data"))),
        (jnp.ones((1, 16), jnp.int8), jnp.asarray([[20]] * 8 + [[-15]] * 8, jnp.int8)),
    ),
    "a mean": (split(lambda w: lax.pmean(w, "data"), P()), (jnp.asarray([3, 200], jnp.uint8),)),
    "int32": (split(lambda w: lax.pmean(w, "data"), P()), (jnp.asarray([3, 1 << 30], jnp.int32),)),
    "in a scan": (split(lambda x: in_floats(scanned(x))), (STEPS,)),
    "written out": (
        split(lambda x: in_floats(functools.reduce(jnp.add, [x[i] for i in range(len(x))]))),
        (STEPS,),
    ),
    "a narrow count": (split(lambda x: in_floats(scanned(x > 0))), (jnp.ones(256),)),
    "on the way": (
        split(lambda x: lax.psum((x.astype(jnp.int16) ** 2).sum(dtype=jnp.int16) / 2.0, "data")),
        (jnp.full(16, 90, jnp.int8),),
    ),
}


@pytest.mark.parametrize("name", WRAPS)
def test_whole_numbers_that_wrap_around_are_found_on_every_mesh(name):
    program, args = WRAPS[name]
    native = [np.asarray(program(*args, mesh=real_mesh(data=n))) for n in SIZES]
    wrong = [n for n, one in zip(SIZES, native, strict=True) if (one != native[0]).any()]
    assert wrong, "the program should show it"
    verdict = check(program, *args, mesh={"data": SIZES})
    assert list(verdict.wrong_on) == [f"{{data: {n}}}" for n in wrong]
    assert "SW410" not in {finding.code for finding in verdict.findings}
    assert any("wrap around" in finding.remedy for finding in verdict.findings)


def mixed(x):
    mixed = x * jnp.int8(37) + jnp.int8(101)  # a hash: to wrap around is what it is for
    return lax.psum(mixed.astype(jnp.int32).sum(), "data")


def test_what_is_meant_to_wrap_around_is_no_finding():
    x = jnp.arange(16, dtype=jnp.int8)
    assert check(split(mixed), x, mesh={"data": SIZES}).findings == ()
    wrong = split(lambda x: mixed(x) * lax.axis_size("data"))
    assert not check(wrong, x, mesh={"data": SIZES})


COUNTS = {
    "a count": lambda x: lax.psum((x > 0).sum(), "data"),
    "a narrow count": lambda x: lax.psum((x > 0).astype(jnp.int8).sum(dtype=jnp.int8), "data"),
    "large numbers": lambda x: lax.psum(x.sum().astype(jnp.int32), "data"),
    "numbers of rows": lambda x: x[(lax.axis_index("data") * 2 + jnp.arange(4)) % 4].sum(),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*zip(COUNTS, (None, "int8", "int32", None), strict=True)]
)
def test_integers_that_may_wrap_around(name, dtype):
    x = np.full(8, 1 << 28 if name == "large numbers" else 1)
    run = Run(Tracing(split(COUNTS[name]), sw.mesh(data=2)), (x,))
    assert run.wrapping() == dtype


def test_whole_numbers_are_asked_about_where_a_result_is_made_of_some():
    def body(x, n):
        small = jnp.sum(n, dtype=jnp.uint8)
        return lax.pmean(jnp.median(x), "data"), lax.psum(small.astype(jnp.int32), "data")

    args = jnp.arange(16.0) ** 2, jnp.full(16, 100, jnp.uint8)
    findings = check(split(body), *args, mesh={"data": [1, 4]}).findings
    assert {one.code for one in findings if one.certain} == {"SW109"}
    asked = {one.leaf: "wrap around" in one.remedy for one in findings if one.certain}
    assert asked == {"result[0]": False, "result[1]": True}


NAN = {
    "made on the way": (
        lambda x: lax.pmean(jnp.nanmean(jnp.log(x)), "data"),
        jnp.asarray([-1.0, 2, 3, 4, -5, 6, 7, 8, -9, 10, 11, 12]),
    ),
    "given": (
        lambda x: lax.pmean(jnp.nanmean(x), "data"),
        jnp.asarray([jnp.nan, 1, 2, 3, jnp.nan, 5, 6, 7, jnp.nan, 9, 10, 11]),
    ),
    "counted": (
        lambda x: lax.pmax(jnp.isnan(jnp.sqrt(x)).sum(), "data") * 1.0,
        jnp.asarray([-50.0, 1, 2, 3, 4, 5, 6, -43, 8, 9, 10, 11]),
    ),
}


@pytest.mark.parametrize("name", NAN)
def test_what_is_asked_whether_it_is_nan_is_run_on_every_mesh(name):
    body, x = NAN[name]
    sizes = [1, 2, 3]
    native = [np.asarray(split(body)(x, mesh=real_mesh(data=n))) for n in sizes]
    wrong = [n for n, one in zip(sizes, native, strict=True) if abs(one - native[0]) > 1e-4]
    assert wrong, "the program should show it"
    verdict = check(split(body), x, mesh={"data": sizes})
    assert list(verdict.wrong_on) == [f"{{data: {n}}}" for n in wrong]
    assert "SW410" not in {finding.code for finding in verdict.findings}


def test_what_is_infinite_on_one_device_alone():
    x = jnp.ones((16, 4), jnp.float16).at[:, 2].set(6000.0)
    mean = split(lambda x: lax.pmean(x.sum(0) / x.shape[0], "data"))
    (finding,) = check(mean, x, mesh={"data": [1, 2]}).findings
    assert finding.code == "SW107"
    assert "is finite where it should be NaN or infinite" in finding.message
    assert "leaves the range of float16" in finding.remedy


def on_the_way(x):
    return lax.pmean(jnp.mean(jnp.exp(x)), "data")


def scale(x):
    most = lax.pmax(jnp.max(jnp.sqrt(x)), "data")
    return jnp.where(most > 0, 127 / most, 1.0)


POSITIONS = jnp.arange(1.0, 4097.0)
ODD = jnp.asarray([1.0, 4, -1, 9, 16, 25, 36, 49, 4, 4, 1, 2, 3, 4, 5, 6])
UNSEEN = {
    "a choice of constants": (
        lambda x: in_floats(jnp.sum(jnp.where(x > 0, 300_000_000, -200_000_000))),
        jnp.asarray([1.0] * 8 + [-1.0] * 8),
    ),
    "positions": (
        lambda x: lax.psum(
            jnp.sum((lax.axis_index("data") * len(x) + jnp.arange(len(x))) ** 2) / 1e6, "data"
        ),
        POSITIONS,
    ),
    "NaN that pmax passes over": (scale, ODD),
    "infinite on one device": (
        lambda x: jnp.tanh(jnp.log(on_the_way(x)) / 100),
        jnp.linspace(86.4, 86.6, 16),
    ),
    "too large on one device": (
        lambda x: (on_the_way(x) > 1e38) * 1.0,
        jnp.linspace(86.4, 86.6, 16),
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_argument_and_no_result_shows(name):
    body, x = UNSEEN[name]
    native = [np.asarray(split(body)(x, mesh=real_mesh(data=n))) for n in SIZES]
    wrong = [n for n, one in zip(SIZES, native, strict=True) if abs(one - native[0]) > 1e-2]
    assert wrong, "the program should show it"
    verdict = check(split(body), x, mesh={"data": SIZES})
    assert list(verdict.wrong_on) == [f"{{data: {n}}}" for n in wrong]


@pytest.mark.parametrize("find", [sw.check, sw.prove])
@pytest.mark.parametrize("b", [0.5, 2, True, 1j])
def test_a_number_of_python_that_is_counted_once_for_each_device(b, find):
    program = split(lambda b, x: lax.psum(jnp.sum(x) + b, "data"), (P(), P("data")))
    assert not find(program, b, jnp.arange(16.0), mesh={"data": [1, 2, 4]}).ok


LOST = {
    "threshold": lambda m: (m > 0.5) * 1.0,
    "round": jnp.round,
    "maximum": lambda m: jnp.maximum(m, 0.5),
    "cond": lambda m: lax.cond(m > 0.5, lambda: 1.0, lambda: 0.0),
    "nothing": lambda m: 2 - 0.1 * m,
}


@pytest.mark.parametrize("name", LOST)
def test_a_factor_that_is_lost_on_some_meshes(name):
    program = split(lambda x: LOST[name](lax.psum(x.mean(), "data")))
    x = jnp.linspace(0, 0.16, 64)
    native = [np.asarray(program(x, mesh=real_mesh(data=n))) for n in SIZES]
    wrong = [n for n, one in zip(SIZES, native, strict=True) if abs(one - native[0]) > 1e-4]
    verdict = check(program, x, mesh={"data": SIZES})
    assert list(verdict.wrong_on) == [f"{{data: {n}}}" for n in wrong]


# --- what rounding would make NaN


def spread(of):
    """Of mean(x**2) - mean(x)**2, which cancels and may be just below 0."""

    def f(x, *, mesh):
        def body(x):
            mean = lax.pmean(x.mean(0), "data")
            return of(lax.pmean((x * x).mean(0), "data") - mean * mean)

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    return f


@pytest.mark.parametrize("of", [jnp.sqrt, lax.rsqrt, jnp.log])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_nan_that_rounding_decides_on_makes_no_program_wrong(of, dtype):
    x = jax.random.normal(jax.random.key(0), (16, 8))
    x = x * 0.01 + 100 if dtype == "float32" else (x * 0.1 + 4.026).astype(dtype)
    verdict = check(spread(of), x, mesh={"data": [1, 2, 4]})
    assert verdict
    assert not verdict.findings


def test_a_nan_of_an_empty_shard_is_wrong_as_before():
    def f(x, mask, *, mesh):
        body = lambda x, m: lax.pmean((x * m).sum() / m.sum(), "data")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, mask)

    x = jax.random.normal(jax.random.key(0), (16,))
    verdict = check(f, x, (jnp.arange(16) < 8) * 1.0, mesh={"data": [1, 2]})
    assert verdict.wrong_on == ("{data: 2}",)


def _gram(x):
    return lax.pmean(jnp.linalg.slogdet(x.T @ x)[1], "data")


ALONE_ON_A_MESH = {
    "a variance of one row": (
        split(lambda x: lax.pmean(jnp.log(x.var(0)), "data")),
        (4, 3),
    ),
    "statistics of one row": (
        split(lambda x: (x - x.mean(0)) / x.std(0), out_specs=P("data")),
        (4, 3),
    ),
    "a matrix that is singular": (split(_gram), (8, 3)),
}


@pytest.mark.parametrize("name", ALONE_ON_A_MESH)
@pytest.mark.parametrize("drawn", [False, True])
def test_what_is_nan_or_infinite_on_the_mesh_alone_is_wrong_however_it_rounds(name, drawn):
    """Rounding may make a zero of theirs a small number, and no number that is right."""
    program, shape = ALONE_ON_A_MESH[name]
    x = jax.random.normal(jax.random.key(8), shape)
    given = jax.ShapeDtypeStruct(shape, x.dtype) if drawn else x
    assert check(program, given, mesh={"data": [1, 4]}).wrong_on == ("{data: 4}",)


def test_every_mesh_on_which_it_is_infinite_is_named():
    x = jnp.repeat(jnp.array([0.3, 1.7]), 8)
    program = split(lambda x: lax.pmean(jnp.log(x.var()), "data"))
    wrong = check(program, x, mesh={"data": SIZES})
    assert wrong.wrong_on == ("{data: 2}", "{data: 4}", "{data: 8}")


def test_a_large_program_that_is_proved_is_run_on_the_largest_mesh_alone(monkeypatch):
    """What is said of its numbers needs no other mesh."""
    ran = []
    observe = Run.observe
    monkeypatch.setattr(
        Run, "observe", lambda run, *atoms: ran.append(run.on) or observe(run, *atoms)
    )
    program = split(lambda x: lax.psum((x * 2).sum(0), "data"))
    assert check(program, jax.random.normal(jax.random.key(0), (4096, 1024)), mesh={"data": SIZES})
    assert set(ran) == {"on {data: 1}", "on {data: 8}"}
