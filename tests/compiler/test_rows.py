"""Programs that the compiler partitions: their rows are those of the module that JAX compiles."""

from __future__ import annotations

import collections
import html

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax
from jax.sharding import AxisType, NamedSharding

import shardwise as sw

from ..explain.hlo import collectives
from ..explain.support import shaped
from ..support import real_mesh

KINDS = {
    "psum": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce", "all_reduce": "all-reduce",
    "all_gather": "all-gather", "psum_scatter": "reduce-scatter", "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}  # fmt: skip

X, W, V = P("data"), P(None, "model"), P("model")


def mlp(w, v, x):
    return jnp.mean((jnp.tanh(x @ w) @ v - x) ** 2)


def trained(w, v, x):
    dw, dv = jax.grad(mlp, (0, 1))(w, v, x)
    return w - 0.1 * dw, v - 0.1 * dv


def scanned(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0].sum()


def moved(x):
    y = lax.with_sharding_constraint(jnp.sin(x), P("data", "model"))
    return lax.with_sharding_constraint(jnp.cos(y), P("model", "data"))


def decided(x):
    return lax.cond(x.sum() > 0, lambda x: x.sum(0), lambda x: x[0], x)


PROGRAMS = {
    "tensor parallel": (mlp, [shaped(16, 32), shaped(32, 16), shaped(64, 16)], (W, V, X)),
    "training": (trained, [shaped(16, 32), shaped(32, 16), shaped(64, 16)], (W, V, X)),
    "weights split along the sum": (mlp, [shaped(16, 32), shaped(32, 16), shaped(64, 16)],
                                    (P("data", "model"), P("model", "data"), X)),
    "a scan": (jax.grad(scanned), [shaped(6, 16, 16), shaped(64, 16)],
               (P(None, "data", "model"), X)),
    "resharding": (moved, [shaped(16, 16)], X),
    "largest": (lambda x: jnp.max(x, 0), [shaped(64, 16)], X),
    "smallest": (lambda x: jnp.min(x), [shaped(64, 16)], P("data", "model")),
    "all": (lambda x: (x > 0).all(), [shaped(64)], X),
    "any": (lambda x: (x > 0).any(), [shaped(64)], P(("data", "model"))),
    "product": (lambda x: jnp.prod(x, 0), [shaped(64, 4)], X),
    "sorted": (lambda x: jnp.sort(x, 0), [shaped(64, 4)], X),
    "rolled": (lambda x: jnp.roll(x, 1), [shaped(64)], X),
    "a lookup": (lambda t, i: t[i], [shaped(64, 8), shaped(16, dtype=jnp.int32)], (X, P())),
    "branches": (decided, [shaped(64, 16)], X),
    "nothing": (lambda x: jnp.sin(x), [shaped(64)], X),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_those_of_the_compiled_program(name):
    """The kinds, groups, bytes and counts of what `jax.jit` compiles for real (virtual) devices."""
    f, args, specs = PROGRAMS[name]
    report = sw.explain(f, *args, mesh=sw.mesh(data=4, model=2), in_specs=specs)
    assert rows(report) == oracle(f, args, specs)
    assert all(use.by == "compiler" for use in report.collectives)
    assert report.compiled


def rows(report):
    found = collections.Counter()
    for use in report.collectives:
        found[KINDS[use.name], _size(use.name, use.group_size), use.bytes] += use.least
    return found


def _size(name, size):
    """The module has pairs of devices for a permute, and no groups."""
    return 0 if name in ("ppermute", "collective-permute") else size


def oracle(f, args, specs):
    mesh = real_mesh(data=4, model=2)
    specs = specs if isinstance(specs, tuple) and not isinstance(specs, P) else (specs,)
    placed = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
        for x, spec in zip(args, specs, strict=True)
    ]
    with jax.set_mesh(mesh):
        text = jax.jit(f).lower(*placed).compile().as_text()
    found = collections.Counter()
    for (kind, size, operand), times in collectives(text).items():
        found[kind, _size(kind, size), operand] += times
    return found


def test_names_axes_counts_passes_and_lines():
    mesh = sw.mesh(data=4, model=2)
    f, args, specs = PROGRAMS["a scan"]
    report = sw.explain(f, *args, mesh=mesh, in_specs=specs)
    assert {use.count for use in report.collectives} == {6}
    assert {use.direction for use in report.collectives} == {"forward", "backward"}
    assert {use.where.file for use in report.collectives} == {__file__}
    line = scanned.__code__.co_firstlineno + 1
    assert {use.where.line for use in report.collectives} == {line}
    gathered = [use for use in report.collectives if use.name == "all_gather"]
    assert {use.axes for use in gathered if use.of == "ws"} == {("data",)}


def test_what_is_sent_of_an_argument_names_it():
    report = sw.explain(
        lambda params, x: x @ params["w"], {"w": shaped(64, 16)}, shaped(8, 64),
        mesh=sw.mesh(data=4), in_specs=({"w": P(None, "data")}, P()),
    )  # fmt: skip
    assert report.collectives == ()  # the result is left split
    report = sw.explain(
        lambda params, x: lax.with_sharding_constraint(x @ params["w"], P("data")),
        {"w": shaped(16, 64)}, shaped(1024, 16),
        mesh=sw.mesh(data=4), in_specs=({"w": P(None, "data")}, P("data")),
    )  # fmt: skip
    (use,) = report.collectives
    assert (use.name, use.of, use.axes) == ("all_gather", "params['w']", ("data",))
    assert "of params['w']" in str(report)


def test_low_precision_is_sent_as_it_is():
    """The CPU backend would send float32; accelerators do not."""
    f = lambda x: x.sum(0)  # noqa: E731
    report = sw.explain(
        f, shaped(64, 16, dtype=jnp.bfloat16), mesh=sw.mesh(data=4), in_specs=P("data")
    )
    f = lambda w, x: x @ w  # noqa: E731
    report = sw.explain(
        f, shaped(256, 64, dtype=jnp.bfloat16), shaped(512, 256, dtype=jnp.bfloat16),
        mesh=sw.mesh(data=8), in_specs=(P("data"), P("data")),
    )  # fmt: skip
    (use,) = report.collectives
    assert (use.name, use.dtype, use.shape) == ("all_gather", "bfloat16", (32, 64))


def test_explicit_axes():
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    f = lambda w, v, x: jnp.matmul(jnp.tanh(x @ w), v, out_sharding=P("data", None))  # noqa: E731
    args = [shaped(16, 32), shaped(32, 16), shaped(64, 16)]
    (use,) = sw.explain(f, *args, mesh=mesh, in_specs=(W, V, X)).collectives
    assert (use.name, use.axes, use.by, use.shape) == ("psum", ("model",), "compiler", (16, 16))


def test_a_program_with_its_own_real_mesh_and_jit():
    mesh = real_mesh(data=4, model=2)
    x = jax.device_put(jnp.zeros((64, 16)), NamedSharding(mesh, P("data", "model")))
    report = sw.explain(jax.jit(lambda x: x.sum(0)), x)
    assert {axis.name: axis.size for axis in report.mesh} == {"data": 4, "model": 2}
    (use,) = report.collectives
    assert (use.name, use.axes, use.shape) == ("psum", ("data",), (8,))


def test_shardings_of_a_jit_inside_are_those_of_its_arguments():
    mesh = sw.mesh(data=4, model=2)
    sharded = tuple(NamedSharding(mesh, spec) for spec in (W, V, X))
    step = jax.jit(trained, in_shardings=sharded, out_shardings=sharded[:2], donate_argnums=(0, 1))
    args = [shaped(16, 32), shaped(32, 16), shaped(64, 16)]
    report = sw.explain(step, *args, mesh=mesh)
    assert [one.spec for one in report.arguments] == [
        ((), ("model",)), (("model",), ()), (("data",), ()),
    ]  # fmt: skip
    assert [one.spec for one in report.results] == [((), ("model",)), (("model",), ())]


def test_donation_reaches_the_compiler():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = shaped(64, 1024)
    mesh = sw.mesh(data=4)
    kept = sw.explain(lambda x: x + 1, x, mesh=mesh, in_specs=P("data"))
    donated = sw.explain(step, x, mesh=mesh, in_specs=P("data"))
    assert kept.memory.peak - donated.memory.peak == 64 * 1024 * 4 // 4


def test_a_shard_map_beside_what_the_compiler_partitions():
    def step(w, x, *, mesh):
        body = lambda x: lax.psum(x, "data")  # noqa: E731
        mean = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)
        return (mean @ w).sum()

    mesh = sw.mesh(data=4, model=2)
    report = sw.explain(step, shaped(16, 8), shaped(64, 16), mesh=mesh, in_specs=(W, X))
    assert [(use.name, use.by) for use in report.collectives] == [
        ("psum", "program"), ("psum", "compiler"),
    ]  # fmt: skip
    assert report.collectives[0].axes == ("data",)
    assert "model" in report.collectives[1].axes
    assert report.collectives[0].meaning is not None


