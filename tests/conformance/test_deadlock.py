"""A collective that some devices never reach: an exception that says where, never a number."""

import contextlib
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh, vary

HERE = Path(__file__).name
X4 = {"x": 4}
XY = {"x": 2, "y": 3}


def place(function, text):
    """`file:line` of the line of `function` that holds `text`."""
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + k for k, line in enumerate(lines) if text in line]
    return f"{HERE}:{found}"


def run(body, sizes=X4, *, check_vma=True, at_once=1, jit=False, around=lambda f: f, x=None):
    """Simulate a body whose argument and result are split over all axes."""
    spec = P(tuple(sizes))

    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)(x)

    call = around(sw.simulate(program, mesh=sw.mesh(**sizes), at_once=at_once))
    x = normal(24, 2) if x is None else x
    return jax.block_until_ready((jax.jit(call) if jit else call)(x))


def spread(value, like):
    """A value as varying as `like`, so that both branches have one type."""
    return vary(value, jax.typeof(like).manual_axis_type.varying)


def index(axis="x"):
    return lax.axis_index(axis)


def summed(x):
    return spread(lax.psum(x, "x"), x)  # the collective that waits


def cond_on_the_index(x):
    return lax.cond(index() == 0, summed, jnp.sin, x)


def cond_on_data(x):
    return lax.cond(x[0, 0] > 0, summed, jnp.sin, x)


def cond_with_the_collective_in_the_other_branch(x):
    return lax.cond(index() < 3, jnp.sin, summed, x)


def cond_with_the_same_collective_in_both(x):
    return lax.cond(index() == 2, summed, lambda x: summed(x * 2), x)


def cond_with_different_collectives(x):
    def shifted(x):
        return lax.ppermute(x, "x", [(0, 1), (1, 0)])

    return lax.cond(index() % 2 == 0, summed, shifted, x)


def switch_on_the_index(x):
    return lax.switch(index(), [jnp.sin, jnp.cos, summed], x)


def while_on_data(x):
    return lax.while_loop(lambda x: jnp.abs(x).max() > 0.1, lambda x: x * 0.5 + summed(x) * 0.01, x)


def while_on_the_index(x):
    def step(state):
        n, x = state
        return n + 1, summed(x)

    return lax.while_loop(lambda s: s[0] < index(), step, (vary(0, ["x"]), x))[1]


def fori_with_different_counts(x):
    return lax.fori_loop(0, index() + 1, lambda i, x: summed(x) * 0.1, x)


def nested_in_a_scan(x):
    def step(carry, k):
        return lax.cond((k == 2) & (index() == 1), summed, jnp.sin, carry), carry.sum()

    return lax.scan(step, x, jnp.arange(4))[0]


def nested_in_a_cond(x):
    agreed = lax.psum(x.sum(), "x") < 1e9
    return lax.cond(agreed, cond_on_the_index, jnp.cos, x)


def nested_in_a_while(x):
    def step(state):
        return state[0] + 1, cond_on_the_index(state[1])

    return lax.while_loop(lambda s: s[0] < 2, step, (0, x))[1]


def nested_in_jit_and_remat(x):
    return jax.jit(jax.checkpoint(cond_on_the_index))(x)


def nested_in_a_custom_derivative(x):
    @jax.custom_vjp
    def call(x):
        return cond_on_the_index(x)

    call.defvjp(lambda x: (call(x), None), lambda _, ct: (ct,))
    return call(x)


def in_a_gradient(x):
    return jax.grad(lambda x: cond_on_the_index(x).sum())(x)


def gathered_inside(x):
    return lax.cond(index() == 0, lambda x: lax.all_gather(x, "x").sum(0), jnp.sin, x)


def permuted_inside(x):
    return lax.cond(index() == 0, lambda x: lax.ppermute(x, "x", [(0, 1)]), jnp.sin, x)


def exchanged_inside(x):
    def exchanged(x):
        return lax.all_to_all(jnp.stack([x] * 4), "x", 0, 0).sum(0)

    return lax.cond(index() == 3, exchanged, jnp.sin, x)


def scattered_inside(x):
    return lax.cond(index() == 0, lambda x: lax.psum_scatter(jnp.stack([x] * 4), "x"), jnp.sin, x)


def maximum_inside(x):
    return lax.cond(index() != 0, lambda x: spread(lax.pmax(x, "x"), x), jnp.sin, x)


