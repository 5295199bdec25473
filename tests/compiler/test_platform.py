"""Compiling for GPUs: what is asked of XLA, what is read, and what is said where there is none."""
# ruff: noqa: E501

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax import P

import shardwise as sw
from shardwise._analysis.compiler import worker
from shardwise._analysis.compiler.hlo import parse
from shardwise._analysis.compiler.sent import Reader, sent_in
from shardwise._jax import compiling

from ..explain.support import shaped

PLUGIN = any(importlib.util.find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin"))


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def step(w, x):
    return w - jax.grad(loss)(w, x)


def explained(**more):
    mesh = sw.mesh(data=16)
    args = shaped(64, 64), shaped(128, 64)
    return sw.explain(step, *args, mesh=mesh, in_specs=(P("data"), P("data")), **more)


@pytest.mark.parametrize(
    ("platform", "count", "topology"),
    [("cuda", 16, "1x2x8"), ("cuda", 4, "1x1x4"), ("cuda", 12, "1x1x12"), ("h100", 64, "1x8x8")],
)
def test_gpus_are_those_of_this_machine_or_as_described(monkeypatch, platform, count, topology):
    asked = {}

    class Described:
        devices = ("a GPU",)

    def described(name, platform, **options):
        asked.update(options, platform=platform)
        return Described

    monkeypatch.setattr(compiling.topologies, "get_topology_desc", described)
    assert compiling._devices(platform, count) == ("a GPU",)
    target = asked.pop("target_config", "")
    assert asked == {"platform": "cuda", "topology": topology}
    assert ("H100" in target) == (platform == "h100")


def test_the_program_is_lowered_for_gpus_without_one(monkeypatch):
    asked = []
    monkeypatch.setattr(worker, "compiled", lambda lowered: asked.append(lowered) or 1 / 0)
    for platform in compiling.PLATFORMS:
        with pytest.raises(ZeroDivisionError):
            explained(platform=platform)
    assert [lowered.platform for lowered in asked] == ["cpu", "cuda", "h100"]
    assert [lowered.devices for lowered in asked] == [16, 16, 16]


@pytest.mark.skipif(PLUGIN, reason="JAX has a CUDA plugin here")
@pytest.mark.parametrize("platform", ["cuda", "h100"])
def test_without_the_plugin_the_error_says_how_to_get_it(platform):
    with pytest.raises(sw.ShardwiseError) as raised:
        explained(platform=platform)
    assert str(raised.value) == (
        f'sw.explain(platform="{platform}"): JAX has no CUDA plugin here\n'
        "  XLA compiles for the GPU of this machine, or for H100s, with JAX's CUDA plugin.\n"
        '  Remedy: pip install "jax[cuda13]"; platform="cpu" compiles for virtual CPU devices.'
    )
    assert explained().collectives  # the process is still of use


def test_without_a_gpu_the_error_names_what_needs_none(monkeypatch):
    error = "JaxRuntimeError: FAILED_PRECONDITION: No visible GPU devices."
    monkeypatch.setattr(worker.Worker, "ask", lambda *_: error)
    monkeypatch.setattr(worker, "_files", lambda folder: worker.Files("", "", "", ""))
    with pytest.raises(sw.ShardwiseError, match=r'no GPU is visible[\s\S]*platform="h100"'):
        explained(platform="cuda")


def test_a_program_with_a_shard_map_is_compiled_too_and_the_error_is_not_a_note(monkeypatch):
    """Its collectives are known from the trace, but not for that platform."""

    def fails(lowered):
        raise worker.CompileError("no GPU")

    def body(x):
        return jax.lax.psum(x, "data")

    monkeypatch.setattr(worker, "compiled", fails)
    mesh = sw.mesh(data=8)
    f = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())
    with pytest.raises(sw.ShardwiseError, match="no GPU"):
        sw.explain(f, shaped(64), platform="cuda")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"platform": "tpu"}, "platform is 'tpu'\n  A program is compiled for cpu, cuda, h100."),
        ({"platform": None}, "platform is None"),
        ({"platform": "cuda", "compile": False}, "platform is 'cuda', and compile is False"),
    ],
)
def test_other_arguments_are_named(options, words):
    with pytest.raises(sw.ShardwiseError) as raised:
        explained(**options)
    assert words in str(raised.value)


