"""What each device holds around a collective, and which traffic is redundant.

For every reason there is a program that sends too much beside one that does not: they give the same
numbers, and the second one sends exactly the bytes less that the report of the first one promises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._analysis.explain import cost as costs
from shardwise._analysis.explain import meant

from ..support import normal
from .claims import wasteful, wrong_claims
from .support import explained, shaped, spmd

ROWS, WHOLE = P("data"), P()
X = (16, 8)


def one(report: sw.Report, place: int = 0) -> Any:
    found = report.collectives[place].redundant
    assert found is not None
    return found


# --- who holds what


def test_words():
    def body(w, x, rows):
        lax.axis_index("data")
        y = lax.psum(x @ w, "model")
        z = lax.all_gather(rows, "data", tiled=True)
        moved = lax.all_to_all(rows, "data", 1, 0, tiled=True)
        own = lax.ppermute(x, "data", [(0, 1), (1, 0)])
        peak = lax.pmax(x.max(), ("data", "model"))
        return y.sum() + z.sum() + moved.sum() + own.sum() + peak

    def program(w, x, rows, *, mesh):
        specs = (P("model"), P("data", "model"), P("data"))
        out = P(("data", "model"))
        sharded = jax.shard_map(
            lambda *a: body(*a)[None], mesh=mesh, in_specs=specs, out_specs=out, check_vma=False
        )
        return sharded(w, x, rows)

    args = shaped(8, 4), shaped(4, 8), shaped(6, 4)
    report = sw.explain(program, *args, mesh=sw.mesh(data=2, model=4))
    told = [(use.meaning.before, use.meaning.after) for use in report.collectives if use.meaning]
    assert told == [
        ("a share of a sum over model, for its rows along data", "its rows along data"),
        ("its rows of rows along data", "the whole of rows"),
        ("its rows of rows along data", "its columns of rows along data"),
        (
            "its block of x along data and model",
            "its columns along model, a value of its own along data",
        ),
        ("a share of a maximum over data and model", "the whole"),
    ]


def test_what_a_loop_steps_through_has_a_name():
    def body(layers, x):
        def turn(x, w):
            return jnp.tanh(x @ lax.all_gather(w, "data", tiled=True)), None

        return lax.scan(turn, x, layers)[0]

    specs = {"in_specs": (P(None, "data"), ROWS), "out_specs": ROWS}
    report = explained(body, shaped(3, 8, 8), shaped(16, 8), **specs)
    (use,) = report.collectives
    assert use.meaning is not None
    assert use.meaning.before == "its rows of args[0][i] along data"
    assert use.meaning.after == "the whole of args[0][i]"
    assert use.redundant is None


def test_what_stands_in_a_loop_that_cannot_be_followed_is_not_told(monkeypatch):
    """A carried value that is laid out anew at every turn has no reading that holds."""
    from shardwise._meaning import loops

    def body(x):
        turn = lambda c, _: (lax.psum(c, "data") + x, None)  # noqa: E731
        return lax.scan(turn, jnp.zeros_like(x), None, length=3)[0]

    known = explained(body, shaped(*X), check_vma=False)
    assert known.collectives[0].meaning is not None
    monkeypatch.setattr(loops, "ROUNDS", 0)
    found = explained(body, shaped(*X), check_vma=False)
    assert found.collectives[0].meaning is None
    assert found.collectives[0].redundant is None
    assert found.bytes_sent == known.bytes_sent


def test_a_program_that_cannot_be_read_is_reported_without(monkeypatch):
    def broken(*args: Any) -> Any:
        raise AssertionError("no such thing")

    whole = explained(lambda x: lax.psum(x, "data"), shaped(*X), out_specs=WHOLE)
    monkeypatch.setattr(meant, "keep", broken)
    report = explained(lambda x: lax.psum(x, "data"), shaped(*X), out_specs=WHOLE)
    assert report.collectives[0].meaning is None
    assert "what the values mean is not known (AssertionError: no such thing)" in report.notes[0]
    assert report.bytes_sent == whole.bytes_sent
    monkeypatch.setattr(meant, "MOST", 0)
    report = explained(lambda x: lax.psum(x, "data"), shaped(*X), out_specs=WHOLE)
    assert "operations)" in report.notes[0]


# --- too much, and enough


@dataclasses.dataclass
class Pair:
    """A body that sends too much, and one that gives the same with less."""

    kind: str
    wasteful: Callable[..., Any]
    lean: Callable[..., Any]
    ins: Any = ROWS
    out: Any = WHOLE
    mesh: dict[str, int] = dataclasses.field(default_factory=lambda: {"data": 4})
    args: int = 1
    remedy: str = ""


def _own(x, n):
    size = x.shape[0] // n
    return lax.dynamic_slice_in_dim(x, lax.axis_index("data") * size, size)


def _ring(x, step):
    return lax.ppermute(x, "data", [(i, (i + step) % 4) for i in range(4)])


def _scan(turn, x):
    return lax.scan(lambda c, _: (turn(c), None), x, None, length=5)[0]


BOTH = {"data": 4, "model": 2}
PAIRS = {
    "a sum of what is the same": Pair(
        "same", lambda x: lax.psum(lax.pmax(x, "data"), "data"), lambda x: 4 * lax.pmax(x, "data"),
        remedy="multiply by jax.lax.axis_size('data'), or leave it out.",
    ),
    "a mean of what is the same": Pair(
        "same", lambda x: lax.pmean(lax.psum(x, "data"), "data"), lambda x: lax.psum(x, "data"),
        remedy="leave the pmean out: it gives back what goes in.",
    ),
    "over an axis too many": Pair(
        "same", lambda x: lax.psum(x, ("data", "model")), lambda x: 2 * lax.psum(x, "data"),
        mesh=BOTH, remedy="leave model out: jax.lax.psum(..., 'data'), times "
        "jax.lax.axis_size('model').",
    ),
    "gathered though the same": Pair(
        "same", lambda x, w: x[:, None] + lax.all_gather(w, "data").sum(),
        lambda x, w: x[:, None] + 4 * w.sum(), ins=(ROWS, WHOLE), out=ROWS, args=2,
    ),
    "already held": Pair(
        "held", lambda x, w: x.sum() * w + lax.all_gather(_own(w, 4), "data", tiled=True),
        lambda x, w: x.sum() * w + w, ins=(ROWS, WHOLE), out=P(None, "data"), args=2,
        remedy="use what is there.",
    ),
    "sent twice": Pair(
        "repeated", lambda x: lax.psum(x + 1, "data") * lax.psum(1 + x, "data"),
        lambda x: lax.psum(x + 1, "data") ** 2,
    ),
    "only one's own part": Pair(
        "unused", lambda x: 2 * _own(lax.all_gather(x, "data", tiled=True), 4), lambda x: 2 * x,
        out=ROWS, remedy="use what goes in.",
    ),
    "there and back": Pair(
        "unused", lambda x: jnp.tanh(_ring(_ring(x, 1), -1)), jnp.tanh, out=ROWS,
    ),
    "there and back across": Pair(
        "unused",
        lambda x: lax.all_to_all(lax.all_to_all(x, "data", 1, 0, tiled=True), "data", 0, 1,
                                 tiled=True),
        lambda x: x, out=ROWS,
    ),
    "of a sum one's own part": Pair(
        "scattered", lambda x: _own(lax.psum(x, "data"), 4),
        lambda x: lax.psum_scatter(x, "data", tiled=True), out=ROWS,
        remedy="jax.lax.psum_scatter(..., 'data', scatter_dimension=0, tiled=True) sends half as "
        "much.",
    ),
    "gathered to be added": Pair(
        "reduced", lambda x: lax.all_gather(x, "data", tiled=True).sum(0),
        lambda x: lax.psum(x.sum(0), "data"),
    ),
    "stacked to be compared": Pair(
        "reduced", lambda x: lax.all_gather(x, "data").max(0), lambda x: lax.pmax(x, "data"),
    ),
    "a sum of a sum": Pair(
        "merged", lambda x: lax.psum(lax.psum(x, "data") / 3, "model"),
        lambda x: lax.psum(x, ("data", "model")) / 3, ins=P("data", "model"), mesh=BOTH,
        remedy="one jax.lax.psum(..., ('data', 'model')) does both.",
    ),
    "a mean of a sum": Pair(
        "merged", lambda x: lax.pmean(lax.psum(x, "model"), "data"),
        lambda x: lax.psum(x, ("data", "model")) / lax.axis_size("data"),
        ins=P("data", "model"), mesh=BOTH,
        remedy="one jax.lax.psum(..., ('model', 'data')), divided by jax.lax.axis_size('data'), "
        "does both.",
    ),
    "a sum of a mean": Pair(
        "merged", lambda x: lax.psum(lax.pmean(x, "model"), "data"),
        lambda x: lax.psum(x, ("data", "model")) / lax.axis_size("model"),
        ins=P("data", "model"), mesh=BOTH,
        remedy="one jax.lax.psum(..., ('model', 'data')), divided by jax.lax.axis_size('model'), "
        "does both.",
    ),
    "a mean of a mean": Pair(
        "merged", lambda x: lax.pmean(lax.pmean(x, "model"), "data"),
        lambda x: lax.pmean(x, ("data", "model")), ins=P("data", "model"), mesh=BOTH,
        remedy="one jax.lax.pmean(..., ('model', 'data')) does both.",
    ),
    "summed before it is scattered": Pair(
        "order", lambda x: lax.psum_scatter(lax.psum(x, "model"), "data", tiled=True),
        lambda x: lax.psum(lax.psum_scatter(x, "data", tiled=True), "model"),
        ins=P("data", "model"), out=ROWS, mesh=BOTH,
        remedy="scatter first, and sum the parts: it sends one part in 4.",
    ),
    "gathered before it is summed": Pair(
        "order", lambda x: lax.pmax(lax.all_gather(x, "data", tiled=True), "model"),
        lambda x: lax.all_gather(lax.pmax(x, "model"), "data", tiled=True),
        ins=P("data", "model"), mesh=BOTH,
    ),
    "at every turn": Pair(
        "every iteration", lambda x, w: _scan(lambda c: jnp.tanh(c + lax.psum(x, "data") @ w), x),
        lambda x, w: (lambda total: _scan(lambda c: jnp.tanh(c + total @ w), x))(
            lax.psum(x, "data")
        ),
        ins=(ROWS, WHOLE), out=ROWS, args=2,
    ),
    "added up in a loop": Pair(
        "added up",
        lambda x: _total(lambda row: lax.psum(row.sum() * row, "data").reshape(2, 4), x),
        lambda x: lax.psum(_total(lambda row: (row.sum() * row).reshape(2, 4), x), "data"),
    ),
    "means added up in a loop": Pair(
        "added up",
        lambda x: _total(lambda row: 3 * lax.pmean(row.sum() * row, "data"), x),
        lambda x: 3 * lax.pmean(_total(lambda row: row.sum() * row, x), "data"),
    ),
}  # fmt: skip


def _total(term, x):
    """What a loop over rows adds up."""
    like = jax.eval_shape(term, x[0])
    start = jnp.zeros(like.shape, like.dtype) + 0 * x[0, 0]
    return lax.scan(lambda total, row: (total + term(row), None), start, x)[0]


def _report(body: Any, pair: Pair) -> sw.Report:
    args = [shaped(*shape) for shape in (X, (8, 8))[: pair.args]]
    options = {"in_specs": pair.ins, "out_specs": pair.out, "check_vma": False}
    return explained(body, *args, mesh=sw.mesh(pair.mesh), **options)


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_redundant_can_be_left_out(name):
    pair = PAIRS[name]
    report, lean = _report(pair.wasteful, pair), _report(pair.lean, pair)
    kinds = [use.redundant.kind for use in report.collectives if use.redundant]
    assert pair.kind in kinds
    assert not lean.redundant, lean
    assert report.redundant_bytes > 0
    assert report.bytes_sent - report.redundant_bytes == lean.bytes_sent
    if pair.remedy:
        assert pair.remedy in [use.redundant.remedy for use in report.redundant if use.redundant]

    args = [normal(*shape) for shape in (X, (8, 8))[: pair.args]]
    specs = (pair.ins, pair.out)
    results = [
        sw.simulate(spmd(body, *specs, check_vma=False), mesh=sw.mesh(pair.mesh))(*args)
        for body in (pair.wasteful, pair.lean)
    ]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_the_time_saved_is_the_time_between_the_two(name):
    pair = PAIRS[name]
    machine = sw.Hardware.named("h200-network")
    report = _report(pair.wasteful, pair).on(machine)
    lean = _report(pair.lean, pair).on(machine)
    assert report.cost
    assert lean.cost
    between = report.cost.communication - lean.cost.communication
    assert report.cost.redundant == pytest.approx(max(0.0, between), rel=1e-6, abs=1e-12)
    assert report.cost.redundant == pytest.approx(sum(report.cost.saved))


RIGHT = {
    "a part of another": lambda x: _other(x),
    "a ring that does not close": lambda x: _ring(_ring(x, 1), 1),
    "a shift that leaves one out": lambda x: lax.ppermute(
        lax.psum(x, "data"), "data", [(i, i + 1) for i in range(3)]
    ),
    "the whole is used too": lambda x: (
        lambda whole: _own(whole, 4) + whole.sum()
    )(lax.all_gather(x, "data", tiled=True)),
    "the sum is used too": lambda x: (
        lambda total: jnp.tile(_own(total, 4), (4, 1)) + total
    )(lax.psum(x, "data")),
    "added along another dimension": lambda x: lax.all_gather(x, "data", tiled=True).sum(1)[:4],
    "a sum that is used between": lambda x: (
        lambda total: lax.pmax(total * x, "data") + total
    )(lax.psum(x, "data")),
    "a loop that changes it": lambda x: _scan(lambda c: lax.psum(c, "data") / 4 + x, x),
    "a share that is passed on": lambda x: (lambda s: s + 2 * _ring(s, 1))(x.T @ x),
    "a share that goes round": lambda x: _scan(lambda c: _ring(c, 1) + 1, x.T @ x),
    "a share that comes to another": lambda x: jnp.tanh(_ring(_ring(x.T @ x, 1), 1)),
    "a share that is looked at as it goes round": lambda x: lax.scan(
        lambda c, _: (_ring(c, 1), jnp.tanh(c)), x.T @ x, None, length=5
    )[1],
    "the gradient of a ring": lambda x: jax.grad(
        lambda w: jnp.sum((x @ _ring(x @ w, 1).T) ** 2)
    )(jnp.ones((8, 8))),
    "each device's own": lambda x: lax.psum(x * lax.axis_index("data"), "data"),
    "a total that is looked at": lambda x: lax.scan(
        lambda total, row: ((new := total + lax.psum(row, "data")), jnp.tanh(new)), 0 * x[0], x
    )[1],
    "a sum that is squared before it is added": lambda x: _total(
        lambda row: lax.psum(row, "data") ** 2, x
    ),
    "maxima added up": lambda x: _total(lambda row: lax.pmax(row, "data"), x),
}  # fmt: skip


def _other(x):
    whole = lax.all_gather(x, "data", tiled=True)
    following = (lax.axis_index("data") + 1) % 4
    return lax.dynamic_slice_in_dim(whole, following * 4, 4)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_what_is_needed(name):
    report = explained(RIGHT[name], shaped(*X), check_vma=False)
    assert report.collectives
    assert [use.redundant for use in report.redundant] == []
    assert all(use.meaning for use in report.collectives)


def test_a_whole_array_outside_is_not_held_by_a_device():
    """`x` is split where it goes in: no device has it, though the program's argument is whole."""

    def program(x, *, mesh):
        def body(part):
            return lax.all_gather(part, "data", tiled=True)

        gathered = jax.shard_map(body, mesh=mesh, in_specs=ROWS, out_specs=P(), check_vma=False)
        return gathered(x) + x

    assert not sw.explain(program, shaped(*X), mesh=sw.mesh(data=4)).redundant


