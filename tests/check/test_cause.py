"""The cause of a wrong result: the largest mesh, the right reduction, the line of the share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from tests.support import check, normal

from .marks import line_of

MESH = {"data": [1, 2, 4]}
X = normal(16)


def check_body(body, *args, out_specs=P(), check_vma=False):  # noqa: B008
    """What is certain of a body that runs on each part of its arguments."""

    def program(*args, mesh):
        specs = {"in_specs": P("data"), "out_specs": out_specs, "check_vma": check_vma}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    verdict = check(program, *args, mesh=MESH)
    return [finding for finding in verdict.findings if finding.certain]


@pytest.mark.parametrize(
    ("reduce", "what", "remedy"),
    [
        (jnp.sum, "share of a sum over 'data'", "jax.lax.psum(..., 'data')"),
        (jnp.mean, "own mean, not the mean over 'data'", "jax.lax.pmean(..., 'data')"),
        (jnp.max, "own maximum or minimum", "with pmax or pmin: jax.lax.pmax(..., 'data')"),
    ],
)
def test_what_is_returned_unreduced_is_told_with_its_reduction(reduce, what, remedy):
    def body(x):
        return reduce(x)  # here

    (finding,) = check_body(body, X)
    assert finding.code == "SW403"
    assert finding.where.line == line_of(body, "# here")
    assert f"is only the first device's {what}" in finding.message
    assert remedy in finding.remedy


def test_shares_that_are_put_side_by_side():
    """The shapes agree, so it is the meaning that tells: a row for each device, in each a share."""

    def body(x):
        whole = 4 // lax.axis_size("data")
        return jnp.broadcast_to(x.sum(), (whole,))

    (finding,) = check_body(body, X, out_specs=P("data"))
    assert finding.code == "SW403"
    assert "is put together from each device's share of a sum over 'data'" in finding.message
    assert "leave the axis out of out_specs" in finding.remedy


def test_another_shape_is_told_as_such():
    (finding,) = check_body(lambda x: x.sum(keepdims=True), X, out_specs=P("data"))
    assert finding.code == "SW108"


def test_the_line_of_a_division_is_that_of_the_count():
    def body(x, mask):
        total = jnp.sum(x * mask)
        count = jnp.sum(mask)  # here
        return lax.pmean(total / count, "data")  # used

    (finding,) = check_body(body, X, np.float32(np.arange(16) % 7 != 1))
    assert finding.code == "SW405"
    assert finding.where.line == line_of(body, "# here")
    assert f":{line_of(body, '# used')}: division by a share is not linear" in finding.message
    assert "relative difference" in finding.message
    assert "psum(total, 'data') / jax.lax.psum(count, 'data')" in finding.remedy


def test_the_factor_is_that_of_the_largest_mesh():
    (finding,) = check_body(lambda x: lax.psum(x.mean(), "data"), X, check_vma=True)
    assert finding.mesh == "{data: 4}"
    assert "is 4 times what it is on one device" in finding.message


def test_new_params_are_made_of_a_gradient_that_is_too_large():
    """They are not 4 times what they should be themselves, and every one of them is named."""

    def step(params, x, *, mesh):
        def body(params, x):
            grads = jax.grad(lambda p: jnp.mean((x * p["w"] + p["b"]) ** 2))(params)
            grads = lax.pmean(grads, "data")
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(params, x)

    params = {"b": jnp.float32(0.5), "w": jnp.float32(2.0)}
    (finding,) = check(step, params, X, mesh={"data": [1, 4]}).findings
    assert "is computed from a value that is 4 times what it is on one device" in finding.message
    assert {*finding.leaves} == {"result['b']", "result['w']"}
    proof = sw.prove(step, params, X, mesh=sw.mesh(data=4))
    assert [row.status for row in proof.results] == ["refuted", "refuted"]
    assert all(found.certain for found in proof.findings)


def test_a_single_element_on_each_device_hides_a_share():
    """On four devices there is nothing to add up; on two the share shows."""
    (finding,) = check_body(lambda x: jnp.sum(x), X[:4])
    assert finding.code == "SW403"
    assert finding.mesh == "{data: 2}"


def test_the_recipe_for_the_maxima_of_parts_runs_forward_and_backward():
    """It is run as it stands in the remedy, against a logsumexp on one device."""

    def parts(x):
        return lax.psum(jax.nn.logsumexp(x, -1), "data")  # here

    rows = jnp.sin(jnp.arange(32.0)).reshape(4, 8)

    def check_of(body, out_specs):
        def program(x, *, mesh):
            specs = {"in_specs": P(None, "data"), "out_specs": out_specs}
            return jax.shard_map(body, mesh=mesh, **specs)(x)

        return check(program, rows, mesh=MESH)

    (finding,) = [one for one in check_of(parts, P()).findings if one.certain]
    assert finding.code == "SW405"
    assert finding.where.line == line_of(parts, "# here")
    code = [line.strip() for line in finding.remedy.splitlines() if line.startswith("    ")]
    names = {"jax": jax, "jnp": jnp}

    def recipe(x):
        scope = {**names, "x": x}
        exec(code[0], scope)
        return eval(code[1], scope)

    assert check_of(recipe, P()).ok
    assert check_of(jax.grad(lambda x: recipe(x).sum()), P(None, "data")).ok


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_the_derivative_of_a_maximum_over_devices_is_refused_with_the_remedy(name):
    def body(x):
        return jax.grad(lambda x: lax.stop_gradient(getattr(lax, name)(x.sum(), "data")))(x)

    with pytest.raises(sw.UnsupportedError) as caught:
        check_body(body, X, out_specs=P("data"))
    text = str(caught.value)
    assert text.startswith(f"test_cause.py:{body.__code__.co_firstlineno + 1}: a {name} is diff")
    assert f"jax.lax.{name}(jax.lax.stop_gradient(x), axis)" in text


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("wrap", [jax.checkpoint, lambda f: f], ids=["checkpoint", "kept"])
def test_a_gradient_that_autodiff_sums_in_a_loop(wrap, update):
    """Weights that every layer of a loop gathers: the cause is what it is without one."""

    def loss(w, x):
        @wrap
        def layer(x, own):
            return jnp.tanh(x @ lax.all_gather(own, "data", tiled=True)), None

        return jnp.mean(lax.scan(layer, x, w)[0] ** 2)

    def body(w, x):
        grads = jax.grad(loss)(w, x)
        return w - 0.1 * grads if update else grads

    def program(w, x, *, mesh):
        part = P(None, "data")
        specs = {"in_specs": (part, P("data")), "out_specs": part}
        return jax.shard_map(body, mesh=mesh, **specs)(w, x)

    args = normal(3, 8, 8), normal(8, 8)
    told = (
        check(program, *args, mesh=MESH),
        sw.prove(program, *args, mesh={"data": 4}, run=False),
    )
    for verdict in told:
        (finding,) = (one for one in verdict.findings if one.certain)
        assert finding.code == "SW401"
        assert "4 times what it is on one device: autodiff sums this gradient" in finding.message
        assert "jax.lax.pmean(" in finding.remedy


def test_a_mean_that_a_loop_adds_up():
    """One device has another number of iterations: no rule tells a mean from a sum."""

    def loss(w, x):
        def turn(total, rows):
            return total + jnp.mean(jnp.tanh(rows @ w) ** 2), None

        total, _ = lax.scan(turn, 0.0, x.reshape(-1, 2, 4))
        return lax.pmean(total / (len(x) // 2), "data")

    def program(w, x, *, mesh):
        specs = {"in_specs": (P(), P("data")), "out_specs": P(), "check_vma": False}
        return jax.shard_map(jax.grad(loss), mesh=mesh, **specs)(w, x)

    args = normal(4), normal(8, 4)
    (checked,) = (one for one in check(program, *args, mesh=MESH).findings if one.certain)
    (proved,) = sw.prove(program, *args, mesh={"data": 4}, run=False).findings
    for finding in (checked, proved):
        assert finding.code == "SW403"
        assert "or pmean if each is a mean of its own part" in finding.remedy


@jax.custom_vjp
def _summed(x):
    return lax.psum(x, "data")


_summed.defvjp(lambda x: (lax.psum(x, "data"), None), lambda _, g: (g,))


@jax.custom_vjp
def _handed(x):
    return x


_handed.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "data"),))


@pytest.mark.parametrize("missing", ["first", "second", ""])
def test_a_gradient_that_nobody_sums_in_the_backward_pass(missing):
    """Two layers, each split in two products, by hand: what goes into one is not summed."""

    def loss(p, x):
        first = x * p["g"] if missing == "first" else _handed(x * p["g"])
        x = x + _summed(jnp.tanh(first @ p["a"]) @ p["b"])
        second = x * p["g"] if missing == "second" else _handed(x * p["g"])
        x = x + _summed(jnp.tanh(second @ p["c"]) @ p["d"])  # here
        return jnp.mean(x**2)

    def program(p, x, *, mesh):
        columns, rows = P(None, "data"), P("data")
        parts = {"g": P(), "a": columns, "b": rows, "c": columns, "d": rows}
        specs = {"in_specs": (parts, P()), "out_specs": parts, "check_vma": False}
        return jax.shard_map(jax.grad(loss), mesh=mesh, **specs)(p, x)

    shapes = {"g": (8,), "a": (8, 16), "b": (16, 8), "c": (8, 16), "d": (16, 8)}
    p = {name: normal(*shape) / 2 for name, shape in shapes.items()}
    found = [one for one in check(program, p, normal(4, 8), mesh=MESH).findings if one.certain]
    if not missing:
        assert not found
        return
    (finding,) = found
    if missing == "first":
        assert finding.code == "SW403"
        assert "is made with only the first device's share of a sum over 'data'" in finding.message
        assert "before anything is added to them" in finding.remedy
    else:
        assert finding.code == "SW405"
        assert "which the backward pass uses as if it were the whole" in finding.message
        assert finding.where.line == line_of(loss, "# here")
        assert "jax.custom_vjp" in finding.remedy


def test_a_sum_that_is_differentiated_unchecked():
    """The derivative of a psum is a psum there, also of what every device has alike."""

    def program(w, x, *, mesh):
        def body(w, x):
            return jax.grad(lambda w: jnp.mean(lax.psum(x @ w, "data") ** 2))(w)  # here

        specs = {"in_specs": (P("data"), P(None, "data")), "out_specs": P("data")}
        return jax.shard_map(body, mesh=mesh, **specs, check_vma=False)(w, x)

    args = normal(8), normal(4, 8)
    (finding,) = (one for one in check(program, *args, mesh=MESH).findings if one.certain)
    assert finding.code == "SW401"
    assert "the backward pass sums a gradient over 'data' here" in finding.message
    assert finding.where.line == line_of(program, "# here")


def test_a_scattered_sum_of_means_is_divided():
    """No pmean can stand in its place."""

    def body(x):
        own = jnp.mean(x.reshape(-1, 4), 0)
        return lax.psum_scatter(own, "data", tiled=True)  # here

    (finding,) = check_body(body, X, out_specs=P("data"))
    assert finding.code == "SW401"
    assert finding.where.line == line_of(body, "# here")
    assert finding.remedy == "divide what it gives by jax.lax.axis_size('data')."


def test_a_number_that_counts_only_ones_own_rows():
    def body(x):
        mean = lax.pmean(x.mean(), "data")
        square = lax.pmean(((x - mean) ** 2).mean(), "data")
        return 0.9 + square * len(x) / (len(x) - 1)  # here

    (finding,) = check_body(body, X)
    assert finding.where.line == line_of(body, "# here")
    assert "what it is multiplied or divided by here" in finding.message


@pytest.mark.parametrize("looped", [False, True])
def test_the_same_random_numbers_on_every_device(looped):
    """They are found in a loop as outside of one."""

    def layer(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0) + 1, None  # here

    def program(x, key, *, mesh):
        def body(x, key):
            keys = jax.random.split(key, 3)
            if looped:
                return lax.scan(layer, x, keys)[0]
            for each in keys:
                x, _ = layer(x, each)
            return x

        specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
        return jax.shard_map(body, mesh=mesh, **specs)(x, key)

    verdict = check(program, X, jax.random.key(0), mesh=MESH)
    (finding,) = (one for one in verdict.findings if one.certain)
    assert finding.code == "SW106"
    assert finding.where.line == line_of(layer, "# here")


def test_a_sum_over_one_of_two_axes():
    """What it gives differs along the other axis, and is the same along its own."""

    def program(scores, labels, *, mesh):
        def body(scores, labels):
            size = scores.shape[-1]
            scores = scores - lax.pmax(scores.max(-1), "model")[:, None]
            total = lax.psum(jnp.exp(scores).sum(-1), "model")
            place = jnp.clip(labels - lax.axis_index("model") * size, 0, size - 1)
            own = jnp.take_along_axis(scores, place[:, None], -1)[:, 0]
            own = lax.psum(own, "model")  # here
            return lax.pmean(jnp.mean(jnp.log(total) - own), "data")

        specs = {"in_specs": (P("data", "model"), P("data")), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, **specs)(scores, labels)

    mesh = {"data": [1, 2], "model": [1, 4]}
    verdict = check(program, normal(8, 16), jnp.arange(8), mesh=mesh)
    (finding,) = (one for one in verdict.findings if one.certain)
    assert finding.where.line == line_of(program, "# here")
    assert "the same on every device along 'model'" in finding.remedy


def test_heads_in_another_order_are_no_other_split():
    def body(x):
        devices = lax.axis_size("data")
        own = jnp.tanh(lax.all_to_all(x, "data", 1, 0, tiled=True))
        parts = lax.all_to_all(own.reshape(devices, -1, *own.shape[1:]), "data", 0, 0)
        return parts.transpose(1, 2, 0, 3).reshape(parts.shape[1], -1, 2)  # here

    (finding,) = check_body(body, normal(8, 8, 2), out_specs=P("data"))
    assert finding.code == "SW109"
    assert finding.where.line == line_of(body, "# here")


def test_a_mean_over_two_axes_of_a_share_along_one():
    """Over data it is a mean, over model a share: it has to be summed there."""

    def program(x, *, mesh):
        def body(x):
            last = lax.axis_index("model") == lax.axis_size("model") - 1
            own = lax.scan(lambda sum, row: (sum + jnp.where(last, row.mean(), 0.0), None), 0.0, x)
            return lax.pmean(own[0], ("model", "data"))  # here

        specs = {"in_specs": P(None, "data"), "out_specs": P(), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    mesh = {"data": [1, 2], "model": [1, 4]}
    (finding,) = (one for one in check(program, normal(3, 8), mesh=mesh).findings if one.certain)
    assert finding.where.line == line_of(program, "# here")
    assert "psum over 'model'" in finding.remedy or "jax.lax.psum(..., 'model')" in finding.remedy


def test_a_sum_over_the_wrong_one_of_two_axes_of_one_size():
    """Twice too large and half of the whole is no mean, as the mesh along one axis shows."""

    def program(x, w, *, mesh):
        def body(x, w):
            return lax.psum(x @ w, "data")  # here

        specs = {"in_specs": (P(None, "model"), P("model")), "out_specs": P(), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(x, w)

    verdict = check(program, normal(4, 8), normal(8), mesh={"data": [1, 2], "model": [1, 2]})
    (finding,) = (one for one in verdict.findings if one.certain)
    assert finding.code == "SW403"
    assert "share of a sum over 'model'" in finding.message


def test_to_gather_shares_is_no_mistake():
    """A running sum goes on where the devices before have ended: what is gathered is theirs."""

    def body(x):
        ends = lax.all_gather(x.sum(), "data")
        before = jnp.arange(ends.shape[0]) <= lax.axis_index("data")  # itself too: that is wrong
        return jnp.cumsum(x) + jnp.where(before, ends, 0).sum()

    findings = check_body(body, X, out_specs=P("data"))
    assert findings
    assert not any(finding.code == "SW405" for finding in findings)