DEADLOCKS = [
    cond_on_the_index,
    cond_on_data,
    cond_with_the_collective_in_the_other_branch,
    cond_with_the_same_collective_in_both,
    cond_with_different_collectives,
    switch_on_the_index,
    while_on_data,
    while_on_the_index,
    fori_with_different_counts,
    nested_in_a_scan,
    nested_in_a_cond,
    nested_in_a_while,
    nested_in_jit_and_remat,
    nested_in_a_custom_derivative,
    in_a_gradient,
    gathered_inside,
    permuted_inside,
    exchanged_inside,
    scattered_inside,
    maximum_inside,
]
WAYS = [
    (1, False, True),
    (2, True, False),
    ("auto", False, False),
    (3, True, True),
    (1, True, False),
]


@pytest.mark.parametrize("number", range(len(DEADLOCKS)), ids=[d.__name__ for d in DEADLOCKS])
def test_deadlock_is_an_error(number):
    at_once, jit, check_vma = WAYS[number % len(WAYS)]
    loops = while_on_data, while_on_the_index, fori_with_different_counts
    kind = "while loop" if DEADLOCKS[number] in loops else "cond"
    with pytest.raises(sw.DeadlockError, match=rf"'x'[\s\S]*; the {kind} at "):
        run(DEADLOCKS[number], at_once=at_once, jit=jit, check_vma=check_vma)


@pytest.mark.parametrize(("at_once", "jit"), [(1, False), (2, True), (3, False), ("auto", True)])
def test_message_says_who_waits_where(at_once, jit):
    with pytest.raises(sw.DeadlockError) as caught:
        run(cond_on_the_index, at_once=at_once, jit=jit)
    message = str(caught.value)
    head = message.splitlines()[0]
    assert re.search(r"device \{x: 0\} is at psum over 'x'", head)
    assert re.search(r"devices \{x: 1\.\.3\} never reach it", head)
    assert place(summed, "# the collective that waits") in head
    assert place(cond_on_the_index, "lax.cond") in message


def test_message_names_each_way_where_two_collectives_wait():
    with pytest.raises(sw.DeadlockError) as caught:
        run(cond_with_different_collectives)
    message = str(caught.value)
    assert re.search(r"\{x: 0, 2\}.*psum", message)
    assert re.search(r"\{x: 1, 3\}.*ppermute", message)
    assert place(cond_with_different_collectives, "lax.ppermute") in message


def test_message_of_a_loop_says_who_leaves_it():
    with pytest.raises(sw.DeadlockError) as caught:
        run(fori_with_different_counts)
    message = str(caught.value)
    assert re.search(r"devices \{x: 1\.\.3\} are at psum over 'x'", message)
    assert re.search(r"device \{x: 0\} never reach", message)
    assert place(summed, "# the collective that waits") in message


def test_the_remedy_for_a_loop_mends_it():
    with pytest.raises(sw.DeadlockError) as caught:
        run(while_on_data)
    assert "return lax.pmax(predicate, 'x') from the condition" in str(caught.value)
    assert "branch" not in str(caught.value)

    def mended(x):
        go_on = lambda x: lax.pmax(jnp.abs(x).max() > 0.1, "x")  # noqa: E731
        return lax.while_loop(go_on, lambda x: x * 0.5 + summed(x) * 0.01, x)

    run(mended)


def diverges_over_x_of_two(x):
    return lax.cond(index("x") == 1, summed, jnp.sin, x)


def diverges_over_x_only_where_y_is_one(x):
    return lax.cond((index("x") == 1) & (index("y") == 1), summed, jnp.sin, x)


def over_both_axes_but_diverges_over_y(x):
    return lax.cond(index("y") == 1, lambda x: spread(lax.psum(x, ("x", "y")), x), jnp.sin, x)


def inner_diverges_where_the_outer_lets_it(x):
    def inner(x):
        return lax.cond(index("x") == 0, summed, jnp.cos, x)

    return lax.cond(index("y") == 2, inner, jnp.sin, x)


@pytest.mark.parametrize(("at_once", "jit"), [(1, True), (2, False)])
@pytest.mark.parametrize(
    "body",
    [
        diverges_over_x_of_two,
        diverges_over_x_only_where_y_is_one,
        over_both_axes_but_diverges_over_y,
        inner_diverges_where_the_outer_lets_it,
    ],
)
def test_deadlock_on_a_mesh_of_two_axes(body, at_once, jit):
    with pytest.raises(sw.DeadlockError):
        run(body, XY, at_once=at_once, jit=jit)


