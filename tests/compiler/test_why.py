"""What people ask about the compiler's collectives, as programs: which line, why, what instead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw

from ..explain.support import shaped

MESH = sw.mesh(data=4, model=2)


def rows(report):
    return [
        (use.name, use.axes, use.why.kind if use.why else None, use.where.text)
        for use in report.collectives
    ]


def test_weights_are_gathered_where_a_product_needs_them_whole():
    """Weights split over the axis of the batch, as in FSDP: which line gathers them?"""

    def layer(w, x):
        return jnp.tanh(x @ w)

    args = shaped(64, 64), shaped(4096, 64)
    report = sw.explain(layer, *args, mesh=MESH, in_specs=(P("data"), P("data")))
    assert rows(report) == [("all_gather", ("data",), "operand", "return jnp.tanh(x @ w)")]
    (use,) = report.collectives
    assert use.of == "w"
    assert use.why.before == (("data",), ())
    assert "f32[64, 64] as P('data')" in use.why.reason
    assert "because the product needs more of f32[64, 64]" in str(report)


def test_activations_are_reduced_where_a_split_dimension_is_contracted():
    """The first FSDP that people write: activations are summed instead of weights gathered."""

    def layer(w, x):
        return x @ w

    args = shaped(256, 256), shaped(4096, 256)
    specs = P("data"), P(None, "data")
    report = sw.explain(layer, *args, mesh=MESH, in_specs=specs, suggest=True)
    assert rows(report) == [("psum", ("data",), "contraction", "return x @ w")]
    assert "a dimension of size 256 that is split over data" in report.collectives[0].why.reason
    best = report.suggestions[0]
    assert best.bytes_sent < best.before == report.bytes_sent
    assert best.code.startswith(f"{best.argument} = jax.lax.with_sharding_constraint(")
    assert best.code in str(report)


def test_a_suggestion_sends_what_it_says():
    def layer(w, x):
        h = lax.with_sharding_constraint(x @ w, P())
        return jnp.tanh(h) @ w

    def constrained(w, x):
        w = lax.with_sharding_constraint(w, P())
        return layer(w, x)

    args, specs = (shaped(64, 64), shaped(1024, 64)), (P("data"), P(None, "data"))
    report = sw.explain(layer, *args, mesh=MESH, in_specs=specs, suggest=True)
    found = {one.argument: one for one in report.suggestions}
    after = sw.explain(constrained, *args, mesh=MESH, in_specs=specs)
    assert found["w"].bytes_sent == after.bytes_sent
    assert found["w"].peak == after.memory.peak


def test_nothing_is_suggested_that_does_not_send_less():
    step = lambda w, x: (x @ w).sum(0)  # noqa: E731
    args = shaped(16, 16), shaped(64, 16)
    report = sw.explain(step, *args, mesh=MESH, in_specs=(P(), P("data")), suggest=True)
    assert report.collectives
    assert report.suggestions == ()


def test_a_resharding_names_both_specs():
    def moved(x):
        y = lax.with_sharding_constraint(jnp.sin(x), P("data", None))
        return lax.with_sharding_constraint(y, P(None, "data"))

    report = sw.explain(moved, shaped(64, 64), mesh=MESH, in_specs=P("data"))
    (use,) = report.collectives
    assert use.name == "all_to_all"
    assert "P('data')" in use.why.reason
    assert "P(None, 'data')" in use.why.reason
    assert (use.why.before, use.why.after) == ((("data",), ()), ((), ("data",)))


def test_a_gradient_that_is_summed_and_then_sliced():
    def step(w, x):
        g = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return lax.with_sharding_constraint(w - 0.1 * g, P("data"))

    args = shaped(64, 64), shaped(4096, 64)
    report = sw.explain(step, *args, mesh=MESH, in_specs=(P("data"), P("data")))
    kinds = {use.name: use.why.kind for use in report.collectives}
    assert kinds == {"all_gather": "operand", "psum": "sliced"}
    (summed,) = [use for use in report.collectives if use.name == "psum"]
    assert summed.direction == "backward"
    assert "a reduce-scatter would send half" in summed.why.reason


def test_a_sum_over_a_split_dimension():
    report = sw.explain(lambda x: jnp.mean(x, 0), shaped(64, 64), mesh=MESH, in_specs=P("data"))
    (use,) = report.collectives
    assert (use.name, use.why.kind) == ("psum", "reduction")


def test_the_sharding_of_every_line():
    def step(w, x):
        h = jnp.tanh(x @ w)
        return h.sum(1)

    args = shaped(16, 32), shaped(64, 16)
    report = sw.explain(step, *args, mesh=MESH, in_specs=(P(None, "model"), P("data")))
    found = {(one.where.text, one.primitive): one.spec for one in report.shardings}
    assert found["h = jnp.tanh(x @ w)", "dot_general"] == (("data",), ("model",))
    assert found["h = jnp.tanh(x @ w)", "tanh"] == (("data",), ("model",))
    assert found["return h.sum(1)", "reduce_sum"] == (("data",),)


def test_what_is_replicated_involuntarily_is_named_by_line():
    """From the partitioner's own log, whose words are those of XLA."""
    from shardwise._analysis.compiler.compile import Compiled
    from shardwise._analysis.compiler.worker import Files
    from shardwise._analysis.explain.why import Reasons

    log = (
        "E1118 spmd_partitioner.cc:630] [SPMD] Involuntary full rematerialization. The compiler "
        "cannot go from sharding {devices=[4,1,2]<=[8] last_tile_dim_replicate} to "
        "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate} efficiently for HLO operation "
        '%t = f32[64,8]{1,0} transpose(%x), metadata={op_name="jit(f)/transpose" stack_frame_id=0}.'
    )
    compiled = Compiled({"data": 4, "model": 2}, 8, (), Files("", "", "", log))
    (note,) = Reasons(compiled).replicated()
    assert (
        "f32[64, 8] is replicated on every device to get from P('data') to P(None, 'model')" in note
    )


