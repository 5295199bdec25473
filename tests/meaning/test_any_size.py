"""`prove` with a letter for the size of an axis: every size that divides, each read by itself."""

import json
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import P, lax
from typer.testing import CliRunner

import shardwise as sw
from shardwise._analysis.prove.sizes import Forecast
from shardwise._cli import app
from shardwise._meaning.term import work
from tests.support import normal, real_mesh

LIMIT = "the time limit of 30 s was reached"


def shapes(*sizes):
    return [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]


ROWS, WHOLE = P("data"), P()


def sharded(body, in_specs: Any = ROWS, out_specs=WHOLE, **options):
    def step(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)(
            *args
        )

    return step


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def right(w, x, y):
    return jax.grad(lambda w: lax.pmean(loss(w, x, y), "data"))(w)


def textbook(w, x, y):
    return lax.pmean(jax.grad(loss)(w, x, y), "data")


def except_on(size):
    def body(w, x, y):
        scale = 2 if lax.axis_size("data") == size else 1
        return scale * right(w, x, y)

    return body


def by_four(w, x, y):
    """Return what is right on four devices, and on no other number of them."""
    return lax.psum(jax.grad(loss)(lax.pcast(w, "data", to="varying"), x, y), "data") / 4


def ring(turns):
    def body(x):
        n = lax.axis_size("data")
        part = total = x.sum(0)
        for _ in range(turns or n - 1):
            part = lax.ppermute(part, "data", [(i, (i + 1) % n) for i in range(n)])
            total = total + part
        return total

    return body


def training(body, **options):
    return sharded(body, (P(), P("data"), P("data")), **options)


def of_rows(rows):
    return shapes((5, 4), (rows, 5), (rows, 4))


DIVISORS = [
    (48, [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]),
    (7, [1, 7]),
    (65536, [1 << k for k in range(17)]),
]


@pytest.mark.parametrize(("rows", "sizes"), DIVISORS)
def test_every_size_that_divides_is_proved(rows, sizes):
    proof = sw.prove(training(right), *of_rows(rows), mesh={"data": "n"})
    assert proof.status == "proved", proof
    assert proof.meshes == tuple(f"{{data: {size}}}" for size in sizes)
    assert [result.mesh for result in proof.results] == [*proof.meshes]
    assert f"for every size of data that divides {rows} ({len(sizes)} sizes: 1, " in str(proof)
    assert len(str(proof).splitlines()) == 1


def test_many_sizes_are_abbreviated():
    proof = sw.prove(training(right), *of_rows(65536), mesh={"data": "n"})
    assert "(17 sizes: 1, 2, 4, ..., 65536), against itself" in str(proof)


def on_real_devices(f, size, args):
    return f(*args, mesh=real_mesh(data=size))


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (right, ()),
        (textbook, (2, 4, 8)),
        (except_on(8), (8,)),
        (except_on(2), (2,)),
        (by_four, (1, 2, 8)),
    ],
    ids=["right", "textbook", "wrong on 8", "wrong on 2", "right on 4"],
)
def test_what_is_proved_is_so_on_real_devices(body, wrong):
    step, args = training(body), (normal(5, 4), normal(8, 5), normal(8, 4))
    want = jax.grad(loss)(*args)
    proof = sw.prove(step, *args, mesh={"data": "n"}, reference=lambda *a: jax.grad(loss)(*a))
    differs = [
        n for n in (1, 2, 4, 8) if not np.allclose(on_real_devices(step, n, args), want, 1e-4)
    ]
    assert differs == [*wrong]
    assert [result.status == "refuted" for result in proof.results] == [
        n in differs for n in (1, 2, 4, 8)
    ]
    assert proof.ok == (not wrong)


def test_the_smallest_size_that_is_wrong_comes_first():
    proof = sw.prove(training(textbook), *of_rows(48), mesh={"data": "n"}, run=False)
    assert str(proof).startswith("step: REFUTED for data = 2 to 48; proved for data = 1, against")
    assert proof.findings[0].mesh == "{data: 2}"
    assert "result is 2 times" in proof.findings[0].message
    assert proof.findings[0].where.file == __file__


def test_one_size_that_is_wrong_is_named():
    proof = sw.prove(training(except_on(8)), *of_rows(64), mesh={"data": "n"})
    assert "REFUTED for data = 8; proved for data = 1, 2, 4, 16, 32, 64, against" in str(proof)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_ring_of_a_fixed_length_is_right_on_one_size_alone(turns):
    step = sharded(ring(turns), check_vma=False)
    options = {"mesh": {"data": "n"}, "reference": lambda x: x.sum(0)}
    proof = sw.prove(step, *shapes((16, 3)), **options)
    assert proof.status == "refuted"
    proved = [result.mesh for result in proof.results if result.status == "proved"]
    assert proved == [f"{{data: {turns + 1}}}"]


