"""Who holds what: layouts, peak of live values, notes about what is not covered."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import NamedSharding

import shardwise as sw

from ..support import real_mesh
from .support import explained, shaped, spmd


def held(report, path):
    (one,) = [one for one in (*report.arguments, *report.results) if one.path == path]
    return one


def test_arguments_and_results_follow_the_specs():
    def step(params, x, *, mesh):
        body = lambda w, b, x: (lax.psum(x @ w, "model") + b).sum(1)  # noqa: E731
        specs = (P("model", None), P(), P("data", "model"))
        sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))
        return sharded(params["w"], params["b"], x)

    params = {"w": shaped(6, 4), "b": shaped(4, dtype=jnp.bfloat16)}
    report = sw.explain(step, params, shaped(8, 6), mesh=sw.mesh(data=4, model=2))
    w = held(report, "params['w']")
    assert (w.shape, w.local_shape, w.spec) == ((6, 4), (3, 4), (("model",), ()))
    assert (w.bytes, w.replicated) == (48, ("data",))
    b = held(report, "params['b']")
    assert (b.dtype, b.bytes, b.replicated) == ("bfloat16", 8, ("data", "model"))
    x = held(report, "x")
    assert (x.local_shape, x.bytes, x.replicated) == ((2, 3), 24, ())
    assert held(report, "result").spec == (("data",),)
    assert report.memory.arguments == 48 + 8 + 24
    assert report.memory.results == 8


def test_two_axes_on_one_dimension():
    both = P(("data", "model"))
    report = explained(
        lambda x: x * 2, shaped(16), mesh=sw.mesh(data=4, model=2), in_specs=both, out_specs=both
    )
    (x,) = report.arguments
    assert (x.spec, x.local_shape) == ((("data", "model"),), (2,))
    assert "P(('data', 'model'))" in str(report)


def test_an_argument_that_nothing_reads_is_told_and_not_counted():
    def step(x, unused, *, mesh):
        return spmd(lambda x: x * 2)(x, mesh=mesh)

    report = sw.explain(step, shaped(8), shaped(100), mesh=sw.mesh(data=4))
    assert not held(report, "unused").used
    assert report.memory.arguments == 8
    assert "unused (unused)" in str(report)


def test_layouts_reach_through_what_is_computed_element_by_element():
    """An update outside shard_map is laid out as the gradient that comes out of it."""

    def step(w, *, mesh):
        grad = spmd(lambda w: w * 3)(w * 1, mesh=mesh)
        return w - 0.1 * grad

    report = sw.explain(step, shaped(8, 2), mesh=sw.mesh(data=4))
    assert held(report, "w").spec == (("data",), ())
    assert held(report, "result").spec == (("data",), ())


def test_layouts_reach_through_what_is_computed_again():
    def step(w, *, mesh):
        inner = jax.checkpoint(lambda w: spmd(lambda w: jnp.sin(jnp.sin(w)))(w, mesh=mesh))
        return jax.grad(lambda w: inner(w).sum())(w)

    report = sw.explain(step, shaped(8, 2), mesh=sw.mesh(data=4))
    assert held(report, "w").spec == (("data",), ())


def test_layouts_reach_into_a_shard_map_inside_another():
    def step(x, *, mesh):
        def outer(x):
            body = lambda x: x * 2  # noqa: E731
            return jax.shard_map(body, in_specs=P(None, "model"), out_specs=P(None, "model"))(x)

        manual = {"data"}
        return jax.shard_map(
            outer, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names=manual
        )(x)

    report = sw.explain(step, shaped(8, 4), mesh=sw.mesh(data=4, model=2))
    assert held(report, "x").spec == (("data",), ("model",))


def test_layouts_reach_through_a_loop_outside():
    def train(w, xs, *, mesh):
        def step(w, x):
            return spmd(lambda w, x: w + x, in_specs=(P("data"), P("data")))(w, x, mesh=mesh), w

        return lax.scan(step, w, xs)

    report = sw.explain(train, shaped(8), shaped(3, 8), mesh=sw.mesh(data=4))
    assert held(report, "w").spec == (("data",),)
    assert held(report, "xs").spec == ((), ("data",))
    assert held(report, "result[1]").spec == ((), ("data",))
    assert held(report, "xs").bytes == 24


def test_an_array_that_knows_its_sharding_says_so_itself():
    mesh = real_mesh(data=8)
    x = jax.device_put(np.zeros((16, 8), np.float32), NamedSharding(mesh, P(None, "data")))

    def step(x, *, mesh):
        return spmd(lambda x: x * 2)(x, mesh=mesh)

    report = sw.explain(step, x, mesh=mesh, compile=False)
    assert held(report, "x").spec == ((), ("data",))
    assert "held as P(None, 'data') and needed as P('data')" in report.notes[0]


def test_a_whole_array_is_cut_where_it_is():
    mesh = real_mesh(data=8)
    whole = jax.device_put(np.zeros((16, 8), np.float32), NamedSharding(mesh, P()))

    def step(x, *, mesh):
        return spmd(lambda x: x * 2)(x, mesh=mesh)

    report = sw.explain(step, whole, mesh=mesh)
    assert held(report, "x").local_shape == (16, 8)
    assert report.notes == ()


def test_a_program_with_a_mesh_of_its_own():
    mesh = real_mesh(data=8)
    sharded = jax.shard_map(
        lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    report = sw.explain(lambda x: sharded(x), shaped(16))
    assert [(axis.name, axis.size) for axis in report.mesh] == [("data", 8)]
    assert report.bytes_sent == 14


def test_a_simulated_program_is_seen_through():
    body = lambda w, x: lax.pmean((x * w).sum(), "data")  # noqa: E731
    total = spmd(body, in_specs=(P(), P("data")), out_specs=P())
    simulated = sw.simulate(total, mesh=sw.mesh(data=8))
    report = sw.explain(jax.grad(lambda w, x: simulated(w, x) * 2), shaped(), shaped(16))
    assert report.devices == 8
    assert held(report, "x").local_shape == (2,)
    assert [(use.name, use.direction) for use in report.collectives] == [("psum", "backward")]
    assert report.work.uncounted == ()


def test_the_ambient_mesh():
    def step(x):
        body = lambda x: lax.psum(x, "data")  # noqa: E731
        return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)

    assert sw.explain(step, shaped(16), mesh=sw.mesh(data=8)).bytes_sent == 14


class TestPeak:
    def test_by_hand(self):
        """Two products of 64 bytes live together with the argument and the result."""

        def body(x):  # f32[4, 4] each, 64 bytes
            a = x @ x
            b = a @ x
            return a @ b

        report = explained(body, shaped(16, 4))
        # x, a and b, and the result; nothing can be freed before it is there.
        assert report.memory.peak == 4 * 64
        assert report.memory.peak_where.text == "return a @ b"
        named = sorted((live.what, live.bytes) for live in report.memory.live)
        assert named == [
            ("args[0]", 64),
            ("dot_general", 64),
            ("dot_general", 64),
            ("dot_general", 64),
        ]

    def test_what_is_dead_is_freed(self):
        def body(x):
            for _ in range(5):
                x = x @ x
            return x

        assert explained(body, shaped(16, 4)).memory.peak == 3 * 64

    def test_what_is_fused_takes_no_memory(self):
        report = explained(lambda x: (jnp.sin(x) * 2 + jnp.cos(x)).sum(1), shaped(16, 4))
        assert report.memory.peak == 64 + 16  # the argument and the result

    def test_what_is_read_twice_is_kept(self):
        def body(x):
            y = jnp.sin(x)
            return y.sum(1) + y.max(1)

        report = explained(body, shaped(16, 4))
        assert report.memory.peak == 64 + 64 + 16 + 16  # x, its sine, both reductions

    def test_a_scan_holds_one_slice_and_one_step(self):
        def body(x, weights):
            return lax.scan(lambda h, w: (h @ w, None), x, weights)[0]

        report = explained(
            body, shaped(16, 4), shaped(10, 4, 4), in_specs=(P("data"), P()), check_vma=False
        )
        arguments, result, slice_, step = 64 + 640, 64, 64, 64
        assert report.memory.peak == arguments + result + slice_ + step

    def test_what_a_scan_stacks_is_there_as_a_whole(self):
        def body(x):
            return lax.scan(lambda x, _: (x @ x, x @ x), x, None, length=10)[1].sum(0)

        memory = explained(body, shaped(16, 4)).memory
        assert memory.live[0].shape == (10, 4, 4)
        assert 640 + 64 <= memory.peak <= 640 + 5 * 64

    def test_of_the_branches_the_larger(self):
        def body(x):
            large = lambda x: (x @ x.T) @ (x @ x.T) @ x  # noqa: E731
            return lax.cond(x.sum() > 0, large, lambda x: x, x)

        tall = explained(body, shaped(64, 4)).memory
        small = explained(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), shaped(64, 4))
        assert tall.peak == small.memory.peak + 2 * 16 * 16 * 4

    def test_the_time_line_has_the_peak(self):
        report = explained(lambda x: (x @ x) @ (x + 1), shaped(16, 4))
        assert max(size for _, size in report.memory.timeline) == report.memory.peak

    def test_a_long_program_has_a_short_time_line(self):
        def body(x):
            for _ in range(1000):
                x = x @ x
            return x

        memory = explained(body, shaped(16, 4)).memory
        assert len(memory.timeline) <= 400
        assert max(size for _, size in memory.timeline) == memory.peak


class TestNotes:
    def test_no_shard_map(self):
        f, mesh = lambda x: x @ x.T, sw.mesh(data=4)
        report = sw.explain(f, shaped(8, 4), mesh=mesh, in_specs=P("data"), compile=False)
        assert report.collectives == ()
        assert "there is no shard_map in the program" in report.notes[0]
        assert "What the compiler sends is not known" in str(report)

    def test_nothing_is_sharded(self):
        report = sw.explain(lambda x: x @ x.T, shaped(8, 4), mesh=sw.mesh(data=4))
        assert report.collectives == ()
        assert "nothing in it is sharded" in report.notes[0]

    def test_an_axis_left_to_the_compiler(self):
        report = explained(
            lambda x: lax.psum(x, "data"), shaped(8, 4), mesh=sw.mesh(data=4, model=2),
            out_specs=P(), axis_names={"data"}, compile=False,
        )  # fmt: skip
        assert "axis 'model' is left to the compiler" in report.notes[0]

    def test_an_array_that_the_compiler_moves(self):
        def step(x, *, mesh):
            y = spmd(lambda x: x * 2)(x, mesh=mesh)
            whole = spmd(lambda y: y + 1, in_specs=P(), out_specs=P())(y, mesh=mesh)
            return whole, spmd(lambda y: y + 1, in_specs=P("data"))(y, mesh=mesh)

        (note,) = sw.explain(step, shaped(8, 4), mesh=sw.mesh(data=4), compile=False).notes
        assert "held as P('data') and needed as P()" in note
        assert "test_holding.py:" in note

    def test_what_needs_more_than_a_part_outside(self):
        def step(x, *, mesh):
            return spmd(lambda x: x * 2)(x, mesh=mesh).sum()

        (note,) = sw.explain(step, shaped(8, 4), mesh=sw.mesh(data=4), compile=False).notes
        assert "reduce_sum of an array that is split, outside shard_map" in note

    def test_nothing_to_say(self):
        assert explained(lambda x: x + 1, shaped(8)).notes == ()