def test_two_loops_are_not_one():
    """What two loops step through has one name in the analysis, and is not the same."""

    def body(x, y):
        def turn(c, row):
            return jnp.tanh(c + lax.psum(row, "data")), None

        return lax.scan(turn, x[0], x)[0] + lax.scan(turn, y[0], y)[0]

    specs = (P(None, "data"), P(None, "data"))
    report = explained(body, shaped(3, 8), shaped(3, 8), in_specs=specs, out_specs=P("data"),
                       check_vma=False)  # fmt: skip
    assert len(report.collectives) == 2
    assert not report.redundant


def test_the_textbook_mistake():
    """Half of the traffic of `pmean(grad(...))` is of gradients that are summed already."""

    def step(w, x):
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return lax.pmean(grads, "data")

    report = explained(step, shaped(8, 8), shaped(16, 8), in_specs=(WHOLE, ROWS), out_specs=WHOLE)
    assert report.redundant_bytes == report.bytes_sent // 2
    found = one(report, 1)
    assert found.reason == "pmean of what is already the same on all devices along data"
    text = str(report.on("h200-node"))
    assert "Redundant traffic: 384 B of 768 B, 50 %; 12 µs on h200-node" in text
    assert "    a share of a sum over data → the whole\n" in text
    data = report.to_dict()
    assert data["redundant_bytes"] == 384
    assert data["collectives"][0]["meaning"] == {
        "before": "a share of a sum over data",
        "after": "the whole",
    }
    assert data["collectives"][1]["redundant"]["kind"] == "same"


