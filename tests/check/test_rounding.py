"""What rounding can do is no mistake, and nothing else is forgiven: programs run in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from tests.support import check, normal

MESH = {"data": [1, 8]}


def split(body, out_specs=P(), in_specs=P("data"), **options):  # noqa: B008
    def program(*args, mesh):
        specs = {"in_specs": in_specs, "out_specs": out_specs, **options}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    return program


def total(x):
    return lax.psum(x.sum(0), "data")


def slip(by):
    """A factor that is wrong on several devices."""
    return 1 if lax.axis_size("data") == 1 else 1 + by


def plant(x, at, by):
    return x.at[at].multiply(slip(by))


# --- what has to be seen


@pytest.mark.parametrize("coarse", ["bfloat16", "float16", "float8_e4m3fn"])
def test_a_coarse_type_elsewhere_loosens_nothing(coarse):
    def body(x):
        rounded = x.astype(coarse).astype("float32")
        return {"rounded": total(rounded), "loss": total(x**2) * slip(0.002)}

    verdict = check(split(body), normal(64), mesh=MESH)
    assert [f.leaf for f in verdict.findings] == ["result['loss']"]


def test_a_coarse_type_on_a_side_path_into_the_result_loosens_little():
    """The bfloat16 term is a thousandth of the result, so its rounding is too."""

    def body(x):
        aside = x.astype("bfloat16").astype("float32") * 1e-3
        return total(x**2 + aside) * slip(0.002)

    assert not check(split(body), normal(64), mesh=MESH)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_small_entry_beside_a_large_one(at):
    sizes = jnp.array([1e6, 1.0, 1e-3, 1e-6])
    program = split(lambda x: plant(total(x) * sizes, at, 0.01))
    x = normal(64, 1) * np.ones(4, "f")
    assert not check(program, x, mesh=MESH)
    (finding,) = check(program, x, mesh=MESH, reference=lambda x: x.sum(0) * sizes).findings
    assert f"1 of 4 entries, the worst [{at}]: " in finding.message


def test_one_entry_of_one_row_of_a_gradient():
    def body(w, x):
        loss = lambda w: lax.pmean(jnp.mean(jnp.tanh(x @ w) ** 2), "data")  # noqa: E731
        return plant(jax.grad(loss)(w), (5, 7), 0.01)

    step = split(body, in_specs=(P(), P("data")))
    assert not check(step, normal(8, 16), normal(64, 8) * 2.0 ** -np.arange(8.0), mesh=MESH)


def test_the_accuracy_beside_the_loss():
    def body(x):
        hits = lax.pmean((x > 0).mean(), "data")
        return jnp.stack([1e4 * total(x**2), hits * slip(0.01)])

    assert not check(split(body), normal(64), mesh=MESH)


@pytest.mark.parametrize("make", [normal, lambda n: abs(normal(n))])
def test_a_long_sum_wrong_by_a_thousandth(make):
    x = make(1 << 18)
    assert check(split(total), x, mesh=MESH)
    assert not check(split(lambda x: total(x) * slip(0.001)), x, mesh=MESH)


@pytest.mark.parametrize("by", [0.01, 0.01j])
def test_complex_numbers(by):
    def body(x, by):
        return plant(jnp.fft.fft(total(x).astype("complex64")), 1, by)

    assert check(split(lambda x: body(x, 0)), normal(8, 16), mesh=MESH)
    assert not check(split(lambda x: body(x, by)), normal(8, 16), mesh=MESH)


@pytest.mark.parametrize("by", [0.001, 0.1])
def test_one_part_of_a_complex_number_beside_a_large_one(by):
    x = (normal(64, 4) + 1j * normal(64, 4)[::-1]).astype("complex64")
    unlike = [lambda t: (t.real * 1e6, t.imag * slip(by)), lambda t: (t.real * slip(by), t.imag)]
    for parts in unlike:
        assert not check(split(lambda x, f=parts: lax.complex(*f(total(x)))), x, mesh=MESH)
        # A product with a real number mixes nothing.
        scaled = split(lambda x, f=parts: 2.5 * lax.complex(*f(total(x))))
        assert not check(scaled, x, mesh=MESH)
    one = split(lambda x: lax.complex(*unlike[0](total(x))))
    assert check(one, x, mesh=MESH, rtol=0.001), "a given tolerance is one of |z|"


# --- what must not be faulted


def numbered(x):
    """The rows of the whole array that a device holds."""
    return lax.axis_index("data") * x.shape[0] + jnp.arange(x.shape[0])


def fourier(x):
    turns = jnp.outer(jnp.arange(64), numbered(x)) / 64
    return lax.psum(jnp.exp(-2j * jnp.pi * turns) @ x, "data")


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.psum(x.conj().T @ x, "data"),  # real on its diagonal
        lambda x: total(x) * (1.001 * total(x)).conj(),
        lambda x: total(x) / total(3.3 * x),
        lambda x: total(x) * jnp.exp(-1j * jnp.angle(total(x))),
        lambda x: (total(x) / 8) ** 2.5,
        lambda x: jnp.log(jnp.exp(1j * total(x).real)),
        lambda x: jnp.fft.ifft(jnp.fft.fft(total(x))),
        lambda x: jnp.linalg.solve(lax.psum(x.conj().T @ x, "data"), total(x)),
        fourier,
    ],
)
def test_a_part_of_a_complex_number_that_is_nothing_but_rounding(f):
    x = (normal(64, 4) + 1j * normal(64, 4)[::-1]).astype("complex64")
    assert (verdict := check(split(f), x, mesh=MESH)), verdict


def halves(dtype):
    """Two halves that cancel, each large: devices round their parts of the sum."""
    large = np.float32([1.1] * 512 + [-1.1] * 512)
    return jnp.asarray(large + 0.01 * normal(1024), dtype)


def centred(x):
    return total(x - lax.pmean(x.mean(0), "data"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("body", [total, centred])
def test_sums_that_cancel(dtype, body):
    verdict = check(split(body), halves(dtype), mesh={"data": [1, 2, 8]})
    assert verdict, verdict


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_partial_products_that_cancel(dtype):
    x = jnp.concatenate([halves(dtype)[None, :512], -halves(dtype)[None, :512]], axis=1)
    w = jnp.asarray(1 + 0.01 * normal(1024, 4), dtype)
    program = split(lambda x, w: lax.psum(x @ w, "data"), in_specs=(P(None, "data"), P("data")))
    verdict = check(program, x, w, mesh=MESH)
    assert verdict, verdict


def test_counts_are_exact_under_shaking():
    """A capacity compared with a running count in float32, as routers do: no decision flips."""

    def body(x):
        position = jnp.cumsum((x > 0).astype("float32"))
        return lax.psum(jnp.where(position <= 4.0, x, 0).sum(), "data") * slip(0.001)

    x = jnp.asarray(normal(64))
    verdict = check(split(body, in_specs=P()), x, mesh=MESH)
    assert not verdict


def test_what_is_printed_is_printed_once_a_mesh(capfd):
    def body(x):
        jax.debug.print("here")
        return centred(x)

    assert check(split(body), normal(64), mesh={"data": [1]})
    jax.effects_barrier()
    assert capfd.readouterr().out.count("here") == 1


# --- numbers sent in a coarser type

NARROW = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]


def sent_as(dtype, share=1.0):
    """A sum of which the parts are sent in a coarser type."""

    def body(x):
        mine = (jnp.sum(x, 0) * (1 if lax.axis_size("data") == 1 else share)).astype(dtype)
        return lax.psum(mine, "data").astype("float32")

    return split(body)


def round_a_ring(dtype):
    """The same, added up by every device in an order of its own."""

    def body(x):
        mine, n = jnp.sum(x, 0).astype(dtype), lax.axis_size("data")
        total = mine.astype("float32")
        for _ in range(n - 1):
            mine = lax.ppermute(mine, "data", [(i, (i + 1) % n) for i in range(n)])
            total += mine.astype("float32")
        return total

    return split(body, check_vma=False)


@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_lost_in_a_cast_is_not_faulted(dtype):
    x = normal(16, 1024)
    mesh = {"data": [1, 2]}
    assert check(round_a_ring(dtype), x, mesh=mesh)
    assert check(sent_as(dtype), x, mesh=mesh, reference=lambda x: jnp.sum(x, 0))


def among_others(dtype, mean):
    """A mean that is taken in a coarser type where there are others to send it to."""

    def body(x):
        mine = x.mean(0)
        if lax.axis_size("data") == 1:
            return mine
        return mean(mine.astype(dtype)).astype("float32")

    return split(body, check_vma=False)


def scattered(part):
    total = lax.psum_scatter(part, "data", tiled=True)
    return lax.all_gather(total / lax.axis_size("data"), "data", tiled=True)


@pytest.mark.parametrize(
    ("dtype", "mean"),
    [
        *((dtype, lambda part: lax.pmean(part, "data")) for dtype in NARROW),
        ("bfloat16", lambda part: lax.psum(part / lax.axis_size("data"), "data")),
        ("float16", scattered),
    ],
)
def test_what_is_rounded_while_it_is_sent_is_not_faulted(dtype, mean):
    program = among_others(dtype, mean)
    x = normal(8, 1024, seed=3)
    assert check(program, x, mesh={"data": [1, 2, 8]})
    assert check(program, x, mesh={"data": [1, 2, 8]}, reference=lambda x: x.mean(0))


def test_a_running_sum_that_rounds_most_on_one_device_is_not_faulted():
    """On two meshes it is off in one direction, which is that of one device."""

    def body(x, wrong=False):
        ends = lax.all_gather(x.sum(0), "data")
        before = (jnp.arange(len(ends)) < lax.axis_index("data"))[:, None]
        return jnp.cumsum(x, 0) + (0 if wrong else jnp.where(before, ends, 0).sum(0))

    x = jnp.asarray(normal(256, 4, seed=2), "bfloat16")
    mesh = {"data": [1, 4, 8]}
    assert check(split(body, P("data")), x, mesh=mesh)
    assert not check(split(lambda x: body(x, wrong=True), P("data")), x, mesh=mesh)


def looked_up(table, ids, y):
    """The gradient of a table, added up row by row in its own type."""
    loss = lambda t: lax.pmean(jnp.mean((t[ids] - y).astype("float32") ** 2), "data")  # noqa: E731
    return jax.grad(loss)(table)


def test_what_a_scatter_rounds_term_by_term_is_not_faulted():
    table = jnp.asarray(normal(4, 8), "bfloat16")
    ids, y = np.arange(2048) * 7 % 4, jnp.asarray(normal(2048, 8, seed=1), "bfloat16")
    step = split(looked_up, in_specs=(P(), P("data"), P("data")))
    assert check(step, table, ids, y, mesh=MESH)
    wrong = split(lambda *a: looked_up(*a) * slip(0.5), in_specs=(P(), P("data"), P("data")))
    assert not check(wrong, table, ids, y, mesh=MESH)
    parts = split(lambda y, i: lax.psum(jnp.zeros(4, y.dtype).at[i].subtract(y[:, 0]), "data"))
    assert check(parts, abs(y), ids, mesh=MESH)


@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_sent_and_wrong_is_faulted(dtype):
    x = normal(16, 1024)
    reference = lambda x: jnp.sum(x, 0)  # noqa: E731
    assert not check(sent_as(dtype, 0.9), x, mesh={"data": [1, 2]}, reference=reference)
    wrong = sent_as(dtype, jnp.ones(1024).at[np.argmax(x.sum(0))].set(8.0))
    assert not check(wrong, x, mesh={"data": [1, 2]}, reference=reference)


@pytest.mark.parametrize("make", [np.float32, np.float16], ids=["float32", "float16"])
def test_products_of_short_numbers_in_float64(make):
    """What float32 holds is short in float64, and products of it are not."""

    def body(x):
        return lax.all_gather(x.T @ x, "data").sum(0)

    for seed in range(3):
        x = np.asarray(make(normal(240, 32, seed=seed)), "float64")
        with jax.enable_x64(True):
            assert check(split(body, check_vma=False), x, mesh={"data": [1, 2, 5]})


def test_rows_that_are_picked_and_added_up():
    """One operand of the product is a mask."""

    def body(x, labels):
        picked = jax.nn.one_hot(labels, 4).T @ x
        return lax.all_gather(picked, "data").sum(0)

    program = split(body, in_specs=(P("data"), P("data")), check_vma=False)
    labels = np.random.default_rng(0).integers(0, 4, 240)
    assert check(program, normal(240, 64), labels, mesh={"data": [1, 2, 5]})


# --- decisions: whole numbers and booleans that come of numbers that round

DECISIONS = {
    "largest": lambda scores: jnp.argmax(scores, -1),
    "chosen": lambda scores: lax.top_k(scores, 2)[1],
    "above": lambda scores: scores > 0.5,
    "count": lambda scores: (scores > 0.5).sum(),
    "nearest": lambda scores: jnp.round(scores * 8).astype("int32"),
    "sign": jnp.sign,
}


def scored(decide, wrong=lambda found: found):
    """Devices round their parts of the scores."""

    def body(x, w):
        part = jnp.where(jnp.arange(w.shape[1]) >= 0, x @ w, 0)
        found = decide(lax.psum(part, "data"))
        return found if lax.axis_size("data") == 1 else wrong(found)

    return split(body, in_specs=(P(None, "data"), P("data")))


def in_bfloat16(seed=0):
    return tuple(jnp.asarray(normal(*s, seed=seed), "bfloat16") for s in ((128, 64), (64, 32)))


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_that_rounding_turns_is_not_faulted(name):
    x, w = in_bfloat16()
    program = scored(DECISIONS[name])
    alone = sw.simulate(program, mesh=sw.mesh(data=1))
    if name == "nearest":  # the others turn on other data
        assert (sw.simulate(program, mesh=sw.mesh(data=8))(x, w) != alone(x, w)).any()
    assert check(program, x, w, mesh=MESH, reference=alone)


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_that_is_plain_is_faulted(name):
    def wrong(found):
        if found.dtype == bool:
            return found.at[5, 1].set(~found[5, 1])
        return found + found // 50 if found.ndim == 0 else found.at[(5, 1)[: found.ndim]].add(5)

    x, w = in_bfloat16()
    assert not check(scored(DECISIONS[name], wrong), x, w, mesh=MESH)


def test_a_mean_of_whole_numbers_that_is_zero_but_for_rounding():
    """On one device the sum is exact, and so is the quotient."""
    x = np.float32(
        [5, -3, 7, 1, -8, 2, 4, -6, 9, -1, -5, 3, 2, -9, 8, -2, 1, -7, 6, -4, 3, 0, -5, -1]
    )
    assert x.sum() == 0
    program = split(lambda x: lax.pmean(x.mean(), "data"))
    assert check(program, x, mesh=MESH)
    assert check(program, x, mesh=MESH, reference=jnp.mean)


def test_a_wrong_sum_over_devices_of_what_has_no_operands():
    def body(x):
        return lax.psum(jnp.where(jnp.arange(4) >= 0, x.sum() / x.shape[0], 0.0), "data")

    (finding,) = check(split(body), normal(64), mesh=MESH).findings
    assert finding.certain


def test_large_whole_numbers_that_float64_cannot_tell_apart():
    def body(x):
        most = lax.pmax(x.max(0), "data")
        return most if lax.axis_size("data") == 1 else most + 1

    with jax.enable_x64(True):
        x = jnp.asarray([2**60 + 4] * 8)
        assert not check(split(body), x, mesh=MESH)


def test_products_are_in_full_precision():
    """Accelerators multiply with fewer bits, which is all that a check of them would show."""
    found = []

    def f(x):
        found.append(jax.config.jax_default_matmul_precision)
        return x @ x.T

    for g in (f, jax.jit(f)):
        check(g, np.eye(8, dtype=np.float32), mesh={"data": [1, 2]})
    assert set(found) == {"highest"}
    assert jax.config.jax_default_matmul_precision is None


# --- what is left where everything cancels


def noise(params, x, y, *, mesh):
    """The gradient of a bias that a mean takes off again is zero, but for rounding; squared."""

    def body(params, x, y):
        def loss(params):
            h = x @ params["w"] + params["b"]
            h = h - lax.pmean(h.mean(0), "data")
            h = h * lax.rsqrt(lax.pmean((h**2).mean(0), "data") + 1e-5)
            return lax.pmean(((jax.nn.relu(h) - y) ** 2).mean(), "data")

        return jax.tree.map(lambda g: 1e-3 * g**2, jax.grad(loss)(params))

    specs = P(), P("data"), P("data")
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, x, y)


def test_what_is_left_where_everything_cancels_is_no_mistake():
    """Such numbers are multiples of one, and may come back to the bit in a run or two."""
    for seed in range(4):
        params = {"w": normal(4, 6, seed=4 * seed), "b": normal(6, seed=4 * seed + 1)}
        x, y = normal(16, 4, seed=4 * seed + 2), normal(16, 6, seed=4 * seed + 3)
        verdict = check(noise, params, x, y, mesh={"data": [1, 2, 4, 8]})
        assert verdict, str(verdict)
