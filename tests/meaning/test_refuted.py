"""What refutes, and what does not: by meaning alone, by numbers, and at which line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._meaning import Reading
from tests.check.corpus import pairs
from tests.check.marks import line_of
from tests.support import normal

from . import campaign

X = normal(8, 8)


SPLIT, WHOLE = P("data"), P()


def sharded(body, in_specs=SPLIT, out_specs=WHOLE, **options):
    def program(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)(
            *args
        )

    return program


LOST = {
    "sign": jnp.sign,
    "argmax": lambda x: jnp.argmax(x, axis=1),
    "argsort": lambda x: jnp.argsort(x, axis=1),
    "sort of two": lambda x: lax.sort((x, jnp.arange(64).reshape(8, 8)), num_keys=1)[1],
    "top_k": lambda x: lax.top_k(x, 2)[1],
    "atan2": lambda x: jnp.arctan2(x, jnp.roll(x, 1, 0)),
    "logarithms": lambda x: jnp.log(jnp.abs(x)) - jnp.log(jnp.sum(jnp.abs(x))),
    "two logarithms": lambda x: jnp.log(x**2).sum() - 2 * jnp.log(jnp.abs(x)).sum(),
    "largest": lambda x: x / jnp.max(jnp.abs(x)),
    "length": lambda x: x / jnp.linalg.norm(x),
    "unit columns": lambda x: jnp.linalg.qr(x)[0] ** 2,
    "comparison": lambda x: x > x.mean(),
    "is finite": jnp.isfinite,
    "outer": lambda x: jnp.outer(x[0], 1 / x[1]),
}
"""Functions that are the same of a multiple."""


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("reduce", [lax.psum, lambda x, axis: x * 4], ids=["psum", "times"])
def test_a_factor_that_is_lost_on_the_way_refutes_nothing(name, reduce):
    """Four times the right value goes in, and the result is right: no proof may refute it."""

    def body(x):
        whole = lax.all_gather(x, "data", tiled=True)
        size = lax.axis_size("data")
        grown = reduce(whole, "data") if size > 1 else whole
        return LOST[name](grown)

    proof = sw.prove(sharded(body, check_vma=False), X, mesh=sw.mesh(data=4), run=False)
    assert proof.status in ("proved", "unknown"), proof


KEPT = {
    "itself": lambda x: x,
    "exp": jnp.exp,
    "a layer": lambda x: jnp.tanh(x @ X) @ X,
    "new params": lambda x: X - 0.1 * x,
    "normalised with eps": lambda x: x / (jnp.abs(x) + 1e-3),
}


@pytest.mark.parametrize("name", ["itself", "exp", "a layer", "new params"])
def test_a_factor_that_shows_refutes_by_itself(name):
    def body(x):
        whole = lax.all_gather(x, "data", tiled=True)
        return KEPT[name](lax.psum(whole, "data"))

    proof = sw.prove(sharded(body, check_vma=False), X, mesh=sw.mesh(data=4), run=False)
    assert proof.status == "refuted", proof


def test_numbers_of_another_mesh_refute_nothing():
    """What is wrong on two devices may be right on four: only those that were run are refuted."""

    def body(x):
        size = lax.axis_size("data")
        best = lax.all_gather(lax.top_k(x, 2)[0], "data", tiled=True)
        return lax.top_k(best, 2)[0] * (3 if size == 2 else 1)

    step = sharded(body, check_vma=False)
    proof = sw.prove(step, normal(16), mesh={"data": [2, 4, 8]})
    said = {one.mesh: one.status for one in proof.results}
    assert said == {"{data: 2}": "refuted", "{data: 4}": "unknown", "{data: 8}": "unknown"}


def test_what_only_many_devices_show_is_found():
    def body(x):
        size = lax.axis_size("data")
        best = lax.all_gather(lax.top_k(x, 2)[0], "data", tiled=True)  # here
        return lax.top_k(best, 2)[0] * (3 if size == 8 else 1)  # used

    proof = sw.prove(sharded(body, check_vma=False), normal(16), mesh={"data": [2, 4, 8]})
    assert proof.status == "refuted"
    assert proof.numbers.startswith("By numbers, on {data: 8}: result")
    assert proof.findings[0].certain
    assert proof.findings[0].where.line in (line_of(body, "# here"), line_of(body, "# used"))


def test_numbers_at_other_sizes_refute_nothing():
    """A block size that is written down is right at the sizes asked about, and at no others."""

    def body(x):
        start = lax.axis_index("data") * 1024
        mine = lax.dynamic_slice(lax.all_gather(x, "data", tiled=True), (start, 0), (1024, 4096))
        return lax.psum(lax.top_k(mine.T, 1)[0].sum(), "data") if x.shape[0] == 1024 else x.sum()

    step = sharded(body, check_vma=False)
    proof = sw.prove(step, jax.ShapeDtypeStruct((4096, 4096), jnp.float32), mesh=sw.mesh(data=4))
    assert proof.status == "unknown", proof


def test_a_program_that_waits_forever_is_refuted():
    def body(x):
        def vary(v):
            return lax.pcast(v, "data", to="varying")

        mine = jnp.sum(x)
        first = lax.axis_index("data") == 0
        some = lax.cond(first, lambda v: vary(lax.psum(v, "data")), lambda v: v, mine)  # here
        return lax.psum(some, "data")

    proof = sw.prove(sharded(body), normal(8), mesh=sw.mesh(data=4))
    assert proof.status == "refuted", proof
    assert proof.findings[0].code == "SW301"
    assert proof.findings[0].where.line == line_of(body, "# here")
    assert "wait for each other forever" in proof.numbers


def test_numbers_name_the_meshes_on_which_devices_wait_and_no_others():
    def body(x):
        def step(carry):
            v, turns = carry
            return v - 0.25 * lax.pmean(v, "data"), turns + 1

        def far(carry):
            return (jnp.sum(carry[0] ** 2) > 1) & (carry[1] < 40)  # each device's own

        return lax.while_loop(far, step, (x, 0))[0]

    step = sharded(body, out_specs=SPLIT)
    x = jnp.arange(16, dtype=jnp.float32) / 8
    proof = sw.prove(step, x, mesh={"data": [1, 8]})
    assert "By numbers, on {data: 8}: devices wait for each other forever." in proof.numbers
    said = {one.mesh: one.status for one in proof.results}
    assert said == {"{data: 1}": "proved", "{data: 8}": "refuted"}


@pytest.mark.parametrize("narrow", [jnp.uint8, jnp.int8, jnp.int16])
@pytest.mark.parametrize("wide", [jnp.int32, jnp.float32])
def test_sums_of_few_bits_that_get_more_before_they_are_added_up_are_not_proved(narrow, wide):
    """Each device's own sum wraps around, or does not: that depends on how many devices."""

    def body(x):
        return lax.psum(jnp.sum(x, dtype=narrow).astype(wide), "data")

    x = jnp.arange(160, 208, dtype=jnp.uint8) * (100 if narrow == jnp.int16 else 1)
    proof = sw.prove(sharded(body), x, mesh={"data": [2, 8]}, run=False)
    assert proof.status == "unknown", proof
    assert "may have wrapped around" in str(proof)