def test_findings_stand_beside_their_traffic():
    def program(w, x, *, mesh):
        def body(w, x):
            grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
            return lax.pmean(grads, "data")

        return jax.shard_map(body, mesh=mesh, in_specs=(WHOLE, ROWS), out_specs=WHOLE)(w, x)

    args, mesh = (shaped(8, 8), shaped(16, 8)), sw.mesh(data=4)
    report = sw.explain(program, *args, mesh=mesh)
    assert report.findings == ()
    found = report.beside(sw.prove(program, *args, mesh=mesh, run=False)).findings
    assert [one.code for one in found] == ["SW401"]
    assert found[0].certain
    assert [report.collectives[place].direction for place in found[0].collectives] == ["backward"]
    assert "is 4 times" in found[0].message
    assert found[0].remedy.startswith("Suggestion (not verified): ")
    (fixed,) = report.beside(sw.check(program, *args, mesh={"data": [1, 4]})).findings
    assert fixed.remedy.startswith("Fix (proved): let `w` vary over ")
    assert 'lax.pcast(w, "data", to="varying")' in fixed.remedy

    def right(x, *, mesh):
        return jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=ROWS, out_specs=ROWS)(x)

    with pytest.raises(sw.ArgumentError, match="it is set beside an int"):
        report.beside(7)
    quiet = sw.explain(right, shaped(8), mesh=mesh)
    assert quiet.beside(sw.prove(right, shaped(8), mesh=mesh)).findings == ()


