"""`prove`: what it says of right and wrong programs, of shapes, of meshes of any size."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax, shard_map
from typer.testing import CliRunner

import shardwise as sw
from shardwise._cli import app
from tests.support import normal

WHOLE = P()
SPECS = (WHOLE, P("data"), P("data"))


def shapes(*sizes, dtype=jnp.float32):
    return [jax.ShapeDtypeStruct(size, dtype) for size in sizes]


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def sharded(body, in_specs=SPECS, out_specs=WHOLE, **options):
    def step(*args, mesh):
        return shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)(*args)

    return step


def of_the_mean(w, x, y):
    return jax.grad(lambda w: lax.pmean(loss(w, x, y), "data"))(w)


def mean_of_the(w, x, y):
    return lax.pmean(jax.grad(loss)(w, x, y), "data")


def alone(w, x, y):
    return jax.grad(loss)(w, x, y)


def varying(w, x, y):
    return lax.pmean(jax.grad(loss)(lax.pcast(w, "data", to="varying"), x, y), "data")


LARGE = shapes((512, 10), (1 << 20, 512), (1 << 20, 10))


@pytest.mark.parametrize(
    ("body", "check_vma", "status", "says"),
    [
        (mean_of_the, True, "refuted", "1024 times"),
        (mean_of_the, False, "proved", ""),
        (of_the_mean, True, "proved", ""),
        (of_the_mean, False, "refuted", "own mean, not the mean over 'data'"),
        (alone, True, "refuted", "1024 times"),
        (alone, False, "refuted", "own mean, not the mean over 'data'"),
        (varying, True, "proved", ""),
    ],
)
def test_the_four_idioms_of_gradients(body, check_vma, status, says):
    step = sharded(body, check_vma=check_vma)
    proof = sw.prove(step, *LARGE, mesh=sw.mesh(data=1024), run=False)
    assert proof.status == status, proof
    assert says in str(proof)


def layer(body):
    specs = (P(), P(None, "model"), P("model"), P())
    return sharded(body, specs, check_vma=False)


LAYER = shapes((8, 16), (16, 64), (64, 16), (16,))


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (
            lambda x, w1, w2, b: lax.psum(jax.nn.gelu(x @ w1) @ w2 + b, "model"),
            "SW404",
            "counts a value 8 times",
        ),
        (
            lambda x, w1, w2, b: lax.pmean(jax.nn.gelu(x @ w1) @ w2, "model") + b,
            "SW402",
            "is 1/8 of what it is on one device: it is averaged over 'model'",
        ),
        (
            lambda x, w1, w2, b: jax.nn.gelu(x @ w1) @ w2 + b,
            "SW403",
            "only the first device's share of a sum over 'model'",
        ),
        (
            lambda x, w1, w2, b: lax.psum(jnp.tanh(jax.nn.gelu(x @ w1) @ w2), "model"),
            "SW405",
            "tanh is not linear",
        ),
    ],
    ids=["bias before the sum", "averaged", "no sum", "activation before the sum"],
)
def test_a_layer_that_is_split_wrongly_is_told_as_a_colleague_would(body, code, says):
    proof = sw.prove(layer(body), *LAYER, mesh=sw.mesh(model=8), run=False)
    assert not proof
    assert proof.findings[0].code == code, proof
    assert says in str(proof)
    assert proof.findings[0].where.file == __file__


def test_a_bias_that_is_divided_first_is_proved():
    def body(x, w1, w2, b):
        return lax.psum(jax.nn.gelu(x @ w1) @ w2 + b / lax.axis_size("model"), "model")

    assert sw.prove(layer(body), *LAYER, mesh=sw.mesh(model=8))


def test_numbers_confirm_what_meaning_cannot_decide():
    def body(x, w1, w2, b):
        return lax.psum(jnp.tanh(jax.nn.gelu(x @ w1) @ w2), "model")

    args = normal(8, 16), normal(16, 64), normal(64, 16), normal(16)
    proof = sw.prove(layer(body), *args, mesh=sw.mesh(model=4))
    assert proof.status == "refuted"
    assert "By numbers, on {model: 4}" in str(proof)


def test_a_program_that_is_right_and_not_followed_is_unknown_and_says_what_numbers_say():
    def body(x):
        best = lax.all_gather(lax.top_k(x, 2)[0], "data", tiled=True)
        return lax.top_k(best, 2)[0]

    step = sharded(body, P("data"), check_vma=False)
    proof = sw.prove(step, normal(16), mesh=sw.mesh(data=4))
    assert proof.status == "unknown"
    assert proof.findings[0].code == "SW409"
    assert not proof.findings[0].certain
    assert "every result is right" in proof.numbers


def test_every_combination_of_sizes_is_proved():
    proof = sw.prove(sharded(of_the_mean), *LARGE, mesh={"data": [1, 2, 4, 8], "model": [1, 2]})
    assert proof
    assert len(proof.meshes) == 8
    assert len(proof.results) == 8


def test_a_reference_is_a_plain_function():
    step = sharded(of_the_mean)
    assert sw.prove(step, *LARGE, mesh=sw.mesh(data=8), reference=jax.grad(loss))
    twice = sw.prove(
        step,
        *LARGE,
        mesh=sw.mesh(data=8),
        reference=lambda w, x, y: 2 * jax.grad(loss)(w, x, y),
        run=False,
    )
    assert twice.status == "refuted"


def test_results_of_another_structure_are_refused():
    with pytest.raises(sw.ShardingError, match="Both return the same structure"):
        sw.prove(
            sharded(of_the_mean), *LARGE, mesh=sw.mesh(data=8), reference=lambda *a: (1.0, 2.0)
        )


def test_a_size_that_does_not_divide_is_told():
    with pytest.raises(sw.ShardingError):
        sw.prove(sharded(of_the_mean), *LARGE, mesh=sw.mesh(data=3))


@pytest.mark.parametrize("wrong", [3, None, "step"])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(sw.ShardwiseError, match=r"sw\.prove: f is a"):
        sw.prove(wrong, 1.0, mesh=sw.mesh(data=2))


def test_a_collective_that_some_may_not_reach_is_not_proved():
    def body(x):
        def vary(v):
            return lax.pcast(v, "data", to="varying")

        mine = jnp.sum(x)
        return lax.psum(
            lax.cond(mine > 3, lambda v: vary(lax.pmean(v, "data")), lambda v: v, mine), "data"
        )

    proof = sw.prove(sharded(body, P("data")), normal(8), mesh=sw.mesh(data=4), run=False)
    assert not proof
    assert "SW202" in [finding.code for finding in proof.findings]


def test_the_proof_is_data_text_and_html():
    proof = sw.prove(sharded(mean_of_the), *LARGE, mesh=sw.mesh(data=8), run=False)
    data = json.loads(json.dumps(proof.to_dict()))
    assert data["status"] == "refuted"
    assert data["results"][0]["path"] == "result"
    assert data["findings"][0]["where"]["line"] == proof.findings[0].where.line
    assert "8 times" in proof._repr_html_()
    assert repr(proof) == str(proof)
    with pytest.raises(sw.ShardwiseError, match="8 times"):
        proof.raise_if_not_proved()


CASES = """
import jax, jax.numpy as jnp
from jax import P, lax
import shardwise as sw