def test_message_gives_the_coordinates_on_both_axes():
    with pytest.raises(sw.DeadlockError) as caught:
        run(diverges_over_x_only_where_y_is_one, XY)
    head = str(caught.value).splitlines()[0]
    assert re.search(r"device \{x: 1, y: 1\} is at psum over 'x'", head)
    assert re.search(r"device \{x: 0, y: 1\} never reach", head)


@pytest.mark.parametrize(
    ("around", "jit"),
    [(jax.grad, True), (jax.value_and_grad, False), (jax.jacfwd, True), (jax.jacrev, False)],
)
def test_deadlock_in_a_derivative_of_the_simulated(around, jit):
    def wrap(f):
        return around(lambda x: f(x).sum())

    with pytest.raises(sw.DeadlockError):
        run(cond_on_the_index, jit=jit, around=wrap)


# The program is legal; its derivative is not. With the check on, a cast of replicated parameters
# transposes to a psum, here in a branch that only one device takes. Real devices hang.
def test_a_deadlock_that_only_the_derivative_has():
    def loss(w, x):
        local = lambda: jnp.sum(vary(w, ["x"]) * x)  # noqa: E731
        return lax.cond(index() == 0, local, lambda: jnp.sum(x))

    def simulated(body, out_specs):
        def program(w, x, *, mesh):
            specs = {"in_specs": (P(), P("x")), "out_specs": out_specs}
            return jax.shard_map(body, mesh=mesh, **specs)(w, x)

        return sw.simulate(program, mesh=sw.mesh(**X4))

    w, x = normal(2), normal(8)
    values = simulated(lambda w, x: loss(w, x)[None], P("x"))(w, x)
    want = x.reshape(4, 2) * np.array([w, *np.ones((3, 2))], "float32")
    assert_same(values, want.sum(1))
    with pytest.raises(sw.DeadlockError, match="psum over 'x'"):
        simulated(jax.grad(loss), P())(w, x)


def test_deadlock_under_an_outer_scan():
    def twice(f):
        return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]

    with pytest.raises(sw.DeadlockError):
        run(cond_on_the_index, jit=True, around=twice)


def test_a_deadlock_does_not_spoil_the_next_call():
    def program(x, flag, *, mesh):
        def body(x, flag):
            return lax.cond((index() == 0) | flag, summed, jnp.sin, x)

        specs = {"in_specs": (P("x"), P()), "out_specs": P("x")}
        return jax.shard_map(body, mesh=mesh, **specs)(x, flag)

    call = jax.jit(sw.simulate(program, mesh=sw.mesh(**X4)))
    x = normal(4, 2)
    for _ in range(2):
        with pytest.raises(sw.DeadlockError):
            jax.block_until_ready(call(x, False))
        np.testing.assert_allclose(call(x, True), np.tile(x.sum(0), (4, 1)), rtol=1e-6)


# --- legal programs, which must not raise, and whose numbers are JAX's


def agrees_though_no_type_says_so(x):
    same = vary(jnp.sum(lax.all_gather(x, "x")) > 0, ["x"])
    return lax.cond(same, summed, jnp.sin, x)


def differs_without_a_collective(x):
    return lax.cond(index() == 0, jnp.cos, jnp.sin, x)


def differs_but_the_collective_is_before_and_after(x):
    before = lax.pmean(x, "x")
    return lax.cond(index() == 0, jnp.cos, jnp.sin, x + before) + lax.psum(x, "x")


def loops_differ_without_a_collective(x):
    return lax.fori_loop(0, index(), lambda i, x: jnp.sin(x) + 1, x) + lax.psum(x, "x")


def agrees_in_every_turn(x):
    def step(carry, k):
        same = spread(k % 2, x) == 0
        return lax.cond(same, summed, jnp.sin, carry), None

    return lax.scan(step, x, jnp.arange(4))[0]


LEGAL_ON_X = [
    agrees_though_no_type_says_so,
    differs_without_a_collective,
    differs_but_the_collective_is_before_and_after,
    loops_differ_without_a_collective,
    agrees_in_every_turn,
]


def differs_over_y(x):
    return lax.cond(index("y") == 1, summed, jnp.sin, x)


def differs_over_y_in_both_branches(x):
    return lax.cond(index("y") == 1, summed, lambda x: lax.all_gather(x, "x").sum(0) * 2, x)