def test_autodiff_without_the_check():
    def step(w, x):
        return jax.grad(lambda w: lax.psum((x @ w).sum(), "data"))(w)

    options = {"in_specs": (WHOLE, ROWS), "out_specs": WHOLE, "check_vma": False}
    report = explained(step, shaped(8, 8), shaped(16, 8), **options)
    assert "with check_vma=True it sends nothing" in one(report).remedy


def test_what_checkpoint_sends_again_is_a_choice():
    def step(w, x):
        @jax.checkpoint
        def layer(x):
            return jnp.tanh(x @ lax.all_gather(w, "data", tiled=True))

        return jax.grad(lambda x: layer(layer(x)).sum())(x)

    report = explained(step, shaped(8, 8), shaped(16, 8), in_specs=(ROWS, ROWS))
    again = [use for use in report.collectives if use.redundant]
    assert [use.redundant.kind for use in again if use.redundant] == ["recomputed"] * 2
    assert one(report, report.collectives.index(again[0])).memory == 8 * 8 * 4
    assert report.redundant_bytes == 0
    assert report.on("h200-node").cost.redundant == 0
    assert "Traffic that memory could spare\n" in str(report)
    assert ", for 512 B of memory: jax.checkpoint sends again" in str(report)


def test_latency_is_saved_only_with_the_whole_message():
    """Two sums stand side by side and go as one message; one of them is redundant."""

    def body(x):
        peak = lax.pmax(x, "data")
        return lax.psum(peak, "data") + lax.psum(x, "data")

    report = explained(body, shaped(*X), out_specs=WHOLE, check_vma=False).on("h200-node")
    assert len(report.launches) == 2
    (place,) = [i for i, use in enumerate(report.collectives) if use.redundant]
    machine, sizes = sw.Hardware.named("h200-node"), {"data": 4}
    time = costs.seconds(report.collectives[place], machine, sizes)
    assert report.cost.saved[place] == pytest.approx(time.bandwidth)