def test_a_shard_map_alone_is_not_compiled_unless_asked():
    def step(x, *, mesh):
        return jax.shard_map(
            lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )(x)

    mesh = sw.mesh(data=4)
    assert not sw.explain(step, shaped(64), mesh=mesh).compiled
    asked = sw.explain(step, shaped(64), mesh=mesh, compile=True)
    assert asked.compiled
    assert [(use.name, use.by) for use in asked.collectives] == [("psum", "program")]


def test_a_program_that_does_not_fit_the_mesh_is_an_error_with_a_remedy():
    with pytest.raises(sw.ShardingError, match="x: a dimension of size 63 is split over data"):
        sw.explain(lambda x: x.sum(), shaped(63), mesh=sw.mesh(data=4), in_specs=P("data"))


def test_a_mesh_too_large_for_auto_says_so():
    mesh = sw.mesh(data=64, model=64)
    report = sw.explain(lambda x: x.sum(), shaped(4096), mesh=mesh, in_specs=P("data"))
    assert not report.compiled
    assert any("compile=True" in note for note in report.notes)


def test_work_and_memory_are_those_of_one_device():
    f, args, specs = PROGRAMS["tensor parallel"]
    report = sw.explain(f, *args, mesh=sw.mesh(data=4, model=2), in_specs=specs)
    assert report.work.by_kind["dot"] == 2 * (2 * 16 * 16 * 16)
    assert report.work.redundant == 0
    assert report.memory.arguments == 4 * (16 * 16 * 2 + 16 * 16)
    assert report.memory.peak >= report.memory.arguments
    whole = sw.explain(f, *args, mesh=sw.mesh(data=4, model=2), in_specs=(P(), P(), X))
    assert whole.work.redundant == pytest.approx(whole.work.by_kind["dot"] * 4)  # twice over model


