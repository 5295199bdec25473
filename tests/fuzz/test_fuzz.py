"""Random programs, simulated against real; `python -m tests.fuzz` runs more of them."""

from collections import Counter
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .. import patience
from ..support import real_mesh
from . import campaign, tally, together, trial
from .draw import Draw
from .generate import generate
from .programs import groups, make
from .shrink import shrink

PROGRAMS = range(20)
HANGS = range(9, 200, 20)


def run(seed, numbers):
    """What came of these programs, run in a process of their own."""
    kinds = Counter()
    for report in campaign.stretch(seed, list(numbers)):
        kinds[report["kind"]] += 1
        if report["kind"] == "wrong":
            script = make(seed, report["number"]).script()
            pytest.fail(f"program {report['number']}: {report['why']}\n\n{script}")
    return kinds


def test_simulated_is_real():
    kinds = run(0, PROGRAMS)
    # Programs that JAX refuses prove nothing.
    assert kinds["right"] + kinds["found"] > 0.8 * len(PROGRAMS), kinds


def test_every_deadlock_is_found():
    assert run(1, HANGS) == {"found": len(HANGS)}


# --- the generator itself


@pytest.mark.parametrize("number", range(3))
def test_a_program_reads_as_the_code_that_runs(number):
    program = generate(Draw(f"reads {number}"))
    code = program.code()
    compile(program.script(), "script", "exec")
    assert code in program.script()
    assert generate(Draw(f"reads {number}")).code() == code


WANTED = {
    *("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute"),
    *("partial ppermute", "psum in groups", "psum of integers", "all_gather to invarying"),
    *("all_to_all in groups", "psum_scatter in groups", "ragged_all_to_all"),
    *("psum of products", "psum of transposed products", "psum of convolutions"),
    *("psum of scattered sums", "psum of sums scattered onto a value"),
    *("scan", "reverse scan", "fori_loop", "while_loop", "cond", "switch"),
    *("loops of different lengths", "branches that differ over other axes"),
    *("2 nested loops and branches", "3 nested loops and branches"),
    *("a branch in a branch", "fori_loop as long as data says"),
    *("a collective in a loop's condition", "custom_vjp with residuals"),
    *("grad in the body", "jvp in the body", "vmap in the body", "jit in the body"),
    *("checkpoint in the body", "composite in the body", "refs in the body"),
    *("a ref across a collective", "a ref written in a loop", "a ref written in a branch"),
    *("threefry2x32 keys", "rbg keys", "unsafe_rbg keys", "keys as arguments"),
    *("keys split on each device", "an output that only seems replicated"),
    *("special values", "zeros values", "large values", "complex values", "bits values"),
    *("float8_e4m3fn values", "float8_e8m0fnu values", "float16 values", "bfloat16 values"),
    *("psum of float16", "psum of float8", "pmax of special values", "weak types", "float64"),
    *("computed in float16", "computed in bfloat16", "reduced", "unreduced"),
    *("shard_map", "ref argument", "static", "nested", "explicit", "inferred", "placed"),
    *("check_vma", "no check_vma", "1 axes", "2 axes", "3 axes", "plain", "jit", "vmap"),
    *("grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian", "remat"),
    *("vmap of grad", "grad of vmap", "named vmap", "refs"),
    *("grad of the simulated", "vjp of the simulated", "jvp of the simulated"),
    *("linearize of the simulated", "jacfwd of the simulated", "hessian of the simulated"),
    *("vmap of the simulated", "named vmap of the simulated", "vmap of grad of the simulated"),
}


def test_the_generator_covers_the_language():
    seen = Counter(f for k in range(5000) for f in make(0, k).features)
    assert {f for f in WANTED if seen[f] < 3} == set()


def test_a_failing_program_is_made_smaller():
    program = generate(Draw("small 1"), length=9)

    def fails(candidate):
        return "lax." in str(candidate.body.statements)

    small = shrink(program, fails, seconds=patience.HANGS)
    assert fails(small)
    assert len(str(small.body)) < len(str(program.body))
    compile(small.script(), "script", "exec")


# --- the comparison


def test_a_wrong_number_is_seen():
    """A check that the check can fail."""
    want = trial.plain(({"a": jax.numpy.ones(3)},))
    assert trial.compare(want, want).kind == "right"
    for got in (
        ({"a": jax.numpy.ones(3) * 1.0001},),
        ({"a": jax.numpy.ones(4)},),
        ({"a": jax.numpy.ones(3, int)},),
        ({"b": jax.numpy.ones(3)},),
        ({"a": jax.numpy.array([1.0, 1.0, np.nan])},),
        ({"a": jax.lax.full((3,), 1.0)},),  # a weak type
    ):
        assert trial.compare(trial.plain(got), want).kind == "wrong"


def test_bits_are_seen_where_nothing_was_rounded():
    want, got = (trial.plain((jax.numpy.float32(zero),)) for zero in (0.0, -0.0))
    assert trial.compare(got, want).kind == "right"
    assert trial.compare(got, want, bits={"[0]"}).kind == "wrong"
    close = trial.plain((jax.numpy.float32(1e-7),))
    assert trial.compare(close, want).kind == "right"
    assert trial.compare(close, want, bits={"[0]"}).kind == "wrong"