x = jax.ShapeDtypeStruct((64,), jnp.float32)

def total(reduce):
    def step(x, *, mesh):
        body = lambda x: reduce(x.sum(), "data")
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)
    return step

@sw.case(mesh={"data": [2, 64]})
def right():
    return total(lax.psum), (x,)
"""

WRONG = """
@sw.case(mesh={"data": 64})
def wrong():
    return total(lax.pmean), (x,)
"""


@pytest.mark.parametrize(("text", "code"), [(CASES, 0), (CASES + WRONG, 1), ("1 / 0", 2)])
def test_the_command_exits_with_what_it_found(tmp_path, text, code):
    file = tmp_path / "cases.py"
    file.write_text("import shardwise as sw\nsw.case\n" + text if code == 2 else text)
    result = CliRunner().invoke(app, ["prove", str(file), "--no-run"])
    assert result.exit_code == code, result.output
    if code == 1:
        assert "1/64 of what it is on one device" in " ".join(result.stdout.split())


def test_the_command_takes_other_meshes_and_gives_json(tmp_path):
    file = tmp_path / "cases.py"
    file.write_text(CASES)
    result = CliRunner().invoke(app, ["prove", str(file), "--mesh", "data=8", "--format", "json"])
    (case,) = json.loads(result.stdout)["cases"]
    assert case["verdict"]["meshes"] == ["{data: 8}"]
    assert case["verdict"]["status"] == "proved"


@pytest.mark.parametrize("number", [-1, 2, 5])
def test_a_branch_whose_number_is_known_is_the_one_that_runs(number):
    def body(x):
        size = lax.axis_size("data")
        index = jnp.zeros((), jnp.int32) + number * size // size
        branches = [lambda x: x, lambda x: 3 * x, lambda x: 2 * x]
        return lax.psum(lax.switch(index, branches, x).sum(), "data")

    step = sharded(body, in_specs=P("data"))
    factor = 1 if number < 0 else 2  # numbers outside of the branches are clamped
    proof = sw.prove(
        step, *shapes((8,)), mesh={"data": [1, 4]}, reference=lambda x: factor * x.sum(), run=False
    )
    assert proof, proof
