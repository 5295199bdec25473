"""`inspect` shows what each device holds: the same as real devices hold."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import shardwise as sw

from ..support import normal, real_mesh
from .programs import (
    branches,
    counts_down,
    descends,
    grid,
    line_of,
    norm,
    ring,
    steps_of_norm,
    stuck,
)

X, W = normal(8), np.float32(3)


@pytest.fixture(scope="module")
def looked() -> sw.Inspection:
    return sw.inspect(norm, X, W, mesh=sw.mesh(data=4))


def step(found: sw.Inspection, name: str):
    (one,) = (one for one in found if one.name == name)
    return one


def test_every_device_holds_what_a_real_one_holds(looked):
    real = steps_of_norm(X, W, mesh=real_mesh(data=4))
    for name, native in zip(("scaled", "squares", "total"), real, strict=True):
        held = [step(looked, name).at(data=i) for i in range(4)]
        np.testing.assert_allclose(held, np.asarray(native), rtol=1e-6)


def test_values_have_lines_names_shapes_and_axes(looked):
    scaled, total = step(looked, "scaled"), step(looked, "total")
    assert scaled.where.line == line_of(norm, "scaled")
    assert scaled.where.text.startswith("scaled = part * w")
    assert (scaled.shape, scaled.dtype, scaled.over) == ((2,), "float32", ("data",))
    assert (total.operation, total.kind, total.over) == ("psum over data", "collective", ())
    assert total.meets
    assert [one.name for one in looked if one.kind == "input"] == ["part", "w"]
    assert looked.steps[-1].kind == "result"
    assert [one.number for one in looked] == list(range(len(looked)))


def test_devices_with_the_same_part_are_told_together():
    same = sw.inspect(norm, np.tile(X[:2], 4), W, mesh=sw.mesh(data=4))
    (group,) = step(same, "scaled").groups()
    assert [at["data"] for at in group.at] == [0, 1, 2, 3]


def test_two_axes_are_told_apart():
    found = sw.inspect(grid, normal(4, 6), mesh=sw.mesh(data=2, model=3))
    (part,) = (one for one in found if one.kind == "input")
    assert part.over == ("data", "model")
    np.testing.assert_array_equal(part.at(data=1, model=2), normal(4, 6)[2:, 4:])
    assert step(found, "rows").over == ("data",)


def test_one_place(looked):
    assert {one.where.line for one in looked.at(line=line_of(norm, "total"))} == {
        line_of(norm, "total")
    }
    assert [one.name for one in looked.at(where="psum")] == ["total"]
    assert [one.name for one in looked.at(where="squares")] == ["squares"]
    assert {one.name for one in looked.at(where="jnp.sqrt(")} == {"", "return"}
    again = sw.inspect(norm, X, W, mesh={"data": 4}, line=f"programs.py:{line_of(norm, 'scaled')}")
    assert [one.name for one in again] == ["scaled"]
    with pytest.raises(sw.ShardwiseError, match="no value is computed at 'nothing'"):
        looked.at(where="nothing")
    with pytest.raises(sw.ShardwiseError, match=r"(?s)line is 'total'.*where='total'"):
        looked.at(line="total")


def test_names_of_several_are_whole():
    def both(x):
        value, (low, high) = jnp.sin(x), (jnp.cos(x), jnp.tan(x))
        return value + low + high

    f = jax.shard_map(both, mesh=sw.mesh(data=2), in_specs=P("data"), out_specs=P("data"))
    looked = sw.inspect(f, X, mesh=None)
    assert {one.name for one in looked} - {""} == {"x", "value, (low, high)", "return"}
    with pytest.raises(
        sw.ShardwiseError, match=r"or for a name: x, .value, \(low, high\)', return"
    ):
        looked.at(line=9999)


def test_a_loop_is_shown_iteration_by_iteration():
    found = sw.inspect(ring, X, mesh=sw.mesh(data=4))
    moved = [one for one in found if one.name == "moved"]
    assert [one.iteration for one in moved] == [(0,), (1,), (2,), (3,), (11,)]
    parts = np.split(X, 4)
    for one in moved:
        for device in range(4):
            np.testing.assert_array_equal(
                one.at(data=device), parts[(device - one.iteration[0] - 1) % 4]
            )
    assert "only the first 4 and the last iterations of this loop are shown" in str(found)


def test_a_while_loop_is_followed():
    found = sw.inspect(counts_down, X, mesh=sw.mesh(data=2))
    halved = [one for one in found if one.name == "halved"]
    assert [one.iteration for one in halved] == [(0,), (1,), (2,)]
    np.testing.assert_allclose(halved[-1].at(data=1), X[4:] / 8)


def test_a_branch_is_shown_for_the_devices_that_take_it():
    found = sw.inspect(branches, X, mesh=sw.mesh(data=4))
    taken = {one.operation: one for one in found if one.only is not None}
    assert [at["data"] for group in taken["mul"].groups() for at in group.at] == [1, 3]
    assert [at["data"] for group in taken["neg"].groups() for at in group.at] == [0, 2]


def test_a_deadlock_is_shown_up_to_where_the_devices_part():
    found = sw.inspect(stuck, X, mesh=sw.mesh(data=2))
    assert "never reaches it" in found.deadlock
    lines = {one.where.line for one in found}
    assert line_of(stuck, "before") in lines
    assert line_of(stuck, "after") not in lines
    assert "DEADLOCK" in str(found)


def test_a_gradient_has_its_backward_pass():
    found = sw.inspect(descends, normal(3), normal(8, 3), mesh=sw.mesh(data=4))
    assert any(one.backward and one.meets for one in found)
    whole = sw.simulate(descends, mesh=sw.mesh(data=4))(normal(3), normal(8, 3))
    np.testing.assert_allclose(found.steps[-1].at(), whole, rtol=1e-6)


def test_large_arrays_are_kept_by_their_numbers():
    x = normal(4, 3000)
    found = sw.inspect(norm, x, W, mesh=sw.mesh(data=4))
    part = step(found, "scaled").parts[2,]
    assert not part.whole
    assert part.least == pytest.approx(3 * x[2].min(), rel=1e-5)
    assert part.most == pytest.approx(3 * x[2].max(), rel=1e-5)
    assert part.mean == pytest.approx(3 * x[2].mean(), rel=1e-3, abs=1e-5)
    assert len(part.numbers) == 6
    huge = sw.inspect(norm, normal(2, 9000), W, mesh=sw.mesh(data=2))
    assert step(huge, "scaled").parts[1,].least == pytest.approx(3 * normal(2, 9000)[1].min())


@pytest.mark.parametrize("size", [200, 9000])
def test_large_parts_are_the_same_only_where_all_their_numbers_are(size):
    """One-hot rows have the same range, mean and first numbers; zeros are alike, as are NaNs."""
    hot = np.zeros((4, size), np.float32)
    hot[[0, 1, 2, 3], [50, 60, 60, -1]] = 1
    groups = step(sw.inspect(norm, hot, W, mesh=sw.mesh(data=4)), "scaled").groups()
    assert [len(one.at) for one in groups] == [1, 2, 1]
    hot[0], hot[1], hot[3] = np.nan, -np.nan, hot[2]
    hot[2, 7] = -0.0
    assert len({row.tobytes() for row in hot}) == 4
    groups = step(sw.inspect(norm, hot, W, mesh=sw.mesh(data=4)), "scaled").groups()
    assert [len(one.at) for one in groups] == [2, 2]


def test_the_range_of_large_integers_is_exact():
    x = np.full((4, 400), 2**60)
    x[:, 100] += np.arange(4)
    with jax.enable_x64(True):
        text = sw.inspect(norm, x, np.int64(1), mesh=sw.mesh(data=4)).text()
    for device in range(4):
        assert f"data {device}  from {2**60} to {2**60 + device}, mean 1.153e+18: [" in text


def test_types_that_numpy_cannot_print():
    found = sw.inspect(norm, jnp.asarray(X, jnp.bfloat16), jnp.bfloat16(3), mesh=sw.mesh(data=4))
    assert step(found, "scaled").dtype == "bfloat16"
    assert "bf16[2]" in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_data_is_plain(looked):
    data = json.loads(json.dumps(looked.to_dict(), allow_nan=False))
    assert data["mesh"] == {"data": 4}
    (total,) = (one for one in data["steps"] if one["name"] == "total")
    assert total["differs_over"] == []
    assert len(total["held"]) == 1
    assert total["meaning"] == "the whole"
    nan = sw.inspect(norm, np.full(4, np.nan, np.float32), W, mesh=sw.mesh(data=2)).to_dict()
    json.dumps(nan, allow_nan=False)


def test_the_text_of_a_program(looked):
    text = looked.text()
    assert text.startswith("norm on {data: 4}: ")
    assert f"programs.py:{line_of(norm, 'total')} | total = lax.psum(squares, " in text
    assert "total = psum over data: f32[], the whole\n    all devices  " in text
    assert "text(every=True), or --every on the command line, has them" in text
    assert "integer_pow" in looked.text(every=True)
    assert repr(looked) == text


def test_many_devices_are_summarised():
    found = sw.inspect(norm, normal(256), W, mesh=sw.mesh(data=128))
    assert "and 120 more, all different" in str(found.at(where="scaled"))


@pytest.mark.parametrize("name", ["page.html", "data.json", "text.txt"])
def test_it_can_be_saved(looked, tmp_path, name):
    assert looked.save(tmp_path / name).read_text()


def test_what_cannot_be_saved_is_refused(looked, tmp_path):
    with pytest.raises(sw.ShardwiseError, match="is not a format of an inspection"):
        looked.save(tmp_path / "page.pdf")
    with pytest.raises(sw.ShardwiseError, match="it cannot be written"):
        looked.save(tmp_path / "nowhere" / "page.html")


def reduced(x, how):
    reduce = {"sum": jax.lax.psum, "max": jax.lax.pmax}[how]
    return jax.shard_map(lambda part: reduce(part[0], "data"), out_specs=P())(x)


EXPLICIT = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))


@pytest.mark.parametrize("static", [{"static_argnums": 1}, {"static_argnames": "how"}])
@pytest.mark.parametrize("how", ["sum", "max"])
def test_specs_and_static_arguments(how, static):
    x = normal(8)
    specs = {"in_specs": (P("data"), None)}
    (split, *_), (result,) = (
        sw.inspect(reduced, x, how, mesh=EXPLICIT, where=where, **specs, **static).steps
        for where in ("part", "psum" if how == "sum" else "pmax")
    )
    assert [split.at(data=i).tolist() for i in range(4)] == x.reshape(4, 2).tolist()
    assert float(result.at()) == pytest.approx(float(getattr(x[::2], how)()))


def test_specs_and_static_arguments_are_asked_for():
    with pytest.raises(sw.ShardingError, match="how x is sharded over the mesh is unknown") as told:
        sw.inspect(reduced, normal(8), "sum", mesh=EXPLICIT, static_argnums=1)
    assert "in_specs=(P('data'), P())" in str(told.value)
    with pytest.raises(sw.ArgumentError, match="how is a str"):
        sw.inspect(reduced, normal(8), "sum", mesh=EXPLICIT, in_specs=(P("data"), None))


def test_what_is_no_function_is_refused():
    with pytest.raises(sw.ShardwiseError, match="f is an int"):
        sw.inspect(3, mesh=sw.mesh(data=2))
    with pytest.raises(sw.ShardwiseError, match="does not divide"):
        sw.inspect(norm, normal(7), W, mesh=sw.mesh(data=2))


def test_a_notebook_gets_a_table_without_scripts(looked):
    piece = looked._repr_html_()
    assert "devices communicate here" in piece
    assert "<script" not in piece


class TestMeaning:
    """What each value is of the whole, beside its numbers."""

    def test_every_value_says_what_it_is(self):
        found = sw.inspect(norm, normal(8, 2), normal(2), mesh=sw.mesh(data=4))
        told = {step.name: step.meaning for step in found if step.name and step.kind != "result"}
        assert told == {
            "part": "its rows of x along data",
            "w": "the whole of w",
            "scaled": "its rows along data",
            "squares": "a share of a sum over data",
            "total": "the whole",
            "return": "its rows along data",
        }
        assert found.steps[-1].kind == "result"
        assert found.steps[-1].meaning is None
        assert "  squares = reduce_sum: f32[], a share of a sum over data\n" in str(found)
        assert "each device holds a share of a sum over data" in found._repr_html_()
        assert '"meaning": "a share of a sum over data"' in found.html()

    def test_the_numbers_are_what_the_words_say(self):
        x, w = normal(8, 2), normal(2)
        found = sw.inspect(norm, x, w, mesh=sw.mesh(data=4))
        (part,), (squares,) = found.at(where="part"), found.at(where="squares")
        rows = [part.at(data=i) for i in range(4)]
        np.testing.assert_array_equal(np.concatenate(rows), x)
        shares = [float(squares.at(data=i)) for i in range(4)]
        np.testing.assert_allclose(sum(shares), ((x * w) ** 2).sum(), rtol=1e-5)

    def test_in_a_loop_it_holds_at_every_iteration(self):
        found = sw.inspect(ring, normal(8, 2), mesh=sw.mesh(data=4))
        assert {step.meaning for step in found.at(where="moved")} == {
            "a value of its own along data"
        }

    def test_without_it_the_numbers_are_still_there(self, monkeypatch):
        def broken(*args):
            raise AssertionError("no such thing")

        monkeypatch.setattr(sys.modules["shardwise._analysis.inspect.inspect"], "keep", broken)
        found = sw.inspect(norm, normal(8, 2), normal(2), mesh=sw.mesh(data=4))
        assert {step.meaning for step in found} == {None}
        assert "what the values mean is not known (AssertionError: no such thing)." in found.notes
