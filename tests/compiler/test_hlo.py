"""The reader of HLO text, on text: every form in which the compiler writes collectives."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from shardwise._analysis.compiler.devices import (
    axes_of_groups,
    axes_of_pairs,
    permuted,
    replica_groups,
    spec_of_sharding,
)
from shardwise._analysis.compiler.hlo import Type, parse
from shardwise._analysis.compiler.sent import Reader, sent_in
from shardwise._base.errors import UnsupportedError

MESH = {"data": 4, "model": 2}


@pytest.mark.parametrize(
    ("text", "axes", "size"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ("model",), 2),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", ("data",), 4),
        ("replica_groups={}", ("data", "model"), 8),
        ("replica_groups=[4,2]<=[8]", ("model",), 2),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", ("data",), 4),
        ("replica_groups=[1,8]<=[8]", ("data", "model"), 8),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", ("data",), 4),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", ("data", "model"), 8),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(4)2}", ("model",), 2),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)4}", ("data",), 4),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", ("data",), 2),  # half of an axis
        # The devices in another order: 0 4 1 5 2 6 3 7, then 0 1 | 2 3 of the second dimension.
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b'}", ("data", "model"), 4),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ("data",), 2),
    ],
)
def test_groups_are_mapped_to_the_axes_of_the_mesh(text, axes, size):
    groups = replica_groups(f"channel_id=1, {text}, use_global_device_ids=true", 8)
    assert axes_of_groups(groups, MESH) == axes
    assert {len(group) for group in groups} == {size}
    assert sorted(device for group in groups for device in group) == list(range(8))


def test_the_pairs_of_a_permute_that_stay_where_they_are_do_not_count():
    pairs = permuted("source_target_pairs={{0,0},{1,3},{3,1}}, metadata={}")
    assert pairs == [(1, 3), (3, 1)]
    assert axes_of_pairs(pairs, MESH) == ("data",)


@pytest.mark.parametrize(
    ("sharding", "spec"),
    [
        ("{replicated}", ((), ())),
        ("", ((), ())),
        ("{devices=[4,2]<=[8]}", (("data",), ("model",))),
        ("{devices=[2,4]<=[4,2]T(1,0)}", (("model",), ("data",))),
        ("{devices=[8,1]<=[8]}", (("data", "model"), ())),
        ("{devices=[8,1]<=[4,2]T(1,0)}", (("model", "data"), ())),
        ("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", ((), ("model",))),
        ("{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", (("data",), ())),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", None),  # half of an axis: no spec
        ("{manual}", None),
        ("{mesh['data'=4,'model'=2], [{'model'}, {}]}", (("model",), ())),
        ("{mesh['axis_0'=4,'axis_1'=2], [{'axis_0', 'axis_1'}, {}]}", (("data", "model"), ())),
        ("{mesh['a'=8], [{'a':(1)4}, {}]}", None),
    ],
)
def test_a_sharding_is_a_spec_over_the_mesh(sharding, spec):
    assert spec_of_sharding(sharding, 2, MESH) == spec


@pytest.mark.parametrize(
    ("element", "dtype", "size"),
    [("f32", "float32", 24), ("bf16", "bfloat16", 12), ("pred", "bool", 6), ("u4", "uint4", 3),
     ("f8e4m3fn", "float8_e4m3fn", 6), ("c64", "complex64", 48), ("s8", "int8", 6)],
)  # fmt: skip
def test_types(element, dtype, size):
    assert Type(element, (2, 3)).dtype == dtype
    assert Type(element, (2, 3)).bytes == size


MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train \\"a\\".py"
2 "/home/me/model.py"

FunctionNames
1 "<module>"
2 "layer"

FileLocations
1 {file_name_id=1 function_name_id=1 line=31 end_line=31 column=7 end_column=9}
2 {file_name_id=2 function_name_id=2 line=12 end_line=12 column=3 end_column=8}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%mul (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %product = f32[] multiply(%a.1, %b.1)
}

%wrapped (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %inner = f32[8,4]{1,0} all-to-all(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}
}

%cond (c: (s32[], f32[8,4])) -> pred[] {
  %c = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%body (t: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%t), index=1
  %reduced = f32[8,4]{1,0} all-reduce(%x), replica_groups=[4,2]<=[8], to_apply=%add, metadata={op_name="jit(f)/jvp(layer)/dot_general" stack_frame_id=2}
  ROOT %out = (s32[], f32[8,4]{1,0}) tuple(%i, %reduced)
}

%small (s: f32[8,4]) -> f32[8,4] {
  ROOT %s = f32[8,4]{1,0} parameter(0)
}

%large (l: f32[8,4]) -> f32[8,4] {
  %l = f32[8,4]{1,0} parameter(0)
  ROOT %moved = f32[8,4]{1,0} collective-permute(%l), source_target_pairs={{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}
}

ENTRY %main (w: f32[8,4], v: bf16[2]) -> f32[8,4] {
  %w = f32[8,4]{1,0} parameter(0), metadata={op_name="w"}
  %v = bf16[2]{0} parameter(1)
  %zero = s32[] constant(0)
  %name = s8[3] constant("a)(")
  %start = ((f32[8,4]{1,0}, bf16[2]{0}), (f32[32,4]{1,0}, bf16[8]{0})) all-gather-start(%w, %v), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %done = (f32[32,4]{1,0}, bf16[8]{0}) all-gather-done(%start)
  %go = ((f32[8,4]{1,0}), f32[8,4]{1,0}, u32[]) async-start(%w), calls=%wrapped
  %went = f32[8,4]{1,0} async-done(%go), calls=%wrapped
  %pair = (s32[], f32[8,4]{1,0}) tuple(%zero, %w)
  %loop = (s32[], f32[8,4]{1,0}) while(%pair), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %open = (s32[], f32[8,4]{1,0}) while(%pair), condition=%cond, body=%body
  %y = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %chosen = f32[8,4]{1,0} conditional(%zero, %y, %y), branch_computations={%small, %large}
  %several = (f32[8,4]{1,0}, f32[8,4]{1,0}) all-reduce(%y, %w), replica_groups={}, to_apply=%mul, metadata={op_name="jit(f)/mul"}
  %first = f32[8,4]{1,0} get-tuple-element(%several), index=0, metadata={op_name="jit(f)/transpose(jvp())/mul" stack_frame_id=1}
  ROOT %scattered = f32[2,4]{1,0} reduce-scatter(%first), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, to_apply=%add
}
"""


