"""The compiler as the oracle of our own record: what a `shard_map` sends, traced and compiled.

    python -m tests.compiler.oracle [--workers 2] [part of a name ...]

Every program of the gallery and of the conformance table is explained twice: from its trace alone,
and from the HLO that XLA optimised. Each collective that only one of the two has needs a reason.
Where the compiler removed or moved it, that is the pass that did: the program is compiled again,
and the module is read after each pass. A difference without a reason is a failure.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..devices import request_devices

request_devices()
sys.path.append(str(Path(__file__).parents[2] / "examples"))

import argparse  # noqa: E402
import collections  # noqa: E402
import concurrent.futures  # noqa: E402
import dataclasses  # noqa: E402
import functools  # noqa: E402
import math  # noqa: E402
import multiprocessing  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from typing import Any  # noqa: E402
from unittest import mock  # noqa: E402

import jax  # noqa: E402

import shardwise as sw  # noqa: E402
from shardwise._analysis.compiler import worker  # noqa: E402
from shardwise._analysis.compiler.hlo import parse  # noqa: E402
from shardwise._analysis.compiler.sent import Reader, sent_in  # noqa: E402
from shardwise._jax import compiling  # noqa: E402

from ..conformance import table  # noqa: E402
from ..explain.test_xla import GALLERY, SHAPES  # noqa: E402
from ..test_examples import load  # noqa: E402

Explain = Callable[..., sw.Report]

HOISTED = "while-loop-invariant-code-motion"

PASSES = {
    HOISTED: "hoisted out of a loop",
    "algsimp": "of a constant: computed by the compiler",
    "call-inliner": "unreachable or dead once calls are inlined",
    "cse": "merged: the same collective of the same value",
    "dce": "dead",
    "simplify-while-loops": "in a loop that never runs, or whose result nobody needs",
}
"""What it means if a pass of XLA removes a collective, or takes it out of a loop."""

INSERTED = "inserted by the compiler, as compile=False announces"
NOT_ANNOUNCED = "inserted by the compiler, and not announced: a fault of the record"
NOTHING = "sends nothing (one device, no bytes, or each to itself): dropped"
NEVER = "in a scan of length 0: dropped"
UNROLLED = "in an unrolled loop: the same number in several instructions"
TRIPS = "in a while whose trip count the compiler knows"
OTHER_MESH = "over an axis of another mesh of the same devices"
FEWER_AXES = "a ppermute that moves along fewer axes than it names"
UNSUPPORTED = "not compiled: XLA has no such collective on CPUs"

KNOWN = {"jacobian_of_jacobian": NOT_ANNOUNCED}
"""Programs with collectives of the compiler that nothing announces: it splits an array that the
program leaves whole, because a reshaped part of it is needed split."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What two collectives have to have in common to be the same."""

    name: str
    axes: tuple[str, ...]
    group_size: int
    dtype: str
    bytes: int
    bytes_sent: int
    count: int | None
    """None for a loop whose trip count is unknown."""


def kinds(report: sw.Report) -> collections.Counter[Kind]:
    """Count the collectives of the program itself; axes of size 1 do not matter, nor does order."""
    mesh = {axis.name: axis.size for axis in report.mesh}
    return collections.Counter(
        Kind(
            use.name,
            tuple(sorted(name for name in use.axes if mesh.get(name) != 1)),
            use.group_size,
            use.dtype,
            use.bytes,
            use.bytes_sent,
            use.count,
        )
        for use in report.collectives
        if use.by == "program"
    )


@dataclasses.dataclass
class Outcome:
    """One program, or the sum of several."""

    programs: int = 0
    predicted: int = 0
    kept: int = 0
    messages: int = 0
    same: int = 0
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    unexplained: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for field in dataclasses.fields(self):
            own = getattr(self, field.name)
            setattr(self, field.name, own + getattr(other, field.name))


# --- programs


def cases() -> dict[str, Explain]:
    """Return for each program a function of `compile=` that explains it."""
    found: dict[str, Explain] = {name: functools.partial(_gallery, name) for name in GALLERY}
    return found | {str(row): functools.partial(_conformance, row) for row in table.rows()}


