"""A suspicion becomes the cause only where the difference is tied to it.

Values that differ between devices can be read as shares of their sum, whatever that is: the right
twin of a wrong program is read so too. What is named has to be what makes the result wrong.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw
from tests.support import check, normal

from .marks import line_of

RING = {"seq": [1, 4]}


def attend(params, x, form, rescale):
    """Attention over a ring, the running softmax kept in one of three ways."""
    n = lax.axis_size("seq")
    q, k, v = x @ params["q"], x @ params["k"], x @ params["v"]
    way = [(i, (i + 1) % n) for i in range(n)]

    def hop(carry, _):
        m, total, out, k, v = carry
        s = q @ k.T / 2
        new = jnp.maximum(m, s.max(-1))
        p = jnp.exp(s - new[:, None])
        old = jnp.exp(m - new)
        kept = total * old if rescale else total
        total = kept + p.sum(-1)  # wrong
        out = out * old[:, None] + p @ v
        k, v = lax.ppermute((k, v), "seq", way)
        return (new, total, out, k, v), None

    top, zero = jnp.full_like(q[:, 0], -jnp.inf), jnp.zeros_like(q[:, 0])
    carry, turns = (top, zero, jnp.zeros_like(q), k, v), n
    if form == "first block before the loop":
        s = q @ k.T / 2
        p = jnp.exp(s - s.max(-1)[:, None])
        carry = s.max(-1), p.sum(-1), p @ v, *lax.ppermute((k, v), "seq", way)
        turns = n - 1
    if form == "scan":
        carry, _ = lax.scan(hop, carry, None, length=turns)
    else:
        for _ in range(turns):
            carry, _ = hop(carry, None)
    _, total, out, _, _ = carry
    return out / total[:, None]


def train(params, x, *, mesh, form, rescale):
    def loss(params):
        body = functools.partial(attend, form=form, rescale=rescale)
        specs = {"in_specs": (P(), P("seq")), "out_specs": P("seq")}
        return jnp.mean(jax.shard_map(body, mesh=mesh, **specs)(params, x) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def ring_args():
    return {name: normal(4, 4, seed=i) for i, name in enumerate("qkv")}, normal(16, 4, seed=3)


def certain(verdict):
    return [finding for finding in verdict.findings if finding.certain]


@pytest.mark.parametrize("form", ["scan", "written out", "first block before the loop"])
def test_a_wrong_normaliser_is_named_and_not_the_product_before_it(form):
    wrong = functools.partial(train, form=form, rescale=False)
    (finding,) = certain(check(wrong, *ring_args(), mesh=RING))
    assert finding.code == "SW109"
    assert finding.where.line == line_of(attend, "# wrong")
    assert "it differs first at this line" in finding.message
    assert "is the same on every device" not in finding.remedy
    assert check(functools.partial(train, form=form, rescale=True), *ring_args(), mesh=RING)


def test_a_value_that_the_loop_goes_on_with_is_not_to_blame():
    """On two devices the loop has one turn: what it begins with and ends with have one twin."""

    def forward(params, x, *, mesh):
        body = functools.partial(attend, form="first block before the loop", rescale=False)
        specs = {"in_specs": (P(), P("seq")), "out_specs": P("seq")}
        return jax.shard_map(body, mesh=mesh, **specs)(params, x)

    (finding,) = certain(check(forward, *ring_args(), mesh={"seq": 2}))
    assert finding.where.line == line_of(attend, "# wrong")


def test_a_proof_suspects_nothing_of_the_right_ring_and_tells_the_wrong_one_once():
    right, wrong = (functools.partial(train, form="scan", rescale=one) for one in (True, False))
    proof = sw.prove(right, *ring_args(), mesh=RING)
    assert {finding.code for finding in proof.findings} <= {"SW409"}
    (finding,) = sw.prove(wrong, *ring_args(), mesh=RING).findings
    assert (finding.code, finding.where.line) == ("SW109", line_of(attend, "# wrong"))


def sums_so_far(x, *, mesh, largest):
    """Each device's own total is gathered, and used: that is right."""

    def body(x):
        totals = lax.all_gather(x.sum(), "data")  # right
        before = jnp.where(jnp.arange(len(totals)) < lax.axis_index("data"), totals, 0).sum()
        return jnp.cumsum(x) + before + lax.psum(largest(x), "data")  # wrong

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def test_a_share_that_is_used_rightly_is_not_the_cause_of_something_else():
    wrong = functools.partial(sums_so_far, largest=jnp.max)
    (finding,) = certain(check(wrong, normal(16), mesh={"data": [1, 4]}))
    assert finding.code == "SW405"
    assert finding.where.line == line_of(sums_so_far, "# wrong")
    assert "own maximum or minimum" in finding.message
    assert check(functools.partial(sums_so_far, largest=jnp.sum), normal(16), mesh={"data": 4})


def batch_norm(params, x, *, mesh, mended):
    def body(params, x):
        def loss(params):
            h = x @ params
            mean = lax.pmean(h.mean(0), "data")
            var = mended(h)  # here
            return lax.pmean(jnp.mean(jnp.tanh((h - mean) / jnp.sqrt(var + 1e-3))), "data"), var

        (value, var), grad = jax.value_and_grad(loss, has_aux=True)(params)
        return value, lax.pmean(var, "data"), params - grad

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(params, x)