def test_costs_pages_and_traces_take_the_rows(tmp_path):
    f, args, specs = PROGRAMS["a scan"]
    report = sw.explain(f, *args, mesh=sw.mesh(data=4, model=2), in_specs=specs)
    timed = report.on("h200-node")
    assert timed.cost is not None
    assert timed.cost.communication > 0
    for name in ("step.html", "step.json", "step.trace.json", "step.txt"):
        assert timed.save(tmp_path / name).stat().st_size > 500
    assert "compiler" in (tmp_path / "step.html").read_text()


def test_the_layers_of_a_model_are_one_row():
    def step(layers, x):
        for layer in layers:
            x = jnp.tanh(x @ layer["w"])
        return x

    layers = [{"w": shaped(16, 16)} for _ in range(3)]
    specs = ([{"w": P("data")}] * 3, P("data"))
    report = sw.explain(step, layers, shaped(64, 16), mesh=sw.mesh(data=4), in_specs=specs)
    assert [use.of for use in report.collectives] == [f"layers[{i}]['w']" for i in range(3)]
    assert str(report).count("because the product needs more of") == 1
    assert "f32[4, 16] × 3" in str(report)
    assert "of layers[*]['w']" in str(report)
    page = html.unescape(report._repr_html_())
    assert page.count("because the product needs more of") == 3
    assert "of <code>layers[2]['w']</code>" in page


def test_what_is_computed_from_an_argument_is_not_the_argument():
    """XLA fuses the sum of a few elements into one computation with one operand."""
    report = sw.explain(lambda x: x.sum(), shaped(64), mesh=sw.mesh(data=8), in_specs=P("data"))
    (use,) = report.collectives
    assert (use.name, use.of) == ("psum", "")


@pytest.mark.parametrize("compile", ["auto", True])
def test_an_argument_that_no_line_uses_may_have_a_spec_that_does_not_divide_it(compile):
    mesh, args = sw.mesh(data=8), (shaped(64), shaped(7))
    f = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    for one in (f, jnp.sum):
        report = sw.explain(
            lambda x, y, one=one: one(x), *args, mesh=mesh, in_specs=P("data"), compile=compile
        )
        assert [use.name for use in report.collectives] == ["psum"]
        assert [array.used for array in report.arguments] == [True, False]
    assert report.notes[0] == (
        "y: a dimension of size 7 is split over data, 8 devices, which jit refuses. The program "
        "does not use it, and it is compiled as if every device held all of it: leave it out, or "
        "pad it."
    )
    with pytest.raises(sw.ShardwiseError, match="y: a dimension of size 7 is split over data"):
        sw.explain(lambda x, y: x.sum() + y.sum(), *args, mesh=mesh, in_specs=P("data"))
