"""Shapes as arguments: labels that do not count are among the values that are drawn."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from tests.support import check

SHAPES = (
    jax.ShapeDtypeStruct((8, 5), jnp.float32),
    jax.ShapeDtypeStruct((32, 8), jnp.float32),
    jax.ShapeDtypeStruct((32,), jnp.int32),
)

COUNTING = {
    "ignore index": lambda y: y != -100,
    "none below zero": lambda y: y >= 0,
    "zero is below": lambda y: jnp.less_equal(0, y),
    "above minus one": lambda y: y > -1,
    "padding": lambda y: y != 0,
    "of segmentation": lambda y: y != 255,
    "as floats": lambda y: y.astype(jnp.float32) != -1.0,
}


def loss(counts, mean):
    def f(w, x, y, *, mesh):
        def body(w, x, y):
            log_p = jax.nn.log_softmax(x @ w)
            which = jnp.where(counts(y), y, 0)
            losses = -jnp.take_along_axis(log_p, which[:, None], 1)[:, 0]
            return mean(losses, counts(y))

        specs = (P(), P("data"), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x, y)

    return f


def of_all(losses, counted):
    total = lax.psum(jnp.where(counted, losses, 0).sum(), "data")
    return total / lax.psum(counted.sum(), "data")


def of_means(losses, counted):
    return lax.pmean(jnp.where(counted, losses, 0).sum() / counted.sum(), "data")


@pytest.mark.parametrize("counts", COUNTING.values(), ids=COUNTING)
def test_labels_that_do_not_count_are_drawn(counts):
    mesh = {"data": [1, 2]}
    assert check(loss(counts, of_all), *SHAPES, mesh=mesh)
    assert not check(loss(counts, of_means), *SHAPES, mesh=mesh)


def present(y):
    return ~jnp.isnan(y)


@pytest.mark.parametrize(
    ("mean", "right"),
    [
        (lambda losses: of_all(losses, present(losses)), True),
        (lambda losses: lax.pmean(jnp.where(losses == losses, losses, 0).mean(), "data"), True),
        (lambda losses: jnp.nan_to_num(lax.pmean(losses.mean(), "data")), True),
        (lambda losses: lax.pmean(jnp.nanmean(losses), "data"), False),
        (lambda losses: of_means(losses, losses == losses), False),
    ],
)
def test_labels_that_are_missing_are_drawn(mean, right):
    def f(x, y, *, mesh):
        def body(x, y):
            return mean(((x @ jnp.ones(8)) - y) ** 2)

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, y)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 8), (32,))]
    assert bool(check(f, *shapes, mesh={"data": [1, 2]})) is right
    proof = sw.prove(f, *shapes, mesh={"data": 2})
    assert proof.status in (("proved", "unknown") if right else ("refuted",))


def test_an_index_that_may_count_from_the_end_is_not_marked():
    seen = []

    def f(x, at, *, mesh):
        def body(x, at):
            jax.debug.callback(lambda at: seen.extend(at.tolist()), at)
            return lax.psum(x[at].sum(), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(x, at)

    shapes = jax.ShapeDtypeStruct((6,), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.int32)
    assert check(f, *shapes, mesh={"data": [1, 2]})
    assert seen
    assert set(seen) <= set(range(6))


def test_marks_that_make_no_number_are_not_drawn():
    """Where a program cannot take what it compares with, the rest is drawn as before."""

    def f(y, *, mesh):
        def body(y):
            return lax.psum(jnp.where(y == -100, jnp.nan, y).sum(), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(y)

    verdict = check(f, jax.ShapeDtypeStruct((64,), jnp.int32), mesh={"data": [1, 2]})
    assert verdict
    assert "NaN" not in str(verdict)


def test_a_count_of_steps_has_no_marks():
    def f(x, step, *, mesh):
        def body(x, step):
            return lax.pmean(x.mean(), "data") / jnp.where(step == -1, 0.0, 1.0 + step)

        return jax.shard_map(body, mesh=mesh, in_specs=(P("data"), P()), out_specs=P())(x, step)

    shapes = jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    for seed in range(8):
        verdict = check(f, *shapes, mesh={"data": [1, 2]}, seed=seed)
        assert verdict
        assert "SW" not in str(verdict)


SIZES = [(8, 4), (12, 7), (16, 4), (16, 7), (24, 4), (32, 7)]
NAMES = [*COUNTING, "lower half", "booleans", "lengths"]


@pytest.mark.parametrize("name", NAMES)
def test_devices_count_differently_whatever_the_size(name):
    """The same number of labels on every device would hide a mean of means."""
    counts = {**COUNTING, "lower half": lambda y: y < 5, "booleans": lambda y: y}.get(name)

    def f(x, y, *, mesh):
        def body(x, y):
            along = jnp.arange(x.shape[1])[None] < y[:, None]
            counted = along if counts is None else jnp.tile(counts(y)[:, None], x.shape[1])
            return of_means(x**2, counted)

        specs = {"in_specs": P("data"), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, **specs)(x, y)

    for size in SIZES[NAMES.index(name) % 3 :: 3]:
        dtype = jnp.bool_ if name == "booleans" else jnp.int32
        shapes = jax.ShapeDtypeStruct(size, jnp.float32), jax.ShapeDtypeStruct(size[:1], dtype)
        verdict = check(f, *shapes, mesh={"data": [1, 2, 4]})
        assert verdict.wrong_on == ("{data: 2}", "{data: 4}")


OF_SOME = {
    "a division by a length": lambda x, n: (x.sum(1) / n.astype(x.dtype)).mean(),
    "an angle": lambda x, n: jnp.arccos(x).mean(),
    "probabilities": lambda x, n: -(jnp.log(x) + jnp.log1p(-x)).mean(),
}


@pytest.mark.parametrize("name", OF_SOME)
def test_numbers_are_drawn_from_where_a_program_is_defined(name):
    def program(reduce):
        def f(x, n, *, mesh):
            body = lambda x, n: reduce(OF_SOME[name](x, n), "data")  # noqa: E731
            return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, n)

        return f

    shapes = jax.ShapeDtypeStruct((16, 4), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.int32)
    right = check(program(lax.pmean), *shapes, mesh={"data": [1, 2]})
    assert str(right) == "f: right on {data: 1}, {data: 2} (values drawn)"
    assert not check(program(lax.psum), *shapes, mesh={"data": [1, 2]})


def test_where_nothing_that_is_drawn_serves_values_are_asked_for():
    def f(x, *, mesh):
        body = lambda x: lax.psum(jnp.log(-(x**2)).mean(), "data")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    told = str(check(f, jax.ShapeDtypeStruct((8,), jnp.float32), mesh={"data": [1, 2]}))
    assert "With this data it is NaN or infinite" in told
    assert "in place of the shapes" in told
    assert "right with this data" not in told


# --- what numbers are held against

MASKS = {
    "below": lambda a: a < 65,
    "below or equal": lambda a: a <= 12,
    "a token": lambda a: a < 50256,
    "a weight": lambda a: 1 + (a > 50),
    "cast": lambda a: a.astype(jnp.float32) < 99.5,
    "hundreds": lambda a: a // 100 == 0,
    "of a hundred": lambda a: a % 100 < 20,
    "a bit": lambda a: (a & 16) == 0,
    "a fraction": lambda a: a < 100.0,
}


@pytest.mark.parametrize("name", MASKS)
def test_numbers_are_drawn_on_both_sides(name):
    """A mask that is true everywhere shows nothing of a mean of means."""

    def masked(mean):
        def f(a, x, *, mesh):
            body = lambda a, x: mean(x * MASKS[name](a), MASKS[name](a))  # noqa: E731
            return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(a, x)

        return f

    dtype = jnp.float32 if name == "a fraction" else jnp.int32
    shapes = jax.ShapeDtypeStruct((32,), dtype), jax.ShapeDtypeStruct((32,), jnp.float32)
    assert check(masked(of_all), *shapes, mesh={"data": [1, 4]})
    assert check(masked(of_means), *shapes, mesh={"data": [1, 4]}).wrong_on == ("{data: 4}",)


@pytest.mark.parametrize(
    "bucket",
    [
        lambda a: a // 10,
        lambda a: a * 5 // 50,
        lambda a: jnp.clip(a >> 4, 0, 4),
        lambda a: jnp.digitize(a, jnp.array([10, 20, 30, 40])),
    ],
)
def test_numbers_are_drawn_for_several_buckets(bucket):
    def f(a, x, *, mesh):
        def body(a, x):
            total, count = (jnp.zeros(5).at[bucket(a)].add(v) for v in (x, 1.0))
            return lax.pmean(total / jnp.maximum(count, 1), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(a, x)

    shapes = jax.ShapeDtypeStruct((32,), jnp.int32), jax.ShapeDtypeStruct((32,), jnp.float32)
    assert not check(f, *shapes, mesh={"data": [1, 4]})


def test_a_count_of_steps_is_on_either_side():
    seen = set()

    def f(x, step, *, mesh):
        jax.debug.callback(lambda step: seen.add(int(step)), step)

        def body(x):
            late = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
            return lax.cond(step < 1000, lambda x: lax.pmean(x.sum(), "data"), late, x)

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    shapes = jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    for seed in range(6):
        check(f, *shapes, mesh={"data": [1]}, seed=seed)
    assert min(seen) < 1000 <= max(seen)


# --- labels that are predicted


def of_hits(hit, reduce):
    def f(logits, labels, *, mesh):
        body = lambda logits, labels: reduce(hit(logits, labels).mean(), "data")  # noqa: E731
        specs = {"in_specs": P("data"), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, **specs)(logits, labels)

    return f


HITS = {
    "the largest": lambda logits, labels: logits.argmax(-1) == labels,
    "one of three": lambda logits, labels: (lax.top_k(logits, 3)[1] == labels[:, None]).any(-1),
    "sorted": lambda logits, labels: jnp.argsort(-logits)[:, 0] == labels,
    "not the smallest": lambda logits, labels: labels != logits.argmin(-1),
    "a sign": lambda logits, labels: (logits[:, 0] > 0).astype(labels.dtype) == labels,
}


@pytest.mark.parametrize("hit", HITS.values(), ids=HITS)
def test_labels_are_sometimes_predicted(hit):
    """Out of a thousand classes none would be, and n times nothing is nothing."""
    shapes = jax.ShapeDtypeStruct((16, 1000), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.int32)
    right = check(of_hits(hit, lax.pmean), *shapes, mesh={"data": [1, 2]})
    assert str(right) == "f: right on {data: 1}, {data: 2} (values drawn)"
    wrong = check(of_hits(hit, lax.psum), *shapes, mesh={"data": [1, 2]})
    assert wrong.wrong_on == ("{data: 2}",)


@pytest.mark.parametrize("classes", [4, 50, 1000])
def test_what_one_drawing_does_not_show_another_does(classes):
    """The calibration error: sums of one sign on every device are as right as one over all."""

    def f(logits, labels, *, mesh):
        def body(logits, labels):
            p = jax.nn.softmax(logits).max(-1)
            right = (logits.argmax(-1) == labels).astype(p.dtype)
            off = jax.ops.segment_sum(p - right, (p * 5).astype(int), 5)
            return lax.pmean(jnp.abs(off).sum() / p.size, "data")

        specs = {"in_specs": P("data"), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, **specs)(logits, labels)

    shapes = (
        jax.ShapeDtypeStruct((32, classes), jnp.float32),
        jax.ShapeDtypeStruct((32,), jnp.int32),
    )
    for seed in range(3):
        assert not check(f, *shapes, mesh={"data": [1, 2, 4]}, seed=seed)


def test_segments_that_are_held_against_themselves_stay_several():
    seen = []

    def f(x, segments, *, mesh):
        def body(x, segments):
            jax.debug.callback(lambda s: seen.extend(s.tolist()), segments)
            same = segments[:, None] == segments[None]
            return lax.pmean((same @ x).mean(), "data")

        specs = {"in_specs": (P("data"), P("data")), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, **specs)(x, segments)

    shapes = jax.ShapeDtypeStruct((32,), jnp.float32), jax.ShapeDtypeStruct((32,), jnp.int32)
    check(f, *shapes, mesh={"data": [1]})
    assert len(set(seen)) > 5


def skipped_on(where):
    """An update that is left out where the gradient is not finite, asked before or after a mean."""

    def f(w, x, *, mesh):
        def body(w, x):
            own = lax.pcast(w, "data", to="varying")
            gradient = jax.grad(lambda v: jnp.mean((x @ v) ** 2))(own)
            if where == "all devices":
                gradient = lax.pmean(gradient, "data")
                return jnp.where(jnp.isfinite(gradient).all(), w - 0.1 * gradient, w)
            new = jnp.where(jnp.isfinite(gradient).all(), own - 0.1 * gradient, own)
            return lax.pmean(new, "data")

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    return f


def nan_mean_left_out(x, *, mesh):
    def body(x):
        mean = x.mean()
        return lax.pmean(jnp.where(jnp.isnan(mean), 0.0, mean), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def test_nan_is_drawn_where_the_program_asks_of_a_single_number():
    w, x = jax.ShapeDtypeStruct((3,), "float32"), jax.ShapeDtypeStruct((16, 3), "float32")
    meshes = {"data": [1, 2, 4]}
    assert check(skipped_on("all devices"), w, x, mesh=meshes)
    assert not check(skipped_on("each device"), w, x, mesh=meshes)
    assert not check(nan_mean_left_out, x, mesh=meshes)
