"""Counts and bytes against programs worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw

from .support import explained, sent, shaped, spmd

RING = [(i, (i + 1) % 4) for i in range(4)]

# Of f32[8, 6] on four devices: a part is f32[2, 6], which has 48 bytes.
ONE_AXIS = {
    "psum": (lambda x: lax.psum(x, "data"), P(), (2, 6), 2 * 3 * 48 // 4),
    "pmean": (lambda x: lax.pmean(x, "data"), P(), (2, 6), 2 * 3 * 48 // 4),
    "pmax": (lambda x: lax.pmax(x, "data"), P(), (2, 6), 2 * 3 * 48 // 4),
    "pmin": (lambda x: lax.pmin(x, "data"), P(), (2, 6), 2 * 3 * 48 // 4),
    "all_gather": (lambda x: lax.all_gather(x, "data"), P("data"), (2, 6), 3 * 48),
    "all_gather tiled": (
        lambda x: lax.all_gather(x, "data", axis=1, tiled=True),
        P("data"),
        (2, 6),
        3 * 48,
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(jnp.concatenate([x, x]), "data", tiled=True),
        P("data"),
        (4, 6),
        3 * 96 // 4,
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(jnp.concatenate([x, x]), "data", 0, 0, tiled=True),
        P("data"),
        (4, 6),
        3 * 96 // 4,
    ),
    "ppermute": (lambda x: lax.ppermute(x, "data", RING), P("data"), (2, 6), 48),
    "pbroadcast": (lambda x: lax.pbroadcast(x, ("data",), 2), P("data"), (2, 6), 48),
}


@pytest.mark.parametrize("case", ONE_AXIS)
def test_each_collective_over_one_axis(case):
    body, out, shape, bytes_sent = ONE_AXIS[case]
    report = explained(body, shaped(8, 6), out_specs=out)
    name = {"pmean": "psum"}.get(case.split()[0], case.split()[0])
    assert sent(report) == [(name, "data", 4, shape, 1, bytes_sent)]
    assert report.bytes_sent == bytes_sent
    (use,) = report.collectives
    assert use.direction == "forward"
    assert use.where.file == __file__
    assert use.where.text == body_line(body)


def body_line(body):
    import inspect

    lines, _ = inspect.getsourcelines(body)
    return next(line.strip() for line in lines if "lax." in line)


def test_over_two_axes_at_once():
    both = ("data", "model")
    report = explained(
        lambda x: lax.psum(x, both), shaped(8, 4), mesh=sw.mesh(data=4, model=2),
        in_specs=P("data", "model"), out_specs=P(),
    )  # fmt: skip
    assert sent(report) == [("psum", "data+model", 8, (2, 2), 1, 2 * 7 * 16 // 8)]
    rows = {one.axes: (one.collectives, one.bytes, one.share) for one in report.traffic}
    assert rows == {("data",): (0, 0, 0.0), ("model",): (0, 0, 0.0), both: (1, 28, 1.0)}


def test_over_one_of_two_axes():
    report = explained(
        lambda x: lax.all_gather(lax.psum(x, "model"), "data"), shaped(8, 4),
        mesh=sw.mesh(data=4, model=2), in_specs=P("data", "model"), out_specs=P("data"),
    )  # fmt: skip
    assert sent(report) == [
        ("psum", "model", 2, (2, 2), 1, 16),
        ("all_gather", "data", 4, (2, 2), 1, 3 * 16),
    ]
    assert [(one.axes, one.bytes, one.share) for one in report.traffic] == [
        (("data",), 48, 0.75),
        (("model",), 16, 0.25),
    ]


def test_within_groups():
    pairs = [[0, 2], [1, 3]]
    report = explained(
        lambda x: lax.psum(x, "data", axis_index_groups=pairs), shaped(8, 6), check_vma=False
    )
    assert sent(report) == [("psum", "data", 2, (2, 6), 1, 2 * 1 * 48 // 2)]


def test_groups_of_one_and_axes_of_one_send_nothing():
    alone = [[0], [1], [2], [3]]
    grouped = explained(
        lambda x: lax.psum(x, "data", axis_index_groups=alone), shaped(8, 6), check_vma=False
    )
    assert sent(grouped) == [("psum", "data", 1, (2, 6), 1, 0)]
    small = explained(
        lambda x: lax.psum(x, "data"), shaped(8, 6), out_specs=P(), mesh=sw.mesh(data=1)
    )
    assert sent(small) == [("psum", "data", 1, (8, 6), 1, 0)]


def test_a_permutation_to_itself_sends_nothing():
    same = [(i, i) for i in range(4)]
    report = explained(lambda x: lax.ppermute(x, "data", same), shaped(8, 6))
    assert sent(report) == [("ppermute", "data", 4, (2, 6), 1, 0)]


def test_what_does_not_divide_is_rounded_up():
    report = explained(
        lambda x: lax.psum(x.sum(), "data"), shaped(6), out_specs=P(), mesh=sw.mesh(data=3)
    )
    assert report.bytes_sent == 6  # 2 * 2 * 4 / 3, rounded up
    narrow = explained(
        lambda x: lax.psum(x, "data"), shaped(8, 6, dtype=jnp.bfloat16), out_specs=P()
    )
    assert narrow.bytes_sent == 2 * 3 * 24 // 4
    assert narrow.collectives[0].dtype == "bfloat16"


def test_in_a_scan_the_trips_are_counted():
    def body(x):
        turn = lambda x, _: (lax.ppermute(x, "data", RING), None)  # noqa: E731
        return lax.scan(turn, x, None, length=5)[0]

    report = explained(body, shaped(8, 6))
    assert sent(report) == [("ppermute", "data", 4, (2, 6), 5, 48)]
    assert report.bytes_sent == 5 * 48
    (step,) = report.steps
    assert (step.kind, step.length) == ("scan", 5)
    assert [inner.kind for inner in step.bodies[0]] == ["collective"]


def test_nested_scans_multiply():
    def body(x):
        def outer(x, _):
            inner = lambda x, _: (lax.ppermute(x, "data", RING), None)  # noqa: E731
            x = lax.scan(inner, x, None, length=3)[0]
            return x + lax.all_gather(x, "data").sum(), None

        return lax.scan(outer, x, None, length=5)[0]

    report = explained(body, shaped(8, 6))
    assert [(use.name, use.count) for use in report.collectives] == [
        ("ppermute", 15),
        ("all_gather", 5),
    ]
    (outer,) = report.steps
    assert [step.kind for step in outer.bodies[0]] == ["scan", "collective", "compute"]
    assert report.bytes_sent == 15 * 48 + 5 * 3 * 48


def test_in_a_while_the_count_is_unknown():
    def body(x):
        def more(x):
            return lax.pmax(x.sum(), "data") < 100

        return lax.while_loop(more, lambda x: lax.ppermute(x, "data", RING) + x, x)

    report = explained(body, shaped(8, 6))
    assert sent(report) == [
        ("pmax", "data", 4, (), None, 6),
        ("ppermute", "data", 4, (2, 6), None, 48),
    ]
    assert report.unknown
    assert report.bytes_sent == 54
    assert "a while decides how often its collectives happen" in report.notes[0]
    assert "unknown" in str(report)
    assert "one device sends at least 54 B" in str(report)


def test_a_scan_in_a_while_is_unknown_too():
    def body(x):
        def turns(x):
            turn = lambda x, _: (lax.ppermute(x, "data", RING), None)  # noqa: E731
            return lax.scan(turn, x, None, length=3)[0]

        return lax.while_loop(lambda x: lax.pmax(x.sum(), "data") < 9, turns, x)

    report = explained(body, shaped(8, 6))
    assert [(use.count, use.least) for use in report.collectives] == [(None, 1), (None, 3)]
    assert report.bytes_sent == 6 + 3 * 48


def test_both_branches_of_a_cond_are_shown_and_the_costlier_is_counted():
    def body(x):
        def large(x):
            return lax.psum(x, "data")

        def small(x):
            return jnp.zeros((2, 6)) + lax.pmax(x.sum(), "data")

        return lax.cond(lax.pmin(x.sum(), "data") > 0, small, large, x)

    report = explained(body, shaped(8, 6), out_specs=P())
    assert [(use.name, use.counted) for use in report.collectives] == [
        ("pmin", True),
        ("psum", True),
        ("pmax", False),
    ]
    assert report.bytes_sent == 6 + 72
    (cond,) = [step for step in report.steps if step.kind == "cond"]
    assert cond.counted == 0  # JAX puts the branch for False first
    assert len(cond.bodies) == 2
    assert "(pmax)" in str(report)
    assert "of the branches of a cond the totals count the one that sends most" in str(report)


def test_the_sum_that_autodiff_adds_is_there_with_the_users_line():
    def body(w, x):
        def loss(w):
            y = x @ w
            return lax.pmean((y**2).mean(), "data")

        return jax.grad(loss)(w)

    report = explained(body, shaped(6, 3), shaped(8, 6), in_specs=(P(), P("data")), out_specs=P())
    (gradient,) = [use for use in report.collectives if use.direction == "backward"]
    assert (gradient.name, gradient.axes, gradient.shape) == ("psum", ("data",), (6, 3))
    assert gradient.bytes_sent == 2 * 3 * 72 // 4
    assert gradient.where.text == "y = x @ w"


def test_the_backward_pass_of_a_loop_is_backward():
    def body(x):
        def loss(x):
            turn = lambda x, _: (lax.ppermute(jnp.sin(x), "data", RING), None)  # noqa: E731
            return lax.scan(turn, x, None, length=5)[0].sum()

        return jax.grad(loss)(x)

    report = explained(body, shaped(8, 6))
    # The forward permutations feed the derivative of the sine.
    assert [(use.name, use.direction, use.count) for use in report.collectives] == [
        ("ppermute", "forward", 5),
        ("ppermute", "backward", 5),
    ]
    assert [step.direction for step in report.steps if step.kind == "scan"] == [
        "forward",
        "backward",
    ]


def test_what_nothing_comes_of_is_left_out():
    def body(x):
        lax.psum(x, "data")
        return x

    report = explained(body, shaped(8, 6))
    assert report.collectives == ()
    assert "No collectives: the devices send each other nothing." in str(report)


def test_under_jit_vmap_and_remat():
    def body(x):
        inner = jax.checkpoint(lambda row: lax.psum(row, "data") * 2)
        return jax.jit(jax.vmap(inner))(x)

    report = sw.explain(jax.jit(spmd(body, out_specs=P()), static_argnames="mesh"),
                        shaped(8, 6), mesh=sw.mesh(data=4))  # fmt: skip
    assert sent(report) == [("psum", "data", 4, (2, 6), 1, 72)]


def test_side_by_side_they_are_one_message():
    def body(x):
        a, b = lax.psum((x, x[:1]), "data")
        return lax.psum(jnp.sin(a + b), "data")

    report = explained(body, shaped(8, 6), out_specs=P())
    first, second, third = report.collectives
    assert first.launch == second.launch != third.launch


def test_one_that_needs_the_other_is_another_message():
    def body(x):
        return lax.psum(lax.psum(x, "data"), "data")

    first, second = explained(body, shaped(8, 6), out_specs=P(), check_vma=False).collectives
    assert first.launch != second.launch


def test_the_module_of_flax_is_named():
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="out")(nn.Dense(5)(x))

    net = Net()
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((2, 6)))

    def body(params, x):
        return jax.grad(lambda p: lax.pmean((net.apply(p, x) ** 2).mean(), "data"))(params)

    report = explained(body, params, shaped(8, 6), in_specs=(P(), P("data")), out_specs=P())
    backward = [use for use in report.collectives if use.direction == "backward"]
    assert [use.module for use in backward] == ["Net/out", "Net/out", "Net/Dense_0", "Net/Dense_0"]
    assert "Net/Dense_0" in str(report)


def test_nnx_objects_are_named_and_left_as_they_are():
    from flax import nnx

    model = nnx.Linear(6, 3, rngs=nnx.Rngs(0))

    def step(model, x, *, mesh):
        graph, state = nnx.split(model)

        def body(state, x):
            loss = lambda s: lax.pmean((nnx.merge(graph, s)(x) ** 2).mean(), "data")  # noqa: E731
            return jax.grad(loss)(state)

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(state, x)

    before = model.kernel[...]
    report = sw.explain(step, model, shaped(8, 6), mesh=sw.mesh(data=4))
    assert model.kernel[...] is before
    paths = [one.path for one in report.arguments]
    assert any("kernel" in path for path in paths)
    assert report.arguments[-1].shape == (8, 6)
    assert {use.shape for use in report.collectives} >= {(6, 3)}