def test_a_branch_that_is_not_counted_is_not_redundant():
    def body(x):
        peak = lax.pmax(x, "data")
        heavy = lambda p: lax.psum(x, "data") + lax.pmin(x, "data")  # noqa: E731
        return lax.cond(peak.sum() > 0, lambda p: lax.psum(p, "data"), heavy, peak)

    report = explained(body, shaped(*X), out_specs=WHOLE, check_vma=False)
    assert any(use.redundant for use in report.collectives)
    assert report.redundant == ()
    assert report.redundant_bytes == 0


# --- against numbers


@pytest.mark.parametrize("number", range(16))
def test_claims_hold_for_random_programs(number):
    f, args, sizes = wasteful(("claims", number))
    _, failures = wrong_claims(f, args, sw.mesh(**sizes))
    assert failures == []


def test_a_false_claim_would_be_found(monkeypatch):
    """With a meaning that calls every value the same, numbers contradict."""
    from shardwise._meaning import Value

    f, args, sizes = spmd(lambda x: lax.psum(x, "data"), out_specs=WHOLE), [normal(*X)], {"data": 4}
    assert wrong_claims(f, args, sw.mesh(**sizes))[1] == []
    monkeypatch.setattr(Value, "axes", frozenset())
    counts, failures = wrong_claims(f, args, sw.mesh(**sizes))
    assert counts["same"] == 1
    assert "the operand differs along data" in failures[0]