def test_a_ring_as_long_as_the_axis_is_proved():
    step = sharded(ring(None), check_vma=False)
    assert sw.prove(step, *shapes((12, 3)), mesh={"data": "n"}).status == "proved"


def heads(x):
    n = lax.axis_size("data")
    assert 12 % n == 0, f"12 heads on {n} devices"
    return lax.psum(x.sum(), "data")


def test_sizes_that_the_program_does_not_accept_are_named():
    proof = sw.prove(sharded(heads), *shapes((64, 3)), mesh={"data": "n"})
    assert proof.status == "proved"
    assert proof.meshes == ("{data: 1}", "{data: 2}", "{data: 4}")
    assert "divides 64 and that the program accepts (3 sizes: 1, 2, 4)" in str(proof)
    line = "The program does not accept data = 8 to 64: AssertionError: 12 heads on 8 devices"
    assert str(proof).splitlines()[1] == line
    assert line in proof._repr_html_()


def test_sizes_between_those_accepted_are_listed():
    proof = sw.prove(sharded(heads), *shapes((16 * 9, 3)), mesh={"data": "n"})
    assert proof.ok
    assert proof.every is not None
    assert [mesh.size for mesh in proof.every.not_accepted] == [8, 9, 16, 18, 24, 36, 48, 72, 144]
    assert [mesh.size for mesh in proof.every.accepted] == [1, 2, 3, 4, 6, 12]


def test_a_program_that_accepts_one_device_alone_is_an_error():
    with pytest.raises(sw.ShardingError) as caught:
        sw.prove(sharded(heads), *shapes((25, 3)), mesh={"data": "n"})
    assert "sw.prove: the program accepts no size but 1" in str(caught.value)
    assert "AssertionError: 12 heads on 5 devices" in str(caught.value)
    assert "mesh={'data': 5} shows the whole error" in str(caught.value)
    assert isinstance(caught.value.__cause__, AssertionError)


# --- several axes


def mean(axes, *spec):
    return sharded(lambda x: lax.pmean(x.mean(), axes), P(*spec))


BOTH = ("data", "model")


@pytest.mark.parametrize(
    ("spec", "mesh", "shape", "rule", "count"),
    [
        ([BOTH], {"data": "n", "model": "m"}, (12,), "data * model divides 12", 18),
        ([BOTH], {"data": "n", "model": "n"}, (36,), "data * model divides 36", 4),
        ([BOTH], {"data": "n", "model": 4}, (24,), "data that divides 6 with model=4", 4),
        (BOTH, {"data": "n", "model": "m"}, (8, 6), "data divides 8 and model divides 6", 16),
        (BOTH, {"data": "n", "model": "n"}, (8, 6), "data divides 8 and model divides 6", 2),
        (BOTH, {"data": "n", "model": 3}, (8, 6), "data that divides 8 with model=3", 4),
    ],
)
def test_two_axes(spec, mesh, shape, rule, count):
    proof = sw.prove(mean(BOTH, *spec), *shapes(shape), mesh=mesh)
    assert proof.status == "proved"
    assert rule in str(proof)
    assert len(proof.meshes) == count
    assert len({*proof.meshes}) == count


def test_the_dimensions_of_all_shard_maps_count():
    def step(x, y, *, mesh):
        total = sharded(lambda x: lax.psum(x.sum(0), "data"))(x, mesh=mesh)
        columns = sharded(lambda y: lax.psum(y.sum(1), "data"), P(None, "data"))(y, mesh=mesh)
        each = sharded(lambda x: x.sum()[None], P("data"), P("data"))(x, mesh=mesh)
        # One number from each device: its size is the size of the axis.
        return total, columns, sharded(lambda e: lax.psum(e.sum(), "data"))(each, mesh=mesh)

    proof = sw.prove(step, *shapes((48, 3), (5, 36)), mesh={"data": "n"})
    assert proof.ok
    assert "every size of data that divides 12" in str(proof)


def test_other_dimensions_on_other_meshes():
    def step(x, *, mesh):
        spec = P("data") if mesh.shape["data"] == 1 else P(None, "data")
        return sharded(lambda x: lax.psum(x.sum(), "data"), spec)(x, mesh=mesh)

    proof = sw.prove(step, *shapes((12, 8)), mesh={"data": "n"})
    assert proof.meshes == ("{data: 1}", "{data: 2}", "{data: 4}")
    assert "does not accept data = 3, 6, 12" in str(proof)


# --- arguments