def test_the_ragged_exchange_by_its_definition():
    """What stands in for it on devices is what the documentation of JAX says, in NumPy."""
    table = [[1, 0, 2], [0, 3, 1], [2, 1, 1]]
    rows = np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2)
    want = np.full((3, 5, 2), -1, np.float32)
    for sender in range(3):
        for receiver in range(3):
            start, count = sum(table[sender][:receiver]), table[sender][receiver]
            place = sum(table[s][receiver] for s in range(sender))
            want[receiver, place : place + count] = rows[sender, start : start + count]
    space = trial.load(make(0, 0)).functions
    space["REAL"][0] = True

    def body(part):
        output = jax.lax.pcast(jax.numpy.full((5, 2), -1.0), "x", to="varying")
        return space["ragged"](part[0], output, table, "x")[None]

    call = jax.shard_map(body, mesh=real_mesh(x=3), in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_array_equal(jax.jit(call)(rows), want)


# --- the campaign


def report(number, kind="right", **more):
    return {"number": number, "kind": kind, "why": "", "error": 0.0, "features": ["psum"], **more}


def test_a_tally_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "tally.json"
    run = tally.resume(path, "1.0", 7)
    for number in (0, 1, 3):
        run.add(report(number, "wrong" if number == 1 else "right", why="off by 0.5"))
    tally.save(path, run)
    other = tally.Run("2.0", 7)
    other.add(report(0, "hung"))
    tally.save(path, other)

    again = tally.resume(path, "1.0", 7)
    assert again.done == {0, 1, 3}
    assert again.failed == {1: "off by 0.5"}
    again.add(report(1))
    assert again.kinds == {"right": 3, "wrong": 0}
    tally.save(path, again)
    table = tally.table(tally.read(path))
    assert "| programs | 3 | 1 |" in table
    assert "| psum | 4 | 0 |" in table


def test_a_process_that_dies_is_told_by_what_it_was_doing(monkeypatch):
    said = iter(
        [
            [report(0), {"phase": "real"}],
            [{"phase": "real"}, {"phase": "simulated"}],
            [report(2)],
        ]
    )
    monkeypatch.setattr(campaign, "groups", lambda _, numbers: [[n] for n in numbers])
    monkeypatch.setattr(campaign, "_process", lambda *_: iter(next(said)))
    kinds = {r["number"]: r["kind"] for r in campaign.stretch(0, [0, 1, 3, 2])}
    assert kinds == {0: "right", 1: "hung", 3: "wrong", 2: "right"}


def test_a_group_that_dies_is_taken_apart(monkeypatch):
    def process(_, groups, __):
        for group in groups:
            yield {"phase": "simulated"}
            if 3 in group:
                return
            yield from map(report, list(group))

    monkeypatch.setattr(campaign, "groups", lambda _, numbers: [numbers[:2], numbers[2:]])
    monkeypatch.setattr(campaign, "_process", process)
    kinds = {r["number"]: r["kind"] for r in campaign.stretch(0, list(range(7)))}
    assert kinds == {n: "wrong" if n == 3 else "right" for n in range(7)}


# --- several programs compiled as one


def test_every_program_is_in_one_group():
    made = groups(0, range(200))
    assert sorted(n for group in made for n in group) == list(range(200))
    assert max(map(len, made)) > 5
    for group in made:
        programs = [make(0, n) for n in group]
        assert len({(p.x64, p.hangs, np.prod(list(p.mesh.values()))) for p in programs}) == 1


def test_each_call_has_an_outcome_of_its_own():
    """One that cannot be traced, one that cannot be compiled, and one that fails as it runs."""

    def untraceable(x):
        raise TypeError("no")

    def uncompilable(x):
        return jax.experimental.io_callback(len, jax.ShapeDtypeStruct((), "O"), x)

    def failing(x):
        def tell(x):
            raise ValueError("told")

        return jax.pure_callback(tell, jax.ShapeDtypeStruct((), "float32"), x)

    calls = [lambda x: x + 1, untraceable, lambda x: 2 * x, uncompilable, failing, lambda x: x - 1]
    outs = together.call_together([(f, (np.float32(3),)) for f in calls])
    assert [outs[0], outs[2], outs[5]] == [4, 6, 2]
    assert isinstance(outs[1], TypeError)
    assert isinstance(outs[3], Exception)
    assert "told" in str(outs[4])


def test_a_wrong_program_among_others_is_told(monkeypatch):
    """A check that a group can fail, and only its wrong member."""
    plain = [p for p in map(partial(make, 0), range(200)) if p.jit and p.around == "plain"]
    alike = [p for p in plain if p.form == "shard_map" and p.mesh == {"x": 4}]
    alike = [p for p in alike if not p.x64 and not p.hangs]
    programs = sorted(alike, key=lambda p: len(p.code()))[:3]
    load, tampered = trial.load, []

    def changed(program):
        case = load(program)
        if program is programs[1]:
            transform = case.functions["transform"]
            tampered.append(program)
            case.functions["transform"] = lambda run: _off(transform(run), case.functions["REAL"])
            program.outside = True
        return case

    monkeypatch.setattr(trial, "load", changed)
    kinds = [outcome.kind for outcome in trial.attempt_all(programs)]
    assert tampered
    assert kinds == ["right", "wrong", "right"]


def _off(run, real):
    """One result a little larger where the program is simulated."""

    def other(*args):
        leaves, tree = jax.tree.flatten(run(*args))
        k = next(k for k, leaf in enumerate(leaves) if leaf.dtype == np.float32 and leaf.size)
        leaves[k] = leaves[k] if real[0] else leaves[k] + 0.001
        return jax.tree.unflatten(tree, leaves)

    return other