def _gallery(name: str, compile: Any) -> sw.Report:
    module = load(name)
    args = jax.eval_shape(functools.partial(module.example_args, **GALLERY[name]))
    mesh = sw.mesh(dict(zip(module.AXES, SHAPES[len(module.AXES)], strict=True)))
    return sw.explain(module.step, *args, mesh=mesh, compile=compile)


def _conformance(row: table.Row, compile: Any) -> sw.Report:
    each = row.program

    def step(*args: Any, mesh: Any) -> Any:
        spmd = table.Spmd(mesh, row.check_vma)
        return each.around(lambda *args: each.run(spmd, *args))(*args)

    with each.setting(), jax.numpy_dtype_promotion("strict"):
        mesh = sw.mesh(**row.sizes)
        return sw.explain(step, *each.args(row.sizes), mesh=mesh, compile=compile)


# --- comparison


def compare(name: str, explain: Explain) -> Outcome:
    """Compare what a program's trace predicts with what the compiler keeps."""
    traced = explain(compile=False)
    predicted = kinds(traced)
    result = Outcome(1, predicted.total())
    with mock.patch.object(worker, "compiled", wraps=worker.compiled) as spy:
        try:
            compiled = explain(compile=True)
        except worker.CompileError as error:
            is_missing = re.search(r"primitive '\w+' not found for platform cpu", str(error))
            _note(result, name, UNSUPPORTED if is_missing else None, predicted.total(), error)
            return result
    kept = kinds(compiled)
    result.kept = len(compiled.collectives)
    result.messages = len({use.launch for use in compiled.collectives})
    result.same = (predicted & kept).total()
    if inserted := len(compiled.collectives) - kept.total():
        known = next((KNOWN[part] for part in KNOWN if name.startswith(part)), None)
        reason = INSERTED if explain(compile="auto").compiled else known
        _note(result, name, reason, inserted, "inserted and not announced")
    missing, more = predicted - kept, kept - predicted
    mesh = {axis.name: axis.size for axis in compiled.mesh}
    for reason, count in _paired(missing, more, mesh):
        _note(result, name, reason, count, "")
    if missing or more:
        (lowered,) = spy.call_args.args
        _note_passes(result, name, predicted, missing, more, list(_history(lowered, mesh)))
    return result


def _note(result: Outcome, name: str, reason: str | None, count: int, what: object) -> None:
    if reason is None:
        result.unexplained.append(f"{name}: {count} × {what}")
    else:
        result.reasons[reason] += count


