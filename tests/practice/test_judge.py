"""The judge: solutions to the letter, the ways people write them, and the ways they go wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shardwise import ShardwiseError
from shardwise._practice import compare
from shardwise._practice.exercise import find

HEAD = """import functools
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec as P
"""

RIGHT = {
    "a mesh of the module, a decorator, jit": (
        "shard_map_psum",
        """
from jax.experimental import mesh_utils
from jax.experimental.shard_map import shard_map
mesh = Mesh(mesh_utils.create_device_mesh((1,), jax.devices()[:1]), axis_names=("data",))

@jax.jit
@functools.partial(shard_map, mesh=mesh, in_specs=P("data"), out_specs=P())
def f(y):
    return jax.lax.psum(jnp.sum(y), axis_name="data")

def shard_map_psum(x):
    return f(x)
""",
    ),
    "an ambient mesh, and a Python float": (
        "shard_map_psum",
        """
def shard_map_psum(x):
    with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("data",))):
        body = lambda y: jax.lax.psum(jnp.sum(y), "data")
        f = jax.shard_map(body, in_specs=P("data"), out_specs=P())
        return jnp.asarray(float(f(x)))
""",
    ),
    "real devices in place of the loop": (
        "sharded_eval_loss",
        """
def sharded_eval_loss(seed, x, y, num_shards):
    n = int(num_shards)
    model = nn.Dense(1)
    params = model.init(jax.random.key(int(seed)), x[:1])
    mesh = Mesh(np.array(jax.devices()[:n]), ("data",))
    def body(p, a, b):
        return jax.lax.pmean(jnp.mean((model.apply(p, a).reshape(-1) - b) ** 2), "data")
    specs = (P(), P("data"), P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, x, y).reshape(1)
""",
    ),
}

WRONG = {
    "a sum of sums": (
        "shard_map_psum",
        "n-times",
        """
def shard_map_psum(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    twice = lambda y: jax.lax.psum(jax.lax.psum(jnp.sum(y), "data"), "data")
    return jax.shard_map(twice, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)
""",
    ),
    "a Python if on a traced index": (
        "shard_map_psum",
        "traced-if",
        """
def shard_map_psum(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    def body(y):
        if jax.lax.axis_index("data") == 0:
            return jax.lax.psum(jnp.sum(y), "data")
        return jnp.sum(y)
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)
""",
    ),
    "parts that are added outside": (
        "shard_map_psum",
        "missing-psum",
        """
def shard_map_psum(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    body = lambda y: jnp.sum(y)[None]
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x).sum()
""",
    ),
    "gradients averaged twice on real devices": (
        "data_parallel_step",
        "summed-gradients",
        """
def data_parallel_step(seed, x_batch, y_batch, num_devices, lr):
    n = int(num_devices)
    model = nnx.Linear(x_batch.shape[-1], y_batch.shape[-1], rngs=nnx.Rngs(int(seed)))
    optimizer = nnx.Optimizer(model, optax.sgd(float(lr)), wrt=nnx.Param)
    graph, params = nnx.split(model)
    mesh = Mesh(np.array(jax.devices()[:n]), ("data",))
    def body(params, x, y):
        loss = lambda p: jnp.mean((nnx.merge(graph, p)(x) - y) ** 2)
        l, g = jax.value_and_grad(loss)(params)
        return jax.lax.pmean(l, "data"), jax.tree.map(lambda v: jax.lax.pmean(v, "data"), g)
    specs = (P(), P("data"), P("data"))
    l, g = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, x_batch, y_batch)
    optimizer.update(model, g)
    return jnp.array([float(l)])