@pytest.mark.parametrize(
    ("f", "spec", "words"),
    [
        (lambda x: jnp.sort(x, 0), P("data"), "sort goes along a dimension of size 64 of"),
        (lambda x: jnp.argmax(x, 0), P("data"), "reduce goes along a dimension of size 64 of"),
        (lambda x: jnp.roll(x, 1, 0), P("data"), "concatenate goes along a dimension"),
        (lambda x: jnp.cumsum(x, 0), P("data"), "reduce_window_sum goes along a dimension"),
        (lambda x: x[jnp.arange(3)], P("data"), "gather goes along a dimension of size 64 of"),
        (lambda x: lax.top_k(x, 2), P(None, "data"), "top_k goes along a dimension of size 16"),
    ],
)
def test_an_operation_along_a_split_dimension(f, spec, words):
    report = sw.explain(f, shaped(64, 16), mesh=sw.mesh(data=4), in_specs=(spec,))
    assert report.collectives
    for use in report.collectives:
        assert use.why.kind == "operation"
        assert use.why.reason.startswith(words)
        assert "split over data, so" in use.why.reason


def test_an_operand_of_a_sum_that_is_sharded_otherwise():
    """The largest operand is sharded as the result; the other one is what is sent."""

    def step(x, y):
        rows = lax.with_sharding_constraint(jnp.sin(x), P("data"))
        columns = lax.with_sharding_constraint(jnp.cos(y), P(None, "data"))
        return lax.with_sharding_constraint(rows + columns, P("data"))

    args = shaped(64, 256), shaped(64, 256)
    report = sw.explain(step, *args, mesh=MESH, in_specs=(P("data"), P(None, "data")))
    (use,) = report.collectives
    assert use.name == "all_to_all"
    assert use.why.reason == (
        "add takes f32[64, 256] sharded as P(None, 'data'), and the result is needed as P('data')"
    )
    assert (use.why.before, use.why.after) == (((), ("data",)), (("data",), ()))


def test_an_array_that_a_loop_takes_in_another_sharding():
    def step(w, x):
        def layer(x, w):
            return lax.with_sharding_constraint(jnp.tanh(x) * w, P("data")), None

        x = lax.with_sharding_constraint(x * 2, P(None, "data"))
        return lax.scan(layer, x, w)[0]

    args = shaped(3, 64), shaped(4096, 64)
    report = sw.explain(step, *args, mesh=MESH, in_specs=(P(), P(None, "data")))
    assert rows(report) == [
        ("all_to_all", ("data",), "operation", "return lax.scan(layer, x, w)[0]")
    ]
    assert report.collectives[0].why.reason == (
        "while takes f32[4096, 64] sharded as P(None, 'data'), and the loop needs it as P('data')"
    )