def test_every_form_of_a_collective_is_found():
    module = parse(MODULE)
    rows = [
        (one.name, one.axes, one.type.shape, one.times, one.known, one.bytes_sent)
        for one in sent_in(Reader(module, MESH, 8).schedule())
    ]
    assert rows == [
        ("all_gather", ("data",), (8, 4), 1, True, 3 * 128),  # asynchronous, two arrays
        ("all_gather", ("data",), (2,), 1, True, 3 * 4),
        ("all_to_all", ("model",), (8, 4), 1, True, 64),  # wrapped, once
        ("psum", ("model",), (8, 4), 5, True, 128),
        ("psum", ("model",), (8, 4), 1, False, 128),  # a loop of unknown length
        ("ppermute", ("data",), (8, 4), 1, True, 128),
        ("all_reduce", ("data", "model"), (8, 4), 1, True, 224),  # a product, combined
        ("all_reduce", ("data", "model"), (8, 4), 1, True, 224),
        ("psum_scatter", ("data",), (8, 4), 1, True, 96),
    ]


def test_arrays_of_one_message_have_its_number_and_their_own_line():
    module = parse(MODULE)
    rows = list(sent_in(Reader(module, MESH, 8).schedule()))
    assert rows[0].message == rows[1].message != rows[2].message
    both = [one for one in rows if one.name == "all_reduce"]
    assert both[0].message == both[1].message
    assert [one.direction for one in both] == ["backward", "forward"]
    (frame,) = module.stack(both[0].instruction)
    assert (frame.file, frame.line) == ('/home/me/train "a".py', 31)


def test_frames_are_read_from_the_inside_out():
    module = parse(MODULE)
    (reduced,) = [one for one in module.computations["body"].values() if one.opcode == "all-reduce"]
    assert [(one.line, one.function) for one in module.stack(reduced)] == [
        (12, "layer"), (31, "<module>"),
    ]  # fmt: skip


def test_an_element_of_a_tuple_is_written_where_it_is_used():
    text = MODULE.replace("all-reduce(%x)", "all-reduce(%t#1)")
    rows = list(sent_in(Reader(parse(text), MESH, 8).schedule()))
    assert [one.type.shape for one in rows if one.name == "psum"] == [(8, 4), (8, 4)]


def test_a_notation_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedError, match="a notation that is not known"):
        replica_groups("replica_groups=torus(2,4), to_apply=%add", 8)