def _paired(
    missing: collections.Counter[Kind], more: collections.Counter[Kind], mesh: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """Take out what needs no pass to be explained; yield the reason and how often."""
    for kind in list(missing):
        if kind.bytes_sent == 0 or kind.count == 0:
            yield NOTHING if kind.bytes_sent == 0 else NEVER, missing.pop(kind)
    for kind in list(missing):
        others = [other for other in more if dataclasses.replace(kind, count=other.count) == other]
        runs = sum((other.count or 0) * more[other] for other in others)
        is_split = sum(more[other] for other in others) > missing[kind]
        if is_split and kind.count is not None and runs == kind.count * missing[kind]:
            yield UNROLLED, missing.pop(kind)
            for other in others:
                del more[other]
    for kind in list(missing.elements()):
        for other in more:
            if reason := _reason(kind, other, mesh):
                missing.subtract([kind])
                more.subtract([other])
                yield reason, 1
                break
        missing += collections.Counter()  # drops zeros
        more += collections.Counter()


def _reason(kind: Kind, other: Kind, mesh: dict[str, int]) -> str | None:
    if dataclasses.replace(kind, count=other.count) == other and kind.count is None:
        return TRIPS
    if dataclasses.replace(kind, axes=other.axes, group_size=other.group_size) != other:
        return None
    if kind.name == "ppermute" and {*other.axes} < {*kind.axes}:
        return FEWER_AXES
    is_elsewhere = kind.group_size != math.prod(mesh.get(name, 0) for name in kind.axes)
    return OTHER_MESH if is_elsewhere and kind.group_size == other.group_size else None


# --- the passes of the compiler

Stage = tuple[str, collections.Counter[Kind]]
"""A pass, and the collectives after it; the count is 1, or None in any loop."""


def _in_loop(kind: Kind) -> Kind:
    return kind if kind.count == 1 else dataclasses.replace(kind, count=None)


def _history(lowered: compiling.Lowered, mesh: dict[str, int]) -> Iterator[Stage]:
    """Compile in this process, and yield the collectives after each pass of the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(compiling, "PASSES", ".*"):
            compiling.compile_into(folder, lowered)
        for file in sorted(Path(folder).glob("*.after_*.before_*.txt")):
            (done,) = re.findall(r"\.after_(.+)\.before_", file.name)
            reader = Reader(parse(file.read_text()), mesh, lowered.devices)
            yield (
                done,
                collections.Counter(
                    Kind(
                        sent.name,
                        tuple(sorted(name for name in sent.axes if mesh[name] != 1)),
                        sent.group_size,
                        sent.type.dtype,
                        sent.type.bytes,
                        sent.bytes_sent,
                        1 if sent.known and sent.times == 1 else None,
                    )
                    for sent in sent_in(reader.schedule())
                ),
            )


def _note_passes(
    result: Outcome,
    name: str,
    predicted: collections.Counter[Kind],
    missing: collections.Counter[Kind],
    more: collections.Counter[Kind],
    history: Sequence[Stage],
) -> None:
    """Note which pass removed what is missing, or put there what was not predicted.

    The module must have at least as many as predicted after one of the passes (it may have more,
    as the trace merges some itself): the difference is what later passes did.
    """
    given, changed = collections.Counter[Kind](), collections.Counter[Kind]()
    for kind, count in predicted.items():
        given[_in_loop(kind)] += count
    for kind in missing:
        changed[_in_loop(kind)] -= missing[kind]
    for kind in more:
        changed[_in_loop(kind)] += more[kind]
    for kind, difference in changed.items():
        level = given[kind]
        later = _after(history, kind, level if difference < 0 else None)
        for done, found in later:
            if found < level:
                _note(result, name, PASSES.get(done), level - found, f"{kind}, by {done}")
            elif found > level and done != HOISTED:  # what leaves a loop is counted there
                _note(result, name, None, found - level, f"{kind}, by {done}")
            level = found
        if level != given[kind] + difference:
            _note(result, name, None, difference, f"{kind}, by no pass")


def _after(history: Sequence[Stage], kind: Kind, least: int | None) -> list[tuple[str, int]]:
    """Return the passes, with the number after each, that follow the last one with `least`.

    The number before the first of them is `least`, or more. All passes by default.
    """
    counts = [(done, found[kind]) for done, found in history]
    places = [place for place, (_, found) in enumerate(counts) if least and found >= least]
    return counts[places[-1] + 1 :] if places else counts if least is None else []


# --- the command


def run(name: str) -> Outcome:
    """Compare one program; used by worker processes."""
    return compare(name, cases()[name])


def main() -> int:
    """Compare all programs, or those whose names contain a text, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.oracle")
    parser.add_argument("names", nargs="*", help="parts of the names of programs; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    names = [n for n in cases() if not options.names or any(part in n for part in options.names)]
    total = Outcome()
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        for outcome in pool.map(run, names):
            total.add(outcome)
    rows = {
        "programs": total.programs,
        "collectives predicted": total.predicted,
        "collectives kept": total.kept,
        "messages that these are combined into": total.messages,
        "the same in both": total.same,
        **dict(total.reasons.most_common()),
        "unexplained": len(total.unexplained),
    }
    print("\n".join(f"{count:>6,}  {what}" for what, count in rows.items()))
    print(*total.unexplained, sep="\n")
    return 1 if total.unexplained or not names else 0


if __name__ == "__main__":
    sys.exit(main())