def test_keys_objects_and_static_arguments():
    def drawn(keys, x):
        noise = jax.vmap(lambda key, row: row + jax.random.normal(key, row.shape))(keys, x)
        return lax.pmean(noise.mean(), "data")

    keys = jax.random.split(jax.random.key(0), 6)
    step = sharded(drawn, (P("data"), P("data")))
    assert len(sw.prove(step, keys, *shapes((6, 3)), mesh={"data": "n"}).meshes) == 4

    def module(model, x, power, *, mesh):
        graph, state = nnx.split(model)

        def body(state, x):
            return lax.pmean((nnx.merge(graph, state)(x) ** power).mean(), "data")

        return sharded(body, (P(), P("data")))(state, x, mesh=mesh)

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    assert sw.prove(module, model, *shapes((6, 3)), 2, mesh={"data": "n"}, static_argnums=2)


def test_the_ambient_mesh():
    def total(x):
        body = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
        return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)

    assert len(sw.prove(total, *shapes((9,)), mesh={"data": "n"}).meshes) == 3


# --- the time limit


def proof_until(size, **options):
    """Prove, with the deadline passing when this size is traced."""

    def told(activity):
        deadline = work._DEADLINE.get()
        assert deadline is not None
        if activity == f"tracing on {{data: {size}}}":
            deadline.at = float("-inf")

    return sw.prove(training(right), *of_rows(64), mesh={"data": "n"}, progress=told, **options)


def test_sizes_that_are_not_reached_are_not_proved():
    proof = proof_until(8)
    assert proof.status == "unknown"
    assert not proof
    assert [result.status for result in proof.results] == ["proved"] * 3 + ["unknown"] * 4
    assert "UNKNOWN for data = 8 to 64; proved for data = 1, 2, 4, against" in str(proof)
    assert f"data = 8 to 64: not reached: {LIMIT}" in str(proof)
    assert "mesh={'data': 8}" in str(proof)
    assert proof.findings[0].code == "SW409"


def test_no_size_is_reached():
    def told(activity):
        deadline = work._DEADLINE.get()
        assert deadline is not None
        deadline.at = float("-inf")

    step, options = training(right), {"mesh": {"data": "n", "model": 2}, "progress": told}
    proof = sw.prove(step, *of_rows(4), **options)
    assert proof.status == "unknown"
    assert [result.status for result in proof.results] == ["unknown"] * 3
    assert f"data = 1 to 4: not reached: {LIMIT}" in str(proof)


def test_a_size_that_would_take_too_long_is_not_begun(monkeypatch):
    traced = []

    def expected(self, mesh):
        traced.append(mesh.size)
        return float("inf") if mesh.size > 4 else 0.0

    monkeypatch.setattr(Forecast, "expected", expected)
    proof = sw.prove(training(right), *of_rows(64), mesh={"data": "n"})
    assert traced == [1, 2, 4, 8]
    assert [result.status for result in proof.results] == ["proved"] * 3 + ["unknown"] * 4


def test_a_program_that_python_unrolls_is_expected_to_grow():
    def program(size, operations) -> Any:
        return types.SimpleNamespace(mesh=sw.mesh(data=size), operations=operations)

    forecast = Forecast(program(1, 13), 0.0)
    forecast.add(program(2, 16), 16.0)
    assert forecast.expected(sw.mesh(data=2)) == 16
    assert forecast.expected(sw.mesh(data=10007)) == 10 + 3 * 10007
    # One device alone has fewer operations: that is no growth.
    forecast.add(program(4, 16), 16.0)
    assert forecast.expected(sw.mesh(data=10007)) == 16


# --- errors


@pytest.mark.parametrize(
    ("mesh", "says", "remedy"),
    [
        ({"data": "2n"}, "sw.prove: axis 'data' has size '2n'", 'mesh={"data": "n"}, or'),
        ({"data": ""}, "sw.prove: axis 'data' has size ''", 'mesh={"data": "n"}, or'),
        ({"data": "auto"}, "sw.prove: axis 'data' has size 'auto'", 'mesh={"data": "n"}, or'),
        ({"data": "8"}, "axis 'data' has size '8'", "data=8, without quotes"),
        ({"data": ["n", 2]}, "axis 'data' has size 'n'", 'for every size: {"data": "n"}'),
        ([{"data": "n"}], "axis 'data' has size 'n'", 'for every size: {"data": "n"}'),
        ({"data": "n", "model": [1, 2]}, "axis 'model' has 2 sizes", "a call for each"),
        ({"data": "n", "model": 0}, "axis 'model' has size 0", "model=1 is the smallest"),
        ({"data": "n", "model": []}, "axis 'model' has size 0", "model=1 is the smallest"),
        ({"data": "n", "model": "m"}, "cut no dimension of the arguments along 'model'", "model"),
    ],
)
def test_what_is_no_size(mesh, says, remedy):
    with pytest.raises(sw.ShardingError) as caught:
        sw.prove(training(right), *of_rows(8), mesh=mesh)
    assert says in str(caught.value)
    assert remedy in str(caught.value).split("Remedy: ")[1]


