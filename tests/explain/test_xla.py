"""Against XLA: what it compiles for eight devices, from the gallery and from small programs."""

from __future__ import annotations

import collections
import functools

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw

from ..support import real_mesh
from ..test_examples import load
from .hlo import collectives, group_size
from .support import shaped, spmd

# Large enough that the arrays count and not what XLA puts around them; compiled, never run.
GALLERY = {
    "data_parallel": {"examples": 4096, "features": 256, "hidden": 512, "targets": 64},
    "mixture_of_experts": {"groups": 16, "size": 64, "features": 64, "hidden": 256},
    "pipeline": {"layers": 16, "microbatches": 8, "size": 64, "features": 128},
    "ring_attention": {"length": 2048, "heads": 4, "features": 64},
    "tensor_parallel": {"examples": 512, "features": 256, "hidden": 2048, "targets": 256},
    "transformer_2d": {"examples": 16, "length": 128, "features": 128, "head": 32, "hidden": 512},
    "zero": {"examples": 2048, "features": 256, "hidden": 512, "targets": 64},
}
SHAPES = {1: (8,), 2: (4, 2)}
KIND = {
    "psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


SAME = P()


@functools.cache
def both(name):
    """A program of the gallery, compiled by XLA and explained."""
    module = load(name)
    args = jax.eval_shape(functools.partial(module.example_args, **GALLERY[name]))
    mesh = real_mesh(**dict(zip(module.AXES, SHAPES[len(module.AXES)], strict=True)))
    return compiled(module.step, *args, mesh=mesh), sw.explain(module.step, *args, mesh=mesh)


def compiled(step, *args, mesh):
    return jax.jit(functools.partial(step, mesh=mesh)).lower(*args).compile()


def ours(report):
    """The collectives of a report as the HLO counts them."""
    found = collections.Counter()
    for use in report.collectives:
        assert use.count is not None
        found[KIND[use.name], use.group_size, use.bytes] += use.count
    return found


programs = pytest.mark.parametrize("name", GALLERY)


@programs
def test_count_and_bytes_are_those_of_the_compiled_program(name):
    """Exactly, for every program: nothing in the gallery is merged, hoisted or widened by XLA."""
    program, report = both(name)
    assert ours(report) == collectives(program.as_text())


@programs
def test_arguments_and_results_are_exactly_as_xla_has_them(name):
    program, report = both(name)
    stats = program.memory_analysis()
    assert report.memory.arguments == stats.argument_size_in_bytes
    # Where there are several results, XLA adds a table with an address of eight bytes for each.
    table = 8 * len(report.results) if len(report.results) > 1 else 0
    assert report.memory.results == stats.output_size_in_bytes - table


@programs
def test_the_peak_is_within_the_factor_that_the_documentation_states(name):
    program, report = both(name)
    stats = program.memory_analysis()
    sizes = stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.temp_size_in_bytes
    assert 0.55 <= report.memory.peak / sum(sizes) <= 1.25


@pytest.mark.parametrize(
    "name", ["data_parallel", "mixture_of_experts", "tensor_parallel", "transformer_2d", "zero"]
)
def test_the_work_is_within_two_percent_of_xlas_count(name):
    """For programs without loops, of which XLA counts one iteration."""
    program, report = both(name)
    assert report.work.flops == pytest.approx(program.cost_analysis()["flops"], rel=0.02)


def test_the_gallery_is_complete():
    from ..test_examples import FILES

    assert sorted(GALLERY) == [file.stem for file in FILES]


def small(body, *args, out=SAME):
    """What explain says and what XLA does, for a program on eight devices."""
    mesh = real_mesh(data=8)
    step = spmd(body, out_specs=out)
    report = sw.explain(step, *args, mesh=mesh)
    return ours(report), collectives(compiled(step, *args, mesh=mesh).as_text())


def test_the_same_collective_of_the_same_value_is_one():
    def body(x):
        twice = lax.psum(jnp.sin(x), "data") * jnp.cos(lax.psum(jnp.sin(x), "data"))
        return twice + lax.psum(jnp.sin(2 * x), "data")

    said, done = small(body, shaped(64))
    assert said == done == {("all-reduce", 8, 32): 2}


# --- where XLA does something else


def test_xla_takes_what_does_not_change_out_of_a_loop():
    def body(x):
        add = lambda total, _: (total + lax.psum(x, "data"), None)  # noqa: E731
        return lax.scan(add, jnp.zeros(8), None, length=5)[0]

    said, done = small(body, shaped(64))
    assert said == {("all-reduce", 8, 32): 5}
    assert done == {("all-reduce", 8, 32): 1}


def test_xla_drops_the_barrier_of_a_checkpoint_on_cpus_in_some_versions():
    def body(x):
        layer = jax.checkpoint(lambda x: jnp.sin(lax.all_gather(jnp.sin(x), "data", tiled=True)))
        return jax.grad(lambda x: (layer(x) ** 2).sum())(x)

    said, done = small(body, shaped(64), out=P("data"))
    assert said == {("all-gather", 8, 32): 2, ("reduce-scatter", 8, 256): 1}
    again = 1 if jax.__version_info__ < (0, 11) else 2
    assert done == {("all-gather", 8, 32): again, ("reduce-scatter", 8, 256): 1}


def test_xla_adds_bfloat16_in_float32_on_cpus():
    said, done = small(lambda x: lax.psum(x, "data"), shaped(64, dtype=jnp.bfloat16))
    assert said == {("all-reduce", 8, 16): 1}
    assert done == {("all-reduce", 8, 32): 1}


def test_xla_combines_collectives_of_a_kind_into_one_instruction():
    def body(x, y):
        return lax.psum(x, "data"), lax.psum(y, "data")

    mesh = real_mesh(data=8)
    step = spmd(body, in_specs=(P("data"), P("data")), out_specs=P())
    text = compiled(step, shaped(64), shaped(32), mesh=mesh).as_text()
    assert text.count(" all-reduce(") == 1
    report = sw.explain(step, shaped(64), shaped(32), mesh=mesh)
    assert ours(report) == collectives(text)
    assert len({use.launch for use in report.collectives}) == 1


# --- the parser itself


def test_the_parser_multiplies_nested_loops_and_finds_what_small():
    def body(x):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        turn = lambda x, _: (lax.ppermute(jnp.sin(x), "data", ring), None)  # noqa: E731
        outer = lambda x, _: (lax.scan(turn, x, None, length=3)[0], None)  # noqa: E731
        return lax.scan(outer, x, None, length=5)[0]

    said, done = small(body, shaped(64), out=P("data"))
    assert said == done == {("collective-permute", 8, 32): 15}


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}, use", 2),
        ("replica_groups=[2,4]<=[8], use", 4),
        ("replica_groups=mesh['data'=4,'model'=2] {'model'}, use", 2),
        ("replica_groups=mesh['data'=4,'model'=2] {'data','model'}, use", 8),
        ("source_target_pairs={{0,1},{1,2},{2,0}}, meta", 3),
    ],
)
def test_the_parser_reads_groups(line, size):
    assert group_size(line) == size
