"""Wrong use, in words that help."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import shardwise as sw

from ..support import normal, real_mesh

MESH = real_mesh(data=4)
BATCH = {"x": normal(8, 3), "y": normal(8, seed=1)}
SEVEN = {name: array[:7] for name, array in BATCH.items()}
PARAMS = {"w": jnp.ones(3)}


def squares(params, batch):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def run(loss=squares, batch=BATCH, params=PARAMS, **options):
    step = sw.data_parallel(loss, optax.sgd(0.1), **{"mesh": MESH, **options})
    return step(step.init(params), batch)


def aux(metrics):
    return lambda p, b: (squares(p, b), metrics)


MASKED = lambda p, b: (squares(p, b) * (b["y"] > 0)).sum() / (b["y"] > 0).sum()  # noqa: E731


@pytest.mark.parametrize("wrong", ["banana", "AUTO", 0, -1, 1.5, True, None])
def test_at_once_is_refused_when_the_step_is_made_on_any_mesh(wrong):
    def refused(make):
        with pytest.raises(sw.ShardingError) as told:
            make()
        return str(told.value).partition(": ")[2]

    rule = refused(lambda: sw.simulate(squares, at_once=wrong))
    assert rule.startswith(f"at_once is {wrong!r}")
    for mesh in (None, MESH, sw.mesh(data=2)):
        options = {"mesh": mesh, "at_once": wrong}
        assert refused(lambda o=options: sw.data_parallel(squares, optax.sgd(0.1), **o)) == rule
        assert refused(lambda o=options: sw.nnx.data_parallel(squares, **o)) == rule


@pytest.mark.parametrize(
    "optimizer", [optax.lbfgs(), optax.scale_by_backtracking_linesearch(5)], ids=["lbfgs", "search"]
)
def test_an_optimizer_that_evaluates_the_loss_again(optimizer):
    says = "the optimizer: its update takes value_fn"
    for mesh in (MESH, sw.mesh(data=2)):
        step = sw.data_parallel(squares, optimizer, mesh=mesh)
        with pytest.raises(sw.UnsupportedError, match=says):
            step(step.init(PARAMS), BATCH)
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        held = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
        step = sw.nnx.data_parallel(lambda m, b: m(b["x"])[:, 0] ** 2, mesh=mesh)
        with pytest.raises(sw.UnsupportedError, match=says):
            step(model, held, BATCH)


def inner():
    return optax.sgd(0.1)


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (optax.contrib.sam(inner(), inner(), opaque_mode=True), "grad_fn(.|\\n)*opaque_mode=False"),
        (optax.chain(optax.lookahead(inner(), 5, 0.5)), "two sets of params"),
        (
            optax.contrib.differentially_private_aggregate(1.0, 1.0, key=jax.random.key(0)),
            "one gradient for each example",
        ),
    ],
    ids=["sam", "lookahead", "private"],
)
def test_an_optimizer_that_wants_more_than_a_gradient(optimizer, says):
    step = sw.data_parallel(squares, optimizer, mesh=MESH)
    with pytest.raises(sw.UnsupportedError, match=f"the optimizer: .*{says}"):
        step(step.init(PARAMS), BATCH)


def test_the_params_of_lookahead():
    params = optax.LookaheadParams.init_synced(PARAMS)
    loss = lambda p, b: squares(p.fast, b)  # noqa: E731
    step = sw.data_parallel(loss, optax.lookahead(inner(), 5, 0.5), mesh=MESH)
    with pytest.raises(sw.UnsupportedError, match="two sets of params"):
        step(step.init(params), BATCH)


def test_lookahead_does_not_take_the_blame_for_what_is_inside_it():
    called = []
    optimizer = optax.lookahead(optax.sgd(lambda count: called.append(count) or 0.1), 5, 0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    step = sw.data_parallel(lambda p, b: squares(p.fast, b), optimizer, mesh=MESH)
    with pytest.raises(sw.UnsupportedError, match="two sets of params"):
        step(step.init(params), BATCH)
    assert not called


class Boxed(nn.Module):
    @nn.compact
    def __call__(self, x):
        kernel = nn.with_partitioning(nn.initializers.ones, (None, "model"))
        return nn.Dense(1, kernel_init=kernel)(x)[:, 0]


def test_variables_that_are_to_be_split():
    def loss(variables, batch):
        return (Boxed().apply(variables, batch["x"]) - batch["y"]) ** 2

    variables = Boxed().init(jax.random.key(0), BATCH["x"])
    for mesh in (MESH, sw.mesh(data=4), sw.mesh(data=4, model=2)):
        step = sw.data_parallel(loss, optax.sgd(0.1), mesh=mesh)
        for given in (variables, variables["params"]):
            with pytest.raises(
                sw.ShardingError, match=r"'kernel'\].* by \(None, 'model'\)"
            ) as told:
                step.init(given)
        assert "nn.unbox(variables)" in str(told.value)
        step(step.init(nn.unbox(variables)), BATCH)


def test_variables_that_name_no_axis_of_a_mesh_are_taken():
    boxed = nn.LogicallyPartitioned(jnp.ones(3), ("embed",))
    run(lambda p, b: squares({"w": p["w"].unbox()}, b), params={"w": boxed})


@pytest.mark.parametrize("name", ["a", np.array(["a"])], ids=["str", "array"])
def test_text_in_a_collection(name):
    step = sw.data_parallel(lambda v, b: squares(v["params"], b), optax.sgd(0.1), mesh=MESH)
    more = {"params": PARAMS, "stats": {"n": 3, "key": jax.random.key(0), "x": np.ones(2)}}
    step(step.init(more), BATCH)
    with pytest.raises(sw.ShardingError, match=r"the collections: \['about'\]\['name'\] is"):
        step.init({**more, "about": {"name": name}})


@pytest.mark.parametrize(
    "seed",
    [
        jnp.float32(5),
        jax.random.split(jax.random.key(0), 2),
        jax.random.split(jax.random.PRNGKey(0), 2),
        np.arange(2),
        np.arange(2, dtype=np.uint64),
        jnp.arange(2),
        jnp.arange(3, dtype=jnp.uint32),
        0.5,
    ],
    ids=["float", "keys", "old keys", "numpy", "wide", "numbers", "long", "python"],
)
def test_a_seed_that_is_none(seed):
    with pytest.raises(sw.ShardingError, match=r"argument 'seed'(.|\n)*seed=0"):
        sw.data_parallel(lambda p, b, key: squares(p, b), optax.sgd(0.1), rng="shard", seed=seed)


@pytest.mark.parametrize(
    "seed",
    [
        *(5, np.int64(5), jnp.int32(5), True, jax.random.PRNGKey(5), jax.random.key(5)),
        np.asarray(jax.random.PRNGKey(5)),
    ],
    ids=repr,
)
def test_a_seed(seed):
    run(lambda p, b, key: squares(p, b), rng="shard", seed=seed)


def test_what_it_is_told_to_take_instead_works():
    step = sw.data_parallel(squares, optax.lbfgs(0.1, linesearch=None), mesh=MESH)
    state, first = step(step.init(PARAMS), BATCH)
    for _ in range(5):
        state, last = step(state, BATCH)
    assert last["loss"] < first["loss"]


def test_another_type_error_of_an_optimizer_stays_what_it_is():
    def update(grads, state, params=None):
        raise TypeError("f() missing 1 required keyword-only argument: 'other'")

    optimizer = optax.GradientTransformation(lambda params: (), update)
    step = sw.data_parallel(squares, optimizer, mesh=MESH)
    with pytest.raises(TypeError, match="'other'"):
        step(step.init(PARAMS), BATCH)


def centred(p, b):
    return squares(p, {**b, "x": b["x"] - b["x"].mean(0)})


def as_weights(p, b):
    return squares(p, b), (b["y"] > 0) / (b["y"] > 0).sum()


def shifted(p, b):
    z = b["x"] * p["w"]
    return jnp.log(jnp.exp(z - z.max()).sum(-1)) + z.max()


def scaled_and_back(p, b):
    scale = abs(b["x"]).max()
    return (b["x"] / scale @ p["w"] * scale - b["y"]) ** 2


def normalized(p, b):
    return (squares(p, b) - squares(p, b).mean()) / squares(p, b).std()


@pytest.mark.parametrize(
    ("loss", "of"),
    [
        (centred, "these values"),
        (normalized, "these values"),
        (lambda p, b: squares(p, b) / squares(p, b).max(), "these values"),
        (lambda p, b: jax.nn.softmax(squares(p, b)), "these values"),
        (as_weights, "these weights"),
        (lambda p, b: jnp.stack([squares(p, b), centred(p, b)], 1), "these values"),
    ],
)
@pytest.mark.parametrize("mesh", [MESH, sw.mesh(data=1), sw.mesh(data=8)], ids=str)
def test_rows_that_use_what_the_rows_of_a_device_have_in_common(loss, of, mesh):
    with pytest.raises(sw.ShardingError) as told:
        run(loss, mesh=mesh)
    assert f"its 'loss' has one per row, but {of} are not independent" in str(told.value)
    assert "test_misuse.py:" in str(told.value)
    assert "lax.pmean(x.mean(0), 'data')" in str(told.value)
    run(loss, mesh=mesh, statistics="shard")


def test_a_metric_per_row_that_uses_the_others():
    with pytest.raises(sw.ShardingError, match="its 'own' has one per row"):
        run(lambda p, b: (squares(p, b), {"own": centred(p, b)}), has_aux=True)


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b: squares(p, {**b, "x": b["x"] - jax.lax.pmean(b["x"].mean(0), "data")}),
        lambda p, b: jax.nn.log_softmax(b["x"] * p["w"])[:, 0],
        lambda p, b: (squares(p, b), b["y"] > 0),
        lambda p, b: jax.lax.map(lambda row: (row[0] @ p["w"] - row[1]) ** 2, (b["x"], b["y"])),
        lambda p, b: squares(p, b) + (p["w"] ** 2).sum(),
        shifted,
        scaled_and_back,
        lambda p, b: jax.nn.log_softmax(b["x"] * p["w"] - b["x"].mean())[:, 0],
        lambda p, b: jnp.minimum(squares(p, b), squares(p, b).max()),
    ],
)
def test_rows_that_do_not(loss):
    want = run(loss, mesh=sw.mesh(data=1))[1]["loss"]
    assert np.allclose(run(loss)[1]["loss"], want, rtol=1e-6)


@pytest.mark.parametrize("right", [1, np.int64(2), "auto"])
def test_at_once_is_taken(right):
    for mesh in (MESH, sw.mesh(data=2)):
        run(mesh=mesh, at_once=right)


@pytest.mark.parametrize("mesh", [MESH, sw.mesh(data=1), sw.mesh(data=8)], ids=str)
@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda p, b: squares(p, b).sum(), "'loss' is a scalar that sums over its rows"),
        (lambda p, b: squares(p, b).sum() + (p["w"] ** 2).sum(), "sums over its rows"),
        (lambda p, b: jnp.sqrt(squares(p, b).mean()), "not the mean of its rows: sqrt"),
        (MASKED, r"division by a share is not linear.*test_misuse.py"),
        (lambda p, b: squares(p, b).max(), "not the mean of its rows"),
        (lambda p, b: jnp.nanmean(squares(p, b)), "not the mean of its rows: division"),
    ],
)
def test_a_scalar_that_is_no_mean(loss, says, mesh):
    with pytest.raises(sw.ShardingError, match=says):
        run(loss, mesh=mesh)


def test_a_metric_that_adds_its_rows_up():
    def loss(p, b):
        return squares(p, b), {"large": jnp.sum(squares(p, b) > 1)}

    with pytest.raises(sw.ShardingError, match="'large' is a scalar that sums over its rows"):
        run(loss, has_aux=True)


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b: squares(p, b).mean() + 0.1 * (p["w"] ** 2).sum(),
        lambda p, b: 3 * squares(p, b).sum() / b["y"].size,
        lambda p, b: jax.vmap(lambda x, y: (x @ p["w"] - y) ** 2)(b["x"], b["y"]).mean(),
        lambda p, b: jax.lax.pmean(squares(p, b).mean(), "data"),
        lambda p, b: jnp.float32(2.0),
        lambda p, b: jnp.nan_to_num(squares(p, b).mean()),
        lambda p, b: jnp.linalg.norm(b["x"] @ p["w"]) ** 2 / b["y"].size,
        lambda p, b: jnp.where(jnp.isnan(squares(p, b)), 0, squares(p, b)).mean(),
    ],
)
def test_a_scalar_that_is_a_mean(loss):
    want = run(loss, mesh=sw.mesh(data=1))[1]["loss"]
    assert np.allclose(run(loss)[1]["loss"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"batch": {**BATCH, "y": BATCH["y"][:7]}},
            ["x'\\]: 8 rows", "y'\\]: 7 rows", "same number"],
        ),
        ({"batch": {**BATCH, "scale": 2.0}}, [r"batch\['scale'\]: a scalar", "functools.partial"]),
        ({"batch": {}}, ["no leaves"]),
        ({"batch": {"x": np.ones((0, 3))}}, ["it has no rows", "at least one"]),
        ({"batch": [[1.0, 2.0], [3.0, 4.0]]}, [r"batch\[0\]\[0\] is a float", "np.asarray"]),
        ({"batch": {**BATCH, "name": np.array(["a"] * 8)}}, [r"\['name'\] is .* <U1", "encode"]),
        ({"loss": lambda p, b, key: squares(p, b)}, [r"called with \(params, batch\)", "rng="]),
        ({"rng": "shard"}, [r"called with \(params, batch, rng\)"]),
        ({"params": {"w": jnp.ones(3), "n": jnp.arange(2)}}, [r"\['n'\] is of dtype int32"]),
        ({"params": {"w": jnp.ones(3), "name": "a"}}, [r"\['name'\] is a str"]),
        ({"params": {"w": 1.0}}, [r"\['w'\] is a float", r"jnp.asarray\(1.0\)"]),
        ({"axis": "dta"}, ["did you mean 'data'"]),
        ({"axis": 0}, ["axis 0 is not an axis"]),
        ({"seed": None}, ["seed is None", "an integer or a single key"]),
        (
            {"batch": {**BATCH, "day": np.zeros(8, "M8[D]")}},
            [r"\['day'\] is .* datetime64"],
        ),
        ({"batch": {**BATCH, "o": np.ones(8, object)}}, [r"\['o'\] is .* object", "astype"]),
        ({"batch": {**BATCH, "v": np.zeros(8, "V4")}}, [r"\['v'\] is .* \|V4"]),
        ({"batch": {**BATCH, "s": np.zeros(8, "f4,i4")}}, [r"\['s'\] is", r"x\['f0'\]"]),
        (
            {"batch": {**BATCH, "long": np.ones(8, np.clongdouble)}},
            [r"\['long'\] is an array of dtype complex", "complex128"],
        ),
        ({"batch": {**BATCH, "id": 2**31 + np.arange(8)}}, [r"\['id'\]: 2147483648 .* int32"]),
        ({"batch": {**BATCH, "id": np.full(8, 2**32, np.uint64)}}, [r"4294967296 .* uint32"]),
        ({"batch": {**BATCH, "z": np.r_[np.nan, np.inf, 6 * [-1e39]]}}, [r"-1e\+39 .* float32"]),
        ({"batch": {**BATCH, "z": np.full(8, 1e39j)}}, [r"1e\+39j .* complex64"]),
        ({"batch": {**BATCH, "m": np.ma.ones(8)}}, [r"\['m'\] is a MaskedArray", "filled"]),
        ({"loss": lambda p, b: (squares(p, b), squares(p, b) * 1j)}, ["dtype complex64"]),
        ({"loss": aux({1: 1.0}), "has_aux": True}, ["metric named 1", "text"]),
        ({"loss": aux({"step": 1.0}), "has_aux": True}, ["metric named 'step'", "sw.fit"]),
        (
            {
                "loss": aux({"a": "x"}),
                "has_aux": True,
                "batch": SEVEN,
            },
            ["its 'a' is a str"],
        ),
        ({"accumulate": 0}, ["accumulate is 0"]),
        ({"rng": "row"}, ["rng is 'row'", "'example'"]),
        ({"statistics": "all"}, ["statistics is 'all'"]),
        ({"mutable": "batch_stats"}, ["no collection 'batch_stats'"]),
        ({"loss": lambda p, b: jnp.ones(5)}, [r"shape \[5\] for 2 rows"]),
        ({"loss": lambda p, b: squares(p, b) > 1}, ["dtype bool", "astype"]),
        ({"loss": lambda p, b: (squares(p, b), {})}, ["has_aux=True"]),
        ({"loss": lambda p, b: [squares(p, b)]}, ["a list of 1"]),
        ({"loss": lambda p, b: (squares(p, b), jnp.ones((2, 2)))}, [r"weights \[2, 2\]"]),
        ({"loss": lambda p, b: squares(p, b) + 1j}, ["complex64"]),
        ({"loss": squares, "has_aux": True}, ["a pair: the losses, and a dict"]),
        (
            {"loss": lambda p, b: (squares(p, b), {"loss": squares(p, b)}), "has_aux": True},
            ["metric named 'loss'", "another name"],
        ),
    ],
    ids=lambda case: None,
)
def test_what_is_wrong_is_said(wrong, says):
    with pytest.raises(sw.ShardingError) as error:
        run(**wrong)
    for words in says:
        assert error.match(words)


@pytest.mark.parametrize("mesh", [MESH, sw.mesh(data=4)], ids=["real", "virtual"])
def test_numbers_that_fit_are_taken_and_other_bytes_are_turned_around(mesh):
    want = run(batch=BATCH, mesh=mesh)[1]["loss"]
    batch = {
        "x": BATCH["x"].astype(">f8"),
        "y": BATCH["y"].astype(">f4"),
        "id": np.r_[-(2**31), 2**31 - 1, np.zeros(6, np.int64)],
        "z": np.r_[np.nan, -np.inf, np.ones(6)],
        "none": np.zeros((8, 0)),
    }
    assert run(batch=batch, mesh=mesh)[1]["loss"] == want


def test_with_64_bits_nothing_is_too_large():
    with jax.enable_x64(True):
        ids = 2**40 + np.arange(8)
        loss = lambda p, b: squares(p, b) * 0 + (b["id"] - 2**40)  # noqa: E731
        assert run(loss=loss, batch={**BATCH, "id": ids})[1]["loss"] == 3.5


def test_a_list_of_rows_is_told_in_a_few_lines():
    batch = {"x": list(np.ones((5000, 3), np.float32)), "y": np.ones(5000, np.float32)}
    with pytest.raises(sw.ShardingError, match=r"and 4993 more(.|\n)*np.stack") as error:
        run(batch=batch)
    assert len(str(error.value).splitlines()) < 15


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b: squares(p, b).mean() + b["beta"][0] * b["y"].mean(),
        lambda p, b: jnp.where(b["beta"][0] > 0.5, squares(p, b).mean(), b["y"].mean()),
    ],
)
def test_a_number_of_the_step_is_in_the_batch_once_per_row(loss):
    batch = {**BATCH, "beta": np.full(8, 0.7, np.float32)}
    want = run(loss, batch, mesh=sw.mesh(data=1))[1]["loss"]
    assert np.allclose(run(loss, batch)[1]["loss"], want, rtol=1e-6)


def test_a_metric_is_named_as_it_is():
    with pytest.raises(sw.ShardingError, match='its "it\'s" is a scalar that sums over its rows'):
        run(lambda p, b: (squares(p, b), {"it's": squares(p, b).sum()}), has_aux=True)


@pytest.mark.parametrize("mesh", [MESH, sw.mesh(data=4)], ids=["real", "virtual"])
def test_a_metric_of_no_row_is_taken_with_any_number_of_rows(mesh):
    loss = lambda p, b: (squares(p, b), {"norm": jnp.linalg.norm(p["w"]), "rate": 0.5})  # noqa: E731
    _, metrics = run(loss, SEVEN, mesh=mesh, has_aux=True)
    assert np.allclose(metrics["norm"], np.sqrt(3))
    assert metrics["rate"] == 0.5
    want = ((SEVEN["x"].sum(1) - SEVEN["y"]) ** 2).mean()
    assert np.allclose(metrics["loss"], want, rtol=1e-5)


@pytest.mark.parametrize(
    "metric",
    [
        lambda p, b, keys: squares(p, b).mean(),
        lambda p, b, keys: jax.lax.stop_gradient(b["y"]).mean(),
        lambda p, b, keys: jax.vmap(jax.random.uniform)(keys).mean(),
    ],
    ids=["loss", "stopped", "keys"],
)
def test_a_metric_of_some_rows_is_not(metric):
    loss = lambda p, b, keys: (squares(p, b), {"rate": 0.5, "mean": metric(p, b, keys)})  # noqa: E731
    with pytest.raises(sw.ShardingError, match="its 'mean' is a scalar, and the batch"):
        run(loss, SEVEN, has_aux=True, rng="example")


def test_a_scalar_loss_says_which_sizes_work():
    with pytest.raises(sw.ShardingError, match=r"8, 16, 24") as error:
        run(
            lambda p, b: squares(p, b).mean(),
            jax.tree.map(lambda x: x[:6], BATCH),
            accumulate=2,
        )
    assert error.match("multiple of 8 rows")
    assert error.match("return the losses per row")


def test_updates_that_are_not_returned():
    step = sw.data_parallel(
        lambda v, b: squares(v["params"], b), optax.sgd(0.1), mesh=MESH, mutable="stats"
    )
    with pytest.raises(sw.ShardingError, match="no updated collections"):
        step(step.init({"params": PARAMS, "stats": {"n": jnp.zeros(1)}}), BATCH)


def test_an_optimizer_that_is_none():
    with pytest.raises(TypeError, match="optimizer is a float"):
        sw.data_parallel(squares, 0.1)


def test_params_instead_of_a_state():
    step = sw.data_parallel(squares, optax.sgd(0.1), mesh=MESH)
    with pytest.raises(TypeError, match=r"step\.init\(params\)"):
        step(PARAMS, BATCH)


def test_a_state_of_another_optimizer():
    step = sw.data_parallel(squares, optax.adam(0.1), mesh=MESH)
    other = sw.data_parallel(squares, optax.sgd(0.1), mesh=MESH)
    with pytest.raises(sw.ShardingError, match="opt_state belongs to another optimizer"):
        step(other.init(PARAMS), BATCH)


def test_a_state_that_was_given_away():
    step = sw.data_parallel(squares, optax.sgd(0.1), mesh=MESH)
    state, _ = step(step.init(PARAMS), BATCH)
    step(state, BATCH)
    with pytest.raises(sw.ShardingError, match="donated their memory") as error:
        step(state, BATCH)
    assert error.match("donate=False")


# --- NNX


def object_loss(model, batch):
    return ((model(batch["x"]) - batch["y"][:, None]) ** 2).mean(-1)


def make(width=3, seed=0):
    model = nnx.Linear(width, 1, rngs=nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


STEP = sw.nnx.data_parallel(object_loss, mesh=MESH)


def test_an_optimizer_of_another_model():
    (model, own), (_, other) = make(), make(4)
    STEP(model, own, BATCH)
    with pytest.raises(sw.ShardingError, match="built for another model") as error:
        STEP(model, other, BATCH)
    assert error.match(r"array of \[4, 1\] where this model needs \[3, 1\]")


@pytest.mark.parametrize("optimizer", [optax.adam(0.1), None])
def test_an_optimizer_without_wrt(optimizer):
    with pytest.raises(TypeError, match=r"wrt=nnx\.Param"):
        STEP(make()[0], optimizer, BATCH)


def test_a_model_where_params_are_needed():
    step = sw.data_parallel(squares, optax.sgd(0.1), mesh=MESH)
    with pytest.raises(TypeError, match=r"sw\.nnx\.data_parallel"):
        step.init(make()[0])


def test_params_where_a_model_is_needed():
    with pytest.raises(TypeError, match="model is a dict"):
        STEP(PARAMS, make()[1], BATCH)


def test_a_wrt_that_selects_nothing_or_integers():
    model, _ = make()
    with pytest.raises(sw.ShardingError, match="selects no variable"):
        STEP(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.BatchStat), BATCH)
    model.count = nnx.Param(jnp.arange(3))
    with pytest.raises(sw.ShardingError, match="int32"):
        STEP(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), BATCH)


def test_a_loss_that_changes_the_structure():
    def loss(model, batch):
        model.seen = nnx.Variable(batch["x"].sum())
        return object_loss(model, batch)

    with pytest.raises(sw.ShardingError, match="changed the structure"):
        sw.nnx.data_parallel(loss, mesh=MESH)(*make(), BATCH)


def test_arrays_that_others_hold_are_not_given_away():
    model, optimizer = make()
    kernel = model.kernel[...]
    for _ in range(2):
        STEP(model, optimizer, BATCH)
    assert not kernel.is_deleted()
    held = model.kernel[...]
    STEP(model, optimizer, BATCH)
    assert held.is_deleted()


def test_a_collection_that_grows():
    class Sowing(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("losses", "l2", (x**2).mean())
            return nn.Dense(1)(x)[:, 0]

    def loss(variables, batch):
        y, new = Sowing().apply(variables, batch["x"], mutable=["losses"])
        return (y - batch["y"]) ** 2, new

    step = sw.data_parallel(loss, optax.sgd(0.1), mesh=MESH, mutable="losses")
    with pytest.raises(sw.ShardingError, match=r"losses\.l2\.1 was not there before") as error:
        step(step.init(Sowing().init(jax.random.key(0), BATCH["x"])), BATCH)
    assert error.match("sown anew in every step")


def test_a_step_says_what_it_is():
    step = sw.data_parallel(squares, optax.sgd(0.1), mesh=sw.mesh(data=4), accumulate=2)
    said = "<step data_parallel(squares) on {data: 4}, rows along 'data', accumulate=2>"
    assert repr(step) == said