def test_a_ring_of_sums_of_few_bits_is_not_proved():
    def body(x):
        mine = total = jnp.sum(x, dtype=jnp.uint8).astype(jnp.int32)
        size = lax.axis_size("data")
        for _ in range(size - 1):
            mine = lax.ppermute(mine, "data", [(i, (i + 1) % size) for i in range(size)])
            total = total + mine
        return total[None]

    step = sharded(body, out_specs=SPLIT)
    proof = sw.prove(
        step,
        jnp.zeros(48, jnp.uint8),
        mesh={"data": [4]},
        reference=lambda x: jnp.broadcast_to(jnp.sum(x, dtype=jnp.uint8).astype(jnp.int32), (4,)),
        run=False,
    )
    assert proof.status == "unknown", proof


def ring_sum(x):
    size = lax.axis_size("data")

    def step(carry, _):
        total, mine = carry
        mine = lax.ppermute(mine, "data", [(i, (i + 1) % size) for i in range(size)])
        return (total + mine, mine), None

    return lax.scan(step, (x, x), None, length=size - 1)[0][0]


def total(x):
    return lax.psum(x, "data")


def grown(x):
    """As many more as there are other devices."""
    return x + jnp.int8(40 * lax.axis_size("data") - 40)


DECIDED = {
    "a comparison": lambda x: total(x) > 0,
    "zero": lambda x: total(x) == 0,
    "of two": lambda x: total(x) < total(x[::-1]),
    "a product": lambda x: x * x.dtype.type(lax.axis_size("data")) > 0,
    "a common summand": lambda x: grown(x) < grown(x[::-1]),
    "sign": lambda x: jnp.sign(total(x)),
    "argmax": lambda x: jnp.argmax(total(x)),
    "argsort": lambda x: jnp.argsort(total(x)),
    "where": lambda x: jnp.where(total(x) > 0, 1.0, 0.0),
    "cond": lambda x: lax.cond(total(x)[0] > 0, lambda: 1.0, lambda: 2.0),
    "a ring": lambda x: ring_sum(x) > 0,
    "of the largest": lambda x: total(x).max() == total(x.max()),
    "of numbers": lambda x: x * jnp.minimum(total(jnp.int8(100)), 50),
    "pmax": lambda x: lax.pmax(x * x.dtype.type(lax.axis_size("data")), "data") > 0,
    "truth": lambda x: total(x).astype(bool),
    "a matrix product": lambda x: lax.dot(total(x), x, preferred_element_type=jnp.int32) > 0,
}