@pytest.mark.parametrize(
    ("rows", "says"), [(1, "1 is the only size that divides"), (0, "only empty dimensions")]
)
def test_rows_that_no_size_divides(rows, says):
    with pytest.raises(sw.ShardingError, match=says):
        sw.prove(training(right), *of_rows(rows), mesh={"data": "n"})


def test_a_fixed_size_that_does_not_divide():
    with pytest.raises(sw.ShardingError, match="a dimension does not divide"):
        sw.prove(mean(BOTH, BOTH), *shapes((48,)), mesh={"data": "n", "model": 5})


def test_a_program_without_shard_map():
    with pytest.raises(sw.ShardingError, match="no shard_map: the compiler partitions it"):
        sw.prove(lambda x: x.sum(), *shapes((8,)), mesh={"data": "n"})


def test_too_many_combinations():
    with pytest.raises(sw.ShardingError, match="57600 combinations"):
        sw.prove(mean(BOTH, *BOTH), *shapes((720720, 720720)), mesh={"data": "n", "model": "m"})


def test_simulate_takes_a_number():
    with pytest.raises(sw.ShardingError, match="takes a letter alone"):
        sw.simulate(training(right), mesh={"data": "n"})  # pyright: ignore[reportArgumentType]


# --- check, cases and the command line


def test_check_runs_the_sizes_up_to_8():
    args = normal(5, 4), normal(48, 5), normal(48, 4)
    verdict = sw.check(training(right), *args, mesh={"data": "n"}, fix=False)
    assert verdict
    assert verdict.meshes == tuple(f"{{data: {n}}}" for n in (1, 2, 3, 4, 6, 8))
    verdict = sw.check(sharded(heads), normal(16), mesh={"data": "n"}, fix=False)
    assert verdict.meshes == ("{data: 1}", "{data: 2}", "{data: 4}")
    assert "The program does not accept data = 8: AssertionError" in str(verdict)
    with pytest.raises(sw.ShardingError, match="on sizes from 2 to 8, and none is among"):
        sw.check(sharded(heads), normal(11), mesh={"data": "n"})


CASES = """
import jax, jax.numpy as jnp
from jax import P, lax
import shardwise as sw

def total(x, *, mesh):
    body = lambda x: lax.psum(x.sum(), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

def mean(x, *, mesh):
    body = lambda x: lax.psum(x.mean(), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

@sw.case(mesh={"data": "n"})
def right():
    return total, (jnp.arange(48.0),)

@sw.case(mesh={"data": [2, 4]})
def wrong():
    return mean, (jnp.arange(48.0),)
"""


def run(tmp_path, command, *options):
    file = tmp_path / "cases.py"
    file.write_text(CASES)
    return CliRunner().invoke(app, [*command.split(), str(file), *options])


def test_the_command_line(tmp_path):
    found = run(tmp_path, "prove -k right")
    assert found.exit_code == 0
    assert "every size of data that divides 48 (10 sizes: 1, 2, 3, 4, 6, 8" in found.output
    found = run(tmp_path, "prove --mesh data=n,model=2 --no-run -k wrong")
    assert found.exit_code == 1
    assert "REFUTED for data = 2 to 48; proved for data = 1" in found.output
    assert found.output.count("SW") == 1


def test_json_lists_all_sizes(tmp_path):
    found = run(tmp_path, "prove -k right --format json")
    (case,) = json.loads(found.stdout)["cases"]
    assert len(case["verdict"]["meshes"]) == len(case["verdict"]["results"]) == 10
    assert case["verdict"]["every"] == {
        "rule": "every size of data that divides 48",
        "meshes": case["verdict"]["meshes"],
        "not_accepted": [],
        "not_reached": [],
        "because": "",
    }


@pytest.mark.parametrize("sizes", ["2n", "n,2", "2,n", "", "nn"])
def test_what_is_no_size_on_the_command_line(tmp_path, sizes):
    found = run(tmp_path, "prove", "--mesh", f"data={sizes}")
    assert found.exit_code == 2
    assert "is not a size of axis 'data'" in found.output


def test_commands_that_take_one_mesh(tmp_path):
    for command in ("explain", "inspect"):
        assert "total on {data: 8}" in run(tmp_path, command).output