def test_a_gradient_that_every_turn_of_a_loop_sums():
    """A recurrent network: its weights can be made each device's own before the loop."""

    def gradient(own):
        def body(w, x):
            def loss(w):
                w = lax.pcast(w, "data", to="varying") if own else w
                step = lambda h, row: (jnp.tanh(row + h @ w), None)  # noqa: E731
                h, _ = lax.scan(step, 0 * x[:, 0], x.swapaxes(0, 1))
                return lax.psum(jnp.sum(h**2), "data")

            return jax.grad(loss)(w)

        specs = {"in_specs": (P(), P("data")), "out_specs": P()}
        return explained(body, shaped(8, 8), shaped(16, 5, 8), mesh=sw.mesh(data=4), **specs)

    report, lean = gradient(False), gradient(True)
    (use,) = report.redundant
    assert use.redundant
    assert use.redundant.kind == "added up"
    assert "jax.lax.pcast(value, 'data', to='varying')" in use.redundant.remedy
    assert not lean.redundant
    assert report.bytes_sent - report.redundant_bytes == lean.bytes_sent


def test_what_a_checkpoint_adds_up_again_is_no_gradient():
    """The loop that is computed again belongs to the backward pass, its sums to the forward one."""

    def body(x):
        @jax.checkpoint
        def loss(x):
            return jnp.sum(jnp.sin(_total(lambda row: lax.psum(jnp.sin(row), "data"), x)) ** 2)

        return jax.grad(loss)(x)

    specs = {"in_specs": P(None, "data"), "out_specs": P(None, "data"), "check_vma": False}
    report = explained(body, shaped(5, 8), mesh=sw.mesh(data=4), **specs)
    (use,) = report.redundant
    assert use.redundant
    assert use.redundant.kind == "added up"
    assert use.redundant.remedy.startswith("add up each device's own, and psum the total after")