def counts_differ_over_y(x):
    return lax.fori_loop(0, index("y"), lambda i, x: summed(x) * 0.1, x)


def inner_would_diverge_but_is_never_reached(x):
    # Along x the inner predicate differs at y == 0 only, where the outer one is false.
    def inner(x):
        return lax.cond((index("x") == 0) | (index("y") > 0), summed, jnp.cos, x)

    return lax.cond(index("y") > 0, inner, jnp.sin, x)


def differs_over_y_and_agrees_over_x_by_data(x):
    here = lax.psum(x.sum(), "x") > 0
    return lax.cond(here, summed, jnp.sin, x)


LEGAL_ON_XY = [
    differs_over_y,
    differs_over_y_in_both_branches,
    counts_differ_over_y,
    inner_would_diverge_but_is_never_reached,
    differs_over_y_and_agrees_over_x_by_data,
]


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(
    ("body", "sizes"),
    [(b, X4) for b in LEGAL_ON_X] + [(b, XY) for b in LEGAL_ON_XY],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_legal_programs_do_not_raise(body, sizes, at_once):
    spec = P(tuple(sizes))
    real = jax.shard_map(body, mesh=real_mesh(**sizes), in_specs=spec, out_specs=spec)
    x = normal(24, 2)
    got = run(body, sizes, at_once=at_once, jit=at_once == 2)
    assert_same(got, jax.device_get(jax.jit(real)(x)))


# Virtual CPU devices hang here: XLA lets every device take part in a permutation. On a mesh of
# accelerators, and by JAX's semantics, it is legal.
def test_a_permutation_under_a_predicate_over_another_axis():
    def body(x):
        ring = [(0, 1), (1, 0)]
        return lax.cond(index("y") == 1, lambda x: lax.ppermute(x, "x", ring), lambda x: x * 2, x)

    x = normal(24, 2)
    want = (2 * x).reshape(2, 3, 4, 2)
    want[:, 1] = x.reshape(2, 3, 4, 2)[::-1, 1]
    for at_once in (1, 2, "auto"):
        assert_same(run(body, XY, at_once=at_once), want.reshape(24, 2))


def test_an_axis_of_size_one_cannot_diverge():
    got = run(cond_on_the_index, {"x": 1, "y": 4}, x=normal(4, 2))
    np.testing.assert_allclose(got, normal(4, 2), rtol=1e-6)


# A batched predicate makes JAX run both branches and select: nobody waits for anybody.
def test_a_vmap_of_the_simulated_that_turns_the_branch_into_a_select():
    def body(x):
        return lax.cond(x.sum() > 0, summed, jnp.sin, x)

    spec = P("x")
    real = jax.shard_map(body, mesh=real_mesh(x=4), in_specs=spec, out_specs=spec)
    x = normal(3, 8, 2)
    assert_same(run(body, around=jax.vmap, x=x), jax.device_get(jax.jit(jax.vmap(real))(x)))


def test_groups_that_go_different_ways_never_yield_a_wrong_number():
    groups = [[0, 1], [2, 3]]

    def body(x):
        return lax.cond(
            index() < 2, lambda x: lax.psum(x, "x", axis_index_groups=groups), lambda x: x * 2, x
        )

    x = normal(4, 2)
    first = np.tile(x[:2].sum(0), (2, 1))
    with contextlib.suppress(sw.UnsupportedError):
        assert_same(run(body, check_vma=False, x=x), np.concatenate([first, x[2:] * 2]))


def test_numbers_of_64_bits_meet_none_of_ours():
    """JAX promotes nothing here, and the engine's own numbers have 32 bits."""

    def f(x, which, *, mesh):
        def body(x, which):
            exchange = lambda x: lax.ppermute(x, "y", [(0, 1), (1, 0)])  # noqa: E731
            return lax.switch(which, [jnp.sin, exchange], x)

        specs = {"in_specs": (P(("x", "y")), P()), "out_specs": P(("x", "y"))}
        return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(x, which)

    with jax.enable_x64(True):
        x, which = jnp.arange(8.0), np.int32(1)
        simulated = sw.simulate(f, mesh=sw.mesh(x=2, y=2), at_once=1)
        _, pull = jax.vjp(lambda x: simulated(x, which), x)
        np.testing.assert_array_equal(pull(x)[0], [2, 3, 0, 1, 6, 7, 4, 5])