@pytest.mark.skipif(not PLUGIN, reason='needs JAX\'s CUDA plugin: pip install "jax[cuda13]"')
def test_gpus_reduce_and_scatter_what_cpus_reduce_and_slice():
    cpu, gpu = explained(), explained(platform="h100")
    assert [use.name for use in cpu.collectives] == ["all_gather", "psum"]
    assert [use.name for use in gpu.collectives] == ["all_gather", "psum_scatter"]
    assert [use.where for use in gpu.collectives] == [use.where for use in cpu.collectives]
    assert gpu.bytes_sent < cpu.bytes_sent
    assert gpu.work.flops == pytest.approx(cpu.work.flops, rel=0.1)
    assert "16 virtual NVIDIA H100 80GB HBM3" in gpu.notes[-1]


MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train.py"

FunctionNames
1 "loss"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5 end_line=5 column=4 end_column=9}
2 {file_name_id=1 function_name_id=1 line=6 end_line=6 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%async_computation (a: f32[64,8], b: f32[64,8]) -> (f32[8,8], f32[8,8]) {
  %a = f32[64,8]{1,0} parameter(0)
  %b = f32[64,8]{1,0} parameter(1)
  %c = f32[64,8]{1,0} bitcast(%b)
  ROOT %reduce-scatter.1 = (f32[8,8]{1,0}, f32[8,8]{1,0}) reduce-scatter(%a, %c), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
}

ENTRY %main (p: f32[64,8]) -> f32[8,8] {
  %p = f32[64,8]{1,0} parameter(0)
  %up = f32[64,8]{1,0} tanh(%p), metadata={op_name="jit(f)/transpose(jvp())/dot_general" stack_frame_id=1}
  %down = f32[64,8]{0,1} sine(%p), metadata={op_name="jit(f)/transpose(jvp())/dot_general" stack_frame_id=2}
  %bitcast = f32[64,8]{1,0} bitcast(%down), metadata={scheduling_name="bitcast"}
  %start = ((f32[64,8]{1,0}, f32[64,8]{1,0}), (f32[8,8]{1,0}, f32[8,8]{1,0})) async-start(%bitcast, %up), calls=%async_computation, metadata={scheduling_name="start"}
  %done = (f32[8,8]{1,0}, f32[8,8]{1,0}) async-done(%start), metadata={scheduling_name="done"}
  %first = f32[8,8]{1,0} get-tuple-element(%done), index=0
  %second = f32[8,8]{1,0} get-tuple-element(%done), index=1
  %reduce = f32[64,8]{1,0} all-reduce-start(%up), channel_id=2, replica_groups=[1,8]<=[8], to_apply=%add, metadata={op_name="jit(f)/dot_general" stack_frame_id=1}
  %reduced = f32[64,8]{1,0} all-reduce-done(%reduce)
  %zero = s32[] constant(0)
  ROOT %slice = f32[8,8]{1,0} dynamic-slice(%reduced, %zero, %zero), dynamic_slice_sizes={8,8}
}
"""


def test_collectives_in_asynchronous_calls_have_the_lines_of_their_operands():
    module = parse(MODULE)
    first, second, reduced = sent_in(Reader(module, {"data": 8}, 8).schedule())
    assert [one.name for one in (first, second)] == ["psum_scatter"] * 2
    assert [one.instruction.frame for one in (first, second)] == [2, 1]
    assert {one.direction for one in (first, second)} == {"backward"}
    assert first.message == second.message
    assert (first.type.shape, first.result.shape) == ((64, 8), (8, 8))
    assert [one.operand for one in (first, second)] == ["bitcast", "up"]
    assert reduced.sliced
