"""`ragged_all_to_all` against its definition, groups and permutations that JAX refuses."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from .. import apart
from ..support import assert_same, normal, real_mesh


class Ragged:
    """Slices of random lengths from each of `n` devices to each, `per` of them, and what comes."""

    def __init__(self, n: int, per: int, seed: int, dtype="float32", least: int = 0):
        rng = np.random.default_rng(seed)
        self.n, self.per = n, per
        self.sizes = rng.integers(least, 4, (n, n * per)).astype(np.int32)  # [from, slice]
        ends = self.sizes.cumsum(1)
        self.starts = (ends - self.sizes).astype(np.int32)
        self.targets = np.zeros_like(self.sizes)
        for receiver in range(n):
            at = int(rng.integers(0, 2))
            for sender, index in self.slices_to(receiver):
                self.targets[sender, index] = at
                at += self.sizes[sender, index] + rng.integers(0, 2)
        self.received = np.stack(
            [[self.sizes[s, i] for s, i in self.slices_to(r)] for r in range(n)]
        ).astype(np.int32)
        self.x = normal(n, ends.max() + 1, 3, dtype=dtype, seed=seed)
        self.out = normal(n, 4 * n * per + 2, 3, dtype=dtype, seed=seed + 1)

    def slices_to(self, receiver: int):
        first = receiver * self.per
        return [(s, i) for s in range(self.n) for i in range(first, first + self.per)]

    def moves(self):
        """Each slice: who sends it, from where, who gets it, and where to."""
        for receiver in range(self.n):
            for sender, i in self.slices_to(receiver):
                start, size, to = (a[sender, i] for a in (self.starts, self.sizes, self.targets))
                yield sender, slice(start, start + size), receiver, slice(to, to + size)

    @property
    def args(self):
        parts = self.x, self.out, self.starts, self.sizes, self.targets, self.received
        return tuple(jnp.asarray(part) for part in parts)

    def result(self):
        out = self.out.copy()
        for sender, rows, receiver, to in self.moves():
            out[receiver, to] = self.x[sender, rows]
        return out

    def cotangents(self, ct):
        x, out = np.zeros_like(self.x), ct.copy()
        for sender, rows, receiver, to in self.moves():
            x[sender, rows] += ct[receiver, to]
            out[receiver, to] = 0
        return x, out

    def cotangent_by_jax(self, ct):
        """That of `out` by JAX's rule, which marks where slices begin and end, and adds up.

        Two slices that begin at one row are marked once. If one of them is empty, its end takes
        the mark away, and the other one's rows are taken for rows that nothing was sent to.
        """
        out = ct.copy()
        for receiver in range(self.n):
            sent = self.slices_to(receiver)
            begin = np.array([self.targets[s, i] for s, i in sent])
            marks = np.zeros(ct.shape[1] + 1, int)
            marks[begin] = 1
            np.add.at(marks, begin + self.received[receiver], -1)
            out[receiver, marks.cumsum()[:-1] > 0] = 0
        return out


def exchange(*args, mesh, check_vma=True):
    def body(*parts):
        return lax.ragged_all_to_all(*(part[0] for part in parts), axis_name="x")[None]

    f = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)
    return f(*args)


@pytest.mark.parametrize("at_once", [1, 2, "auto"])
@pytest.mark.parametrize(("n", "per"), [(1, 2), (2, 1), (4, 2), (8, 3)])
def test_ragged_by_its_definition(n, per, at_once):
    case = Ragged(n, per, seed=n)
    mesh = sw.mesh(x=n)
    assert_same(sw.simulate(exchange, mesh=mesh, at_once=at_once)(*case.args), case.result())


def test_ragged_beside_numbers_of_64_bits():
    case = Ragged(4, 2, seed=4)
    with jax.enable_x64(True):
        assert_same(sw.simulate(exchange, mesh=sw.mesh(x=4))(*case.args), case.result())


def test_ragged_integers_and_an_axis_beside():
    case = Ragged(4, 2, seed=5, dtype="int32")

    def both(*args, mesh):
        return exchange(*args, mesh=mesh, check_vma=False)

    assert_same(sw.simulate(both, mesh=sw.mesh(y=3, x=4))(*case.args), case.result())


def test_ragged_with_another_axis_that_differs():
    cases = [Ragged(2, 2, seed=seed) for seed in (7, 7)]
    cases[1].x = cases[1].x * 2

    def body(*parts):
        return lax.ragged_all_to_all(*(part[0, 0] for part in parts), axis_name="x")[None, None]

    def f(*args, mesh):
        specs = {"in_specs": P("y", "x"), "out_specs": P("y", "x")}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    args = [jnp.stack(parts) for parts in zip(*(case.args for case in cases), strict=True)]
    want = np.stack([case.result() for case in cases])
    assert_same(sw.simulate(f, mesh=sw.mesh(y=2, x=2))(*args), want)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_ragged_transposed(seed, check_vma):
    case = Ragged(4, 2, seed=seed, least=1)  # JAX's rule mistakes rows beside empty slices
    mesh = sw.mesh(x=4)
    ct = normal(*case.out.shape, seed=9)

    def pull(x, out, *rest, mesh):
        *sizes, ct = rest
        f = lambda x, out: exchange(x, out, *sizes, mesh=mesh, check_vma=check_vma)  # noqa: E731
        return jax.vjp(f, x, out)[1](ct)

    want = case.cotangents(ct)
    assert_same(sw.simulate(pull, mesh=mesh)(*case.args, ct), want)

    simulated = sw.simulate(lambda *args, mesh: exchange(*args, mesh=mesh), mesh=mesh)
    x, out, *sizes = case.args
    assert_same(jax.vjp(lambda x, out: simulated(x, out, *sizes), x, out)[1](ct), want)


@pytest.mark.parametrize("seed", [1, 2])
def test_ragged_transposed_with_empty_slices_is_what_jax_makes_of_it(seed):
    case = Ragged(4, 2, seed=seed)
    ct = normal(*case.out.shape, seed=9)
    x, out, *sizes = case.args
    f = sw.simulate(exchange, mesh=sw.mesh(x=4))
    got = jax.vjp(lambda x, out: f(x, out, *sizes), x, out)[1](ct)
    by_definition = case.cotangents(ct)
    assert_same(got, (by_definition[0], case.cotangent_by_jax(ct)))
    assert not np.array_equal(got[1], by_definition[1])


def test_ragged_in_a_batch():
    """JAX batches the exchange where all of its sizes are batched, and asserts that they are."""
    case, mesh = Ragged(4, 2, seed=3), sw.mesh(x=4)
    args = [jnp.stack([arg, arg]) for arg in case.args]

    def inside(axes):
        return lambda *args, mesh: jax.vmap(lambda *a: exchange(*a, mesh=mesh), axes)(*args)

    def of_it(axes):
        return jax.vmap(sw.simulate(exchange, mesh=mesh), axes)

    want = np.stack([case.result()] * 2)
    assert_same(sw.simulate(inside(0), mesh=mesh)(*args), want)
    assert_same(of_it(0)(*args), want)
    some = (0, 0, None, None, None, None)
    args = [*args[:2], *case.args[2:]]
    with pytest.raises(AssertionError):
        jax.eval_shape(lambda *args: inside(some)(*args, mesh=real_mesh(x=4)), *args)
    with pytest.raises(sw.UnsupportedError, match=r"test_exchange.py:\d+: vmap of ragged_all_to"):
        sw.simulate(inside(some), mesh=mesh)(*args)
    with pytest.raises(sw.UnsupportedError, match="vmap of ragged_all_to_all"):
        of_it(some)(*args)


def test_ragged_explained():
    case = Ragged(4, 2, seed=0)
    report = sw.explain(exchange, *case.args, mesh=sw.mesh(x=4))
    (use,) = report.collectives
    assert (use.name, use.group_size) == ("ragged_all_to_all", 4)
    assert use.bytes_sent == use.bytes * 3 // 4  # if every device gets as much


# --- composite


def test_composite():
    def twice(x):
        def gelu(x, *, scale):
            return jax.nn.gelu(x) * scale

        op = lax.composite(gelu, name="test.gelu", version=1)
        return op(op(x, scale=2.0), scale=3.0)

    def summed(x):
        return lax.composite(lambda x: lax.psum(x, "x"), name="test.sum")(x)

    def f(x, *, mesh):
        body = lambda x: (twice(x), summed(x))  # noqa: E731
        return jax.shard_map(
            body, mesh=mesh, in_specs=P("x"), out_specs=(P("x"), P("x")), check_vma=False
        )(x)

    x = normal(8, 3)
    want = jax.jit(lambda x: f(x, mesh=real_mesh(x=4)))(x)
    assert_same(sw.simulate(f, mesh=sw.mesh(x=4))(x), jax.device_get(want))


# --- what JAX refuses


def refused(f, x, words):
    """Every way to run a program refuses it, with these words where it has four devices."""
    mesh = sw.mesh(x=4)
    with pytest.raises(sw.ShardingError, match=words):
        sw.simulate(f, mesh=mesh)(x)
    for run in (sw.explain, sw.inspect):
        with pytest.raises(sw.ShardingError, match=words):
            run(f, x, mesh=mesh)
    for run in (sw.check, sw.prove):  # which begin with one device
        with pytest.raises(sw.ShardingError):
            run(f, x, mesh=[mesh])


FROM_THE_END = {
    "split_axis=-1, concat_axis=-2": lambda x: lax.all_to_all(x, "x", -1, -2, tiled=True),
    "scatter_dimension=-1": lambda x: lax.psum_scatter(x, "x", scatter_dimension=-1, tiled=True),
}


def from_the_end(words, x, *, mesh):
    return jax.shard_map(FROM_THE_END[words], mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)


def save_from_the_end(words, path):
    run = jax.jit(partial(from_the_end, words, mesh=real_mesh(x=4)))
    np.save(path, run(normal(4, 2, 8)))


@pytest.mark.parametrize("words", FROM_THE_END)
def test_dimensions_of_an_exchange_counted_from_the_end(words, tmp_path):
    """Some versions of JAX take them, others refuse them when they compile.

    On aarch64, JAX 0.10.2 does not refuse them but ends the process (a segmentation fault in the
    verifier of StableHLO), so a child process compiles for real devices.
    """
    real = apart.run(save_from_the_end, words, path := tmp_path / "real.npy")
    f, x = partial(from_the_end, words), normal(4, 2, 8)
    if real.returncode:
        refused(f, x, words)
    else:
        assert_same(sw.simulate(f, mesh=sw.mesh(x=4))(x), np.load(path))


REFUSED = {
    "names device 4 of 4": lambda x: lax.ppermute(x, "x", [(0, 1), (1, 4)]),
    "names device 9 of 4": lambda x: lax.ppermute(x, "x", [(9, 1)]),
    "names device 0.0 of 4": lambda x: lax.ppermute(x, "x", [(0.0, 1)]),
    "names device -5 of 4": lambda x: lax.ppermute(x, "x", [(0, -5)]),
    "has \\(0, 1, 2\\)": lambda x: lax.ppermute(x, "x", [(0, 1, 2)]),
    "psum_scatter of booleans": lambda x: lax.psum_scatter(x[:4] > 0, "x", tiled=True),
    "pmax of complex numbers": lambda x: lax.pmax(lax.complex(x, x), "x"),
    "pmin of complex numbers": lambda x: lax.pmin(lax.complex(x, x), "x"),
    r"all_gather of an array of shape \(0, 2\) along dimension 0": lambda x: lax.all_gather(
        x[:0], "x", tiled=True
    ),
    r"psum_scatter of an array of shape \(6, 0\) along dimension 1": lambda x: lax.psum_scatter(
        x[:, :0], "x", scatter_dimension=1, tiled=True
    ),
    "Only reductions take groups": lambda x: lax.all_to_all(
        x[:3], "x", 0, 0, tiled=True, axis_index_groups=[[0, 1, 2], [3]]
    ),
    "all_gather with axis_index_groups": lambda x: lax.all_gather(
        x, "x", axis_index_groups=[[0, 1, 2], [3]]
    ),
    r"psum with (.|\n)* integers": lambda x: lax.psum(x, "x", axis_index_groups=[[0.0, 1], [2, 3]]),
    r"all_gather with (.|\n)* integers": lambda x: lax.all_gather(
        x, "x", axis_index_groups=[[0.0, 1], [2, 3]]
    ),
    "exactly one group": lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1], [2]]),
    r"pmax with (.|\n)* no group is empty": lambda x: lax.pmax(
        x, "x", axis_index_groups=[[0, 1, 2, 3], []]
    ),
    "names device 1 of 1": lambda x: lax.ppermute(x, (), [(0, 1)]),
    "psum over .* twice": lambda x: lax.psum(x, ("x", "x")),
    "all_gather over .* twice": lambda x: lax.all_gather(x, ("x", "x")),
    "source=4 of 4": lambda x: lax.pbroadcast(x, "x", 4),
    "source=-1 of 4": lambda x: lax.pbroadcast(x, "x", -1),
}
UNTOLD = ("exactly one group", "no group is empty", "twice", "source=")
"""Where XLA prints a stack of its own, ends the process, or has no rule on CPU devices."""


@pytest.mark.parametrize("words", REFUSED)
def test_refused_as_on_devices(words):
    def f(x, *, mesh):
        specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
        return jax.shard_map(REFUSED[words], mesh=mesh, **specs)(x)

    x = normal(24, 2)
    if not words.endswith(UNTOLD) and not words.startswith(UNTOLD):
        with pytest.raises((ValueError, IndexError, TypeError, jax.errors.JaxRuntimeError)):
            jax.jit(lambda x: f(x, mesh=real_mesh(x=4)))(x)
    refused(f, x, words)


TAKEN = {
    "negative": lambda x: lax.ppermute(x, "x", [(0, 1), (1, -1)]),
    "first group of one": lambda x: lax.all_to_all(
        x, "x", 0, 0, tiled=True, axis_index_groups=[[3], [0, 1, 2]]
    ),
    "no axis": lambda x: lax.ppermute(x, (), [(0, 0)]),
    "unequal sums": lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1, 2], [3]]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken_as_on_devices(name):
    def f(x, *, mesh):
        specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
        return jax.shard_map(TAKEN[name], mesh=mesh, **specs)(x)

    x = normal(24, 2)
    want = jax.jit(lambda x: f(x, mesh=real_mesh(x=4)))(x)
    assert_same(sw.simulate(f, mesh=sw.mesh(x=4))(x), jax.device_get(want))