""",
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_solution_is_right_however_it_is_written(case, judged):
    name, source = RIGHT[case]
    found = judged(name, HEAD + source)
    assert found.ok, found.text()
    assert [run.ok for run in found.runs] == [True] * 4


@pytest.mark.parametrize("case", WRONG)
def test_a_pitfall_has_its_name(case, judged):
    name, pitfall, source = WRONG[case]
    found = judged(name, HEAD + source)
    assert found.pitfall is not None, found.text()
    assert found.pitfall.name == pitfall, found.text()
    assert found.pitfall.text
    assert found.hint


def test_a_mistake_of_no_kind_gets_the_words_of_a_verified_fix_and_not_its_diff(exercises, judged):
    one = find(exercises, "row_parallel")
    found = judged("row_parallel", one.solution.replace("psum", "pmax"))
    assert found.pitfall is not None
    assert found.pitfall.name == "follows-the-mesh"
    assert found.hint == "Use psum instead of pmax."
    assert "+++" not in found.text()


def test_the_verdict_has_the_line_and_what_each_device_held(exercises, judged):
    one = find(exercises, "shard_map_psum")
    found = judged("shard_map_psum", one.wrong["missing-psum"])
    assert [run.ok for run in found.runs] == [True, False, False, False]
    assert found.line is not None
    assert found.line.text == "return jnp.sum(y)"
    (held,) = found.held
    assert [device for device, _ in held.rows] == ["data 0", "data 1"]
    first, second = (float(holds) for _, holds in held.rows)
    assert first != second
    assert float(found.runs[1].found) == pytest.approx(first, rel=1e-3)
    assert float(found.runs[1].expected) == pytest.approx(first + second, rel=1e-3)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["pitfall"]["name"] == "missing-psum"
    assert data["held"][0]["devices"][1]["device"] == "data 1"
    assert one.solution not in found.text()


def test_an_error_is_told_once_and_its_advice_is_not_to_be_followed(exercises, judged):
    one = find(exercises, "shard_map_psum")
    found = judged("shard_map_psum", one.wrong["missing-psum--checked"])
    text = found.text(80)
    assert "  1 device   wrong  stops with ShardingError\n" in text
    assert "  8 devices  wrong  stops with ShardingError\n" in text
    told = " ".join(text.split())
    assert told.count("may differ between devices along 'data'") == 1
    assert found.runs[0].error.startswith("ShardingError: mine.py:11: out_specs are P()")
    assert "Do not pass check_vma=False here: that only silences the type check" in told
    # The values are those with the check turned off.
    assert found.line is not None
    assert found.line.text == "return jnp.sum(y)"
    assert [device for device, _ in found.held[0].rows] == ["data 0", "data 1"]


def test_a_way_that_is_wrong_has_a_row_where_all_results_are_right(exercises, judged):
    one = find(exercises, "data_parallel_step")
    found = judged("data_parallel_step", one.wrong["summed-gradients"])
    assert all(run.ok for run in found.runs)
    assert "  8 shards        right\n" in found.text()
    row = "  how it is done  wrong  The gradients are summed, not averaged\n"
    assert row in found.text()
    assert found.to_dict()["table"][-1]["ok"] is False


def test_shapes_that_differ_are_what_the_table_shows():
    line, rows = np.zeros(72), np.zeros((8, 9))
    assert compare.shapes(rows, line) == ("shape (72,)", "shape (8, 9)")
    assert compare.shapes(line + 1, line) is None
    nested = {"loss": np.ones(1), "grads": [np.ones(2), line]}
    other = {"loss": np.ones(1), "grads": [np.ones(2), rows]}
    assert compare.shapes(other, nested) == ("grads[1]: shape (72,)", "grads[1]: shape (8, 9)")


def test_a_wrong_shape_is_in_the_verdict(exercises, judged):
    found = judged("shard_map_psum", find(exercises, "shard_map_psum").wrong["wrong-shape"])
    assert "wrong  expected shape (), found shape (" in found.text()


def test_a_deadlock_is_an_answer_at_once(exercises, judged):
    found = judged("shard_map_psum", find(exercises, "shard_map_psum").wrong["deadlock"])
    assert found.pitfall is not None
    assert found.pitfall.name == "deadlock"
    assert found.line is not None
    assert "lax.cond" in found.line.text


def test_inputs_are_drawn_anew_and_can_be_drawn_again(exercises, judge):
    one = find(exercises, "bytes_of_a_sum")
    first, second = (judge.judge(one, one.solution) for _ in range(2))
    assert first.seed != second.seed
    assert judge.judge(one, one.solution, seed=first.seed).seed == first.seed


def test_what_is_no_solution_could_not_be_run(judged):
    found = judged("shard_map_psum", "def shard_map_psum(x)\n    return 1\n")
    assert found.status == "could not run"
    assert "It is not Python" in found.reason
    assert found.line is not None
    assert found.line.number == 1
    found = judged("shard_map_psum", "def psum(x):\n    return x\n")
    assert found.status == "could not run"
    assert "does not define a function 'shard_map_psum'" in found.reason
    assert "shardwise practice reset shard_map_psum." in found.reason


@pytest.mark.parametrize("value", ["str(float(total))", "'6'", "[complex(total)]", "[str(total)]"])
def test_what_only_looks_like_a_number_is_none(judged, exercises, value):
    right = find(exercises, "shard_map_psum").solution
    source = f"{right}\nright = shard_map_psum\ndef shard_map_psum(x):\n    total = right(x)\n"
    found = judged("shard_map_psum", f"{source}    return {value}\n")
    assert found.pitfall is not None
    assert found.pitfall.name == "not-an-array"
    assert "under 'returns'" not in found.hint


def test_an_unknown_exercise_has_a_word_for_the_near_one(exercises):
    with pytest.raises(ShardwiseError, match="did you mean 'shard_map_psum'"):
        find(exercises, "shard_map_sum")
    assert find(exercises, "1").name == find(exercises, "01_shard_map_psum.py").name