@pytest.mark.parametrize("name", DECIDED)
def test_what_is_decided_by_a_sum_of_few_bits_that_may_wrap_around_is_not_proved(name):
    x = jnp.asarray([100, -100, 90, 3, 60, -60, 64, -128], jnp.int8)
    step = sharded(DECIDED[name], in_specs=WHOLE, check_vma=False)
    proof = sw.prove(step, x, mesh={"data": [2, 4]})
    assert proof.status == "refuted", proof
    assert sw.prove(step, x, mesh={"data": [2, 4]}, run=False).status == "unknown"


@pytest.mark.parametrize("devices", [3, 100, 128, 256])
def test_votes_are_proved_while_they_fit_into_their_bits(devices):
    step = sharded(lambda x: total((x > 0).astype(jnp.int8)) > 0, in_specs=WHOLE, check_vma=False)
    proof = sw.prove(step, normal(4), mesh={"data": devices}, run=False)
    assert bool(proof) == (devices < 128), proof


def test_a_share_below_zero_without_a_sign_is_not_proved_once_it_is_a_fraction():
    def own(a, b):
        return lax.psum((a.sum() - b.sum()).astype(jnp.float32), "data")

    def whole(a, b):
        return lax.psum(a.sum() - b.sum(), "data").astype(jnp.float32)

    a, b = jnp.asarray([1, 2, 3, 900], jnp.uint32), jnp.asarray([5, 6, 7, 8], jnp.uint32)
    unknown, right = (
        sw.prove(sharded(body, in_specs=(SPLIT, SPLIT)), a, b, mesh={"data": [2, 4]}, run=False)
        for body in (own, whole)
    )
    assert unknown.status == "unknown", unknown
    assert right, right


@pytest.mark.parametrize("by", [1, -1])
def test_a_factor_without_a_sign_is_not_dropped(by):
    def body(a, b):
        return jnp.argmax(total(a + b if by > 0 else a - b))

    step = sharded(body, in_specs=WHOLE, check_vma=False)
    proof = sw.prove(step, *[jnp.ones(4, jnp.uint32)] * 2, mesh={"data": 2}, run=False)
    assert proof.status == "unknown", proof


FEW_BITS = {
    "more bits first": lambda x: lax.psum(jnp.sum(x.astype(jnp.int32)), "data"),
    "more bits last": lambda x: lax.psum(jnp.sum(x, dtype=jnp.uint8), "data").astype(jnp.int32),
    "a mean": lambda x: lax.pmean(jnp.mean(x), "data"),
    "each by itself": lambda x: lax.psum(jnp.sum((x * x + 1).astype(jnp.int32)), "data"),
    "a largest": lambda x: lax.pmax(jnp.max(x).astype(jnp.float32), "data"),
    "compared last": lambda x: lax.psum(jnp.sum(x, dtype=jnp.uint8), "data") > 9,
    "compared each": lambda x: lax.psum((x * x + 1 > 9).sum(), "data"),
    "a share times": lambda x: jnp.sign(3 * lax.psum(jnp.sum(x, dtype=jnp.uint8), "data")),
}


@pytest.mark.parametrize("name", FEW_BITS)
def test_few_bits_are_proved_where_no_share_gets_more(name):
    x = jnp.arange(160, 208, dtype=jnp.uint8)
    proof = sw.prove(sharded(FEW_BITS[name]), x, mesh={"data": [2, 8]}, run=False)
    assert proof, proof