def norm_args():
    return normal(3, 2), normal(16, 3, seed=1) ** 2


def own(h):
    return h.var(0)


def averaged(h):
    return lax.pmean(h.var(0), "data")


def by_hand(h):
    return lax.pmean(((h - h.mean(0)) ** 2).mean(0), "data")


def of_columns(h):
    return lax.pmean(h.T.var(-1), "data")


@pytest.mark.parametrize("variance", [own, averaged, by_hand, of_columns])
def test_a_variance_around_a_devices_own_mean_is_told_as_such(variance):
    """Neither psum nor pmean mends it, so the remedy is another; and it is told once."""
    program = functools.partial(batch_norm, mended=variance)
    (finding,) = certain(check(program, *norm_args(), mesh={"data": [1, 4]}))
    assert finding.code == "SW405"
    assert "a variance around each device's own mean" in finding.message
    start = variance.__code__.co_firstlineno
    assert finding.where.line == start + 1
    assert "add the shares up" not in finding.remedy
    lines = [line.strip() for line in finding.remedy.splitlines() if line.startswith("    ")]

    def recipe(x):
        scope = {"jax": jax, "x": x.T if variance is of_columns else x}
        for line in lines:
            exec(line, scope)
        return scope["var"]

    assert len(lines) == 2
    assert check(functools.partial(batch_norm, mended=recipe), *norm_args(), mesh={"data": 4})


def test_an_average_of_equal_values_is_no_cause_where_another_is_known():
    program = functools.partial(batch_norm, mended=averaged)
    verdict = check(program, *norm_args(), mesh={"data": [1, 4]})
    assert [finding.certain for finding in verdict.findings if finding.code == "SW201"] == [False]


def balance(gate, x, *, mesh):
    def body(gate, x):
        def loss(gate):
            probs = jax.nn.softmax(x @ gate)
            hot = jax.nn.one_hot(probs.argmax(-1), 4)
            share, mean = hot.mean(0), probs.mean(0)  # made
            return lax.pmean(jnp.sum(share * mean), "data")  # met

        value, grad = jax.value_and_grad(loss)(gate)
        return grad, value

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(gate, x)


def test_the_line_where_two_shares_meet_is_that_of_the_forward_pass():
    verdict = check(balance, normal(3, 4), normal(16, 3, seed=1), mesh={"data": [1, 4]})
    (finding,) = certain(verdict)
    assert finding.code == "SW405"
    assert finding.where.line == line_of(balance, "# made")
    assert (
        f"as if it were the whole at test_tied.py:{line_of(balance, '# met')}:" in finding.message
    )


def test_a_proof_counts_results_and_meshes():
    def total(x, *, mesh):
        body = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    assert "(1 result: 1 proved)" in str(sw.prove(total, normal(8), mesh={"data": 4}))
    proof = sw.prove(total, normal(8), mesh={"data": [2, 4]})
    assert "(1 result on 2 meshes: all proved)" in str(proof)


def tied_weights(table, tokens, *, mesh, wrong):
    """A gradient in two parts: of the table as rows, and of the same table as a matrix."""

    def body(table, tokens):
        def loss(table):
            logits = jnp.tanh(table[tokens[:, :-1]]) @ table.T
            chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
            return lax.pmean(jnp.mean(jax.nn.logsumexp(logits, -1) - chosen), "data")

        grad = jax.grad(loss)(table)
        if wrong == "summed again":
            return table - 0.1 * lax.psum(grad, "data")  # summed again
        return table - 0.1 * (grad / lax.axis_size("data"))  # divided again

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(table, tokens)


@pytest.mark.parametrize(("wrong", "code"), [("summed again", "SW401"), ("divided again", "SW402")])
def test_what_is_done_to_a_sum_of_two_gradients_is_named(wrong, code):
    tokens = jax.random.randint(jax.random.key(1), (16, 9), 0, 32)
    program = functools.partial(tied_weights, wrong=wrong)
    (finding,) = certain(check(program, normal(32, 16), tokens, mesh={"data": [1, 2, 8]}))
    assert finding.code == code
    assert finding.where.line == line_of(tied_weights, f"# {wrong}")


def test_devices_that_hold_the_same_do_not_differ():
    """It is read as each device's own, and is made of everything on all of them."""

    def decayed(x):
        def turn(total, one):
            return 0.5 * total + one, None  # wrong

        own = lax.scan(turn, 0 * x[0], x)[0]
        return lax.scan(turn, 0 * x[0], lax.all_gather(own, "data"))[0]

    def program(x, *, mesh):
        specs = {"in_specs": P("data"), "out_specs": P(), "check_vma": False}
        return jax.shard_map(decayed, mesh=mesh, **specs)(x)

    (finding,) = certain(check(program, normal(24), mesh={"data": [1, 2, 4]}))
    assert (finding.code, finding.where.line) == ("SW109", line_of(decayed, "# wrong"))
