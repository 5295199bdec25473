"""The gallery: each program on real virtual devices, simulated, and against its dense reference."""

import functools
import importlib.util
import inspect
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from typer.testing import CliRunner

import shardwise as sw
from shardwise._analysis.check import Case
from shardwise._cli import app
from shardwise._cli.status import ExitCode

from .optional import needed

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(file for file in EXAMPLES.glob("[!_]*.py") if "AXES =" in file.read_text())
SHAPES = {1: [(2,), (8,)], 2: [(2, 2), (2, 4)]}


@functools.cache
def load(name):
    path = next(file for file in FILES if file.stem == name)
    spec = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def real(name, shape):
    """What the devices themselves say."""
    module = load(name)
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    step = functools.partial(module.step, mesh=Mesh(devices, module.AXES))
    return jax.jit(step)(*module.example_args())


@functools.cache
def dense(name):
    module = load(name)
    return jax.jit(module.reference)(*module.example_args())


def assert_close(got, expected, **tolerances):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **tolerances, err_msg=jax.tree_util.keystr(path))


def cases():
    return [
        pytest.param(file.stem, shape, id=f"{file.stem}-{'x'.join(map(str, shape))}")
        for file in FILES
        for shape in SHAPES[len(load(file.stem).AXES)]
    ]


names = pytest.mark.parametrize("name", [file.stem for file in FILES])


def test_the_gallery_is_complete():
    assert [file.stem for file in FILES] == [
        "data_parallel",
        "mixture_of_experts",
        "pipeline",
        "ring_attention",
        "tensor_parallel",
        "transformer_2d",
        "zero",
    ]


@names
def test_all_examples_have_the_same_form(name):
    module = load(name)
    assert inspect.signature(module.step).parameters["mesh"].kind is inspect.Parameter.KEYWORD_ONLY
    assert {"Placement", "Communication", "The trap"} <= {
        line.split(":")[0] for line in module.__doc__.splitlines()
    }
    assert_close(module.example_args(0), module.example_args(), rtol=0)
    assert any(
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(
            jax.tree.leaves(module.example_args(0)),
            jax.tree.leaves(module.example_args(1)),
            strict=True,
        )
    )


@pytest.mark.parametrize(("name", "shape"), cases())
def test_on_devices_it_equals_the_reference(name, shape):
    assert_close(real(name, shape), dense(name), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("at_once", [1, 3])
@names
def test_simulated_it_equals_the_devices(name, at_once):
    module = load(name)
    shape = SHAPES[len(module.AXES)][-1]
    mesh = sw.mesh(dict(zip(module.AXES, shape, strict=True)))
    got = sw.simulate(module.step, mesh=mesh, at_once=at_once)(*module.example_args())
    assert_close(got, real(name, shape), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_ring_attention_and_its_gradient(causal):
    module = load("ring_attention")
    args = module.example_args()

    def train(attention, *args):
        loss = lambda *args: jnp.sum(jnp.sin(attention(*args, causal=causal)))  # noqa: E731
        return jax.value_and_grad(loss, (0, 1, 2))(*args)

    def step(*args, mesh):
        return train(functools.partial(module.step, mesh=mesh), *args)

    mesh = Mesh(np.array(jax.devices()[:4]), module.AXES)
    on_devices = jax.jit(functools.partial(step, mesh=mesh))(*args)
    simulated = sw.simulate(step, mesh=sw.mesh(sequence=4))(*args)
    expected = jax.jit(functools.partial(train, module.reference))(*args)
    assert_close(on_devices, expected, rtol=1e-5, atol=5e-6)
    assert_close(simulated, on_devices, rtol=1e-5, atol=2e-6)


def test_experts_drop_the_same_tokens_on_every_mesh():
    _, served = dense("mixture_of_experts")
    tokens = load("mixture_of_experts").example_args()[1]
    assert 0 < served.sum() < tokens[..., 0].size
    for size in (2, 8):
        np.testing.assert_array_equal(real("mixture_of_experts", (size,))[1], served)


def test_the_comparison_finds_the_textbook_mistake(monkeypatch):
    """Without the cast to varying the gradient is 8 times too large, and nothing else says so."""
    module = load("data_parallel")
    args = module.example_args()
    monkeypatch.setattr(jax.lax, "pcast", lambda x, *_, **__: x)
    mesh = Mesh(np.array(jax.devices()), module.AXES)
    step = jax.jit(functools.partial(module.step, mesh=mesh))
    wrong, right = step(*args)[0], dense("data_parallel")[0]
    moved = jax.tree.map(lambda new, old: np.asarray(new) - np.asarray(old), wrong, args[0])
    should = jax.tree.map(lambda new, old: np.asarray(new) - np.asarray(old), right, args[0])
    np.testing.assert_allclose(moved["w1"], 8 * should["w1"], rtol=1e-3, atol=1e-5)
    with pytest.raises(AssertionError):
        assert_close(wrong, right, rtol=1e-5, atol=5e-6)


@names
def test_main_prints_a_comparison(name, capsys):
    load(name).main()
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title
    assert "largest difference" in header
    assert len(rows) >= 3
    assert all(float(row.split()[-1]) < 1e-5 for row in rows)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("[!_]*.py")), ids=lambda file: file.stem)
def test_the_command_line_takes_every_example_as_it_is(file):
    """Explaining traces the case: it stands, and what it returns fits its meshes."""
    if file.stem == "train_digits":
        needed("flax", "the training example")
    done = CliRunner().invoke(app, ["explain", str(file), "--format", "json"])
    assert done.exit_code == ExitCode.OK, done.output
    (found,) = json.loads(done.stdout)
    assert found["report"]["collectives"] or file.stem == "evaluate_npy"


@names
def test_it_is_explained_at_the_size_of_the_real_thing(name):
    """Shapes of gigabytes, on a mesh that no machine here has; nothing is computed."""
    module = load(name)
    (case,) = [value for value in vars(module).values() if isinstance(value, Case)]
    f, args = case.explain()
    assert f is module.step
    assert sum(leaf.size for leaf in jax.tree.leaves(args)) > 2**27
    assert jax.tree.structure(args) == jax.tree.structure(module.example_args())
    assert np.prod(list(case.explain_mesh.values())) >= 8


def test_digits_are_learnt_on_eight_devices(tmp_path):
    """The training example, shorter: fit, evaluate and checkpoints, on a virtual mesh."""
    needed("sklearn", "the training example")
    path = EXAMPLES / "train_digits.py"
    spec = importlib.util.spec_from_file_location("examples_train_digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.train(tmp_path, 150, sw.mesh(data=module.DEVICES), progress=False)
    assert result.count == 359
    assert result["accuracy"] > 0.97
    assert {"100", "150", "log.jsonl"} <= {path.name for path in tmp_path.iterdir()}