def test_a_reference_is_held_against_one_device_too():
    def step(x, *, mesh):
        return jax.shard_map(
            lambda x: lax.top_k(x, 2)[0] * 3, mesh=mesh, in_specs=P(), out_specs=P()
        )(x)

    proof = sw.prove(
        step, normal(16), mesh={"data": [1, 2]}, reference=lambda x: jax.lax.top_k(x, 2)[0]
    )
    assert [one.status for one in proof.results] == ["refuted", "refuted"]


def test_numbers_that_differ_from_what_is_proved_are_told_as_our_bug(monkeypatch):
    def body(x):
        return 2 * lax.psum(x, "data"), lax.psum(lax.axis_index("data") + x.sum(), "data")

    real = Reading.gaps
    monkeypatch.setattr(Reading, "gaps", lambda self: [[], real(self)[1]])
    proof = sw.prove(sharded(body, WHOLE, WHOLE), normal(8), mesh=sw.mesh(data=4))
    assert proof.results[0].status == "unknown"
    assert "SW410" in {found.code for found in proof.findings}


EVERY = [pair for number, pair in enumerate(pairs()) if number % 13 == 4]


@pytest.mark.parametrize("pair", EVERY, ids=str)
def test_a_wrong_program_is_refuted_where_check_finds_it_wrong(pair):
    """A part of the corpus: `python -m tests.check.proofs` has all of it."""
    args = pair.args()
    proof = sw.prove(pair.wrong, *args, mesh=pair.mesh)
    assert proof.status != "proved", proof
    first = proof.findings[0]
    told = next(f for f in sw.check(pair.wrong, *args, mesh=pair.mesh).findings if f.certain)
    assert (first.code, first.where, first.remedy) == (told.code, told.where, told.remedy)
    assert sw.prove(pair.right, *args, mesh=pair.mesh).status in ("proved", "unknown")


@pytest.mark.parametrize(
    "after",
    [jnp.tanh, jax.nn.relu, jax.nn.softplus, jax.nn.log_softmax, lambda z: z / (1 + abs(z).max())],
)
def test_a_bias_before_the_sum_is_named_whatever_comes_after(after):
    def body(x, up, down, bias):
        return after(lax.psum(jax.nn.gelu(x @ up) @ down + bias, "data"))

    specs = (P(), P(None, "data"), P("data"), P())
    args = normal(8, 4), normal(4, 16, seed=1), normal(16, 4, seed=2), normal(4, seed=3)
    (found,) = sw.check(sharded(body, specs), *args, mesh={"data": [1, 4]}).findings
    assert found.code == "SW404"
    assert "bias" in found.where.text


def test_what_may_follow_from_a_known_cause_is_not_a_finding_of_its_own():
    def body(x, w, bias):
        hidden = lax.psum(x @ w + bias, "data")
        return hidden, jnp.argsort(hidden, axis=1).astype(float) * jnp.sin(hidden)

    specs = (P(None, "data"), P("data"), P())
    args = normal(8, 8), normal(8, 8, seed=1), normal(8, seed=2)
    program = sharded(body, specs, (P(), P()))
    (found,) = sw.check(program, *args, mesh={"data": [1, 4]}).findings
    assert found.code == "SW404"
    assert found.same_problem == ("result[1]",)
    assert "1 more result" in found.message


def test_a_cause_that_is_silenced_silences_nothing_else():
    def body(x, w, bias):
        hidden = lax.psum(x @ w + bias, "data")  # shardwise: ignore[SW404]
        return hidden, jnp.argsort(hidden, axis=1).astype(float) * jnp.sin(hidden)

    specs = (P(None, "data"), P("data"), P())
    args = normal(8, 8), normal(8, 8, seed=1), normal(8, seed=2)
    verdict = sw.check(sharded(body, specs, (P(), P())), *args, mesh={"data": [1, 4]})
    assert not verdict
    assert [(one.code, one.leaf) for one in verdict.findings] == [("SW109", "result[1]")]


def test_a_maximum_that_is_right_for_these_numbers_only():
    """The first device has the largest element, and returns its own maximum: refuted."""
    x = -jnp.arange(8.0)
    proof = sw.prove(sharded(jnp.max, check_vma=False), x, mesh=sw.mesh(data=2))
    assert proof.status == "refuted"
    assert proof.numbers == "By numbers, on {data: 2}: result differs between devices."


def test_the_campaign_tries_other_numbers_before_a_refutation_is_false():
    f, x = sharded(jnp.max, check_vma=False), -np.arange(8.0, dtype=np.float32)
    counts, failures = campaign.results(f, [x], {"data": 2})
    assert not failures
    assert counts["results refuted, numbers same"] == counts["  different with other numbers"] == 1
