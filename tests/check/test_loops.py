"""What a loop carries, and which of it a result is wrong for."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import check, normal

from .marks import line_of

MESH = {"data": [1, 2, 4]}


def found(body, *args, outs=P("data")):  # noqa: B008
    def program(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=outs)(*args)

    return [one for one in check(program, *args, mesh=MESH).findings if one.certain]


def varying(value):
    return lax.pcast(value, "data", to="varying")


def test_the_turns_of_a_ring_are_not_to_blame():
    """They are as many as there are devices, and the same on all of them, as they should be."""

    def body(a):
        n, i, k = lax.axis_size("data"), lax.axis_index("data"), a.shape[0]

        def turn(t, carry):
            total, b = carry
            own = lax.dynamic_slice(a, (0, (i + t) % n * k), (k, k))
            total = total + own @ b  # wrong
            return total, lax.ppermute(b, "data", [(i, (i + 1) % n) for i in range(n)])

        return lax.fori_loop(0, n, turn, (varying(jnp.zeros(a.shape)), a))[0]

    (finding,) = found(body, normal(12, 12))
    assert (finding.code, finding.where.line) == ("SW109", line_of(body, "# wrong"))
    assert "it differs first at this line" in finding.message
    assert "integers of" not in finding.remedy
    assert "does a loop over the parts run once for each" in finding.remedy


def test_what_goes_into_no_other_value_is_nothing_to_a_result():
    """The count of turns is another result, and wrong in its own way."""

    def body(y):
        def turn(carry):
            y, h, count = carry
            return y - h * y**3, h / (1 + jnp.sqrt(jnp.sum(y**2))), count + 1

        start = y, varying(jnp.float32(0.3)), varying(jnp.int32(0))
        y, _, count = lax.while_loop(lambda carry: carry[1] > 0.01, turn, start)  # loop
        return y, lax.pmax(count, "data")  # count

    first, second = found(body, normal(8), outs=(P("data"), P()))
    assert (first.leaf, first.where.line) == ("result[0]", line_of(body, "# loop"))
    assert (second.leaf, second.where.line) == ("result[1]", line_of(body, "# count"))


def test_turns_that_each_device_decides_on_are_the_loops():
    """No line in it is wrong: it is done too often, or not often enough."""

    def body(y):
        def go_on(y):
            return jnp.sum(y**2) > 1.0

        def turn(y):
            return y - 0.1 * y**3

        return lax.while_loop(go_on, turn, y)  # loop

    (finding,) = found(body, normal(8))
    assert (finding.code, finding.where.line) == ("SW109", line_of(body, "# loop"))


def test_steps_of_a_loop_whose_gradients_nobody_averages():
    """They are wrong from the second turn on, at the line where the gradient is taken."""

    def loss(w, x):
        return ((x @ w) ** 2).mean()

    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)  # wrong

    def program(w, x, *, mesh):
        def body(w, x):
            return lax.scan(lambda w, _: (step(w, x), None), w, None, length=5)[0]

        specs = (P(), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)

    (finding,) = check(program, normal(4), normal(16, 4, seed=1), mesh=MESH).findings
    assert (finding.code, finding.where.line) == ("SW405", line_of(step, "# wrong"))
    assert "pmean" in finding.remedy
