"""One random program: proved or not, run, and both compared."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import shardwise as sw
from shardwise._analysis.prove import prove
from shardwise._base.errors import ShardwiseError
from shardwise._meaning.devices import TooLong, speaks_of

from ..fuzz import trial
from ..fuzz.__main__ import make as make_fuzz
from . import attack
from .cases import CASES
from .draw import MESHES, program
from .generate import make
from .oracle import Meaning, check_meaning

Outcome = tuple[Counter, list[str]]

MISTAKES = 0.08
NEAR = 2e-4
OTHERS = 8
"""How many other orders of the numbers to try where a refuted result is the same."""


def random_program(seed: int, number: int) -> Outcome:
    """A program that runs on any mesh."""
    made = make((seed, number), MISTAKES)
    return attempt(made.f, made.args, made.mesh)


def random_results(seed: int, number: int) -> Outcome:
    """The same, looking at results only: a tenth of the time."""
    made = make((seed, number), MISTAKES)
    counts, failures = results(made.f, made.args, made.mesh)
    return counts + Counter(programs=1), failures


def fuzz_program(seed: int, number: int) -> Outcome:
    """A program of `tests.fuzz`; most of them run on their own mesh only."""
    drawn = make_fuzz(seed, number)
    if drawn.hangs:
        return Counter({"programs that would hang": 1}), []
    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(drawn.x64):
        case = trial.load(drawn)

        def f(*args: Any, mesh: Any) -> Any:
            case.functions["REAL"][0] = isinstance(mesh, Mesh)
            call = functools.partial(case.functions["program"], mesh=mesh)
            return (case.functions["transform"](call) if drawn.outside else call)(*args)

        return attempt(f, list(case.args), drawn.mesh)


def rule_program(seed: int, number: int) -> Outcome:
    """A rule: attacked in one dtype, or every value of small programs compared with its meaning."""
    if number % 4:
        return attack.nth(seed, number - number // 4 - 1)
    number //= 4
    name = sorted(CASES)[number % len(CASES)]
    sizes = MESHES[number // len(CASES) % len(MESHES)]
    with jax.enable_x64(True):
        f, args = program([CASES[name]] * 3, (seed, number), sizes)
        counts, failures = values(f, args, sizes, tolerance=1e-7)
    return counts, [f"{name} on {sizes}: {why}" for why in failures]


KINDS: dict[str, Callable[[int, int], Outcome]] = {
    "random": random_program,
    "results": random_results,
    "fuzz": fuzz_program,
    "rules": rule_program,
}


def values(
    f: Any, args: list[Any], sizes: dict[str, int], tolerance: float | None = None
) -> Outcome:
    """Every value of a program beside its meaning, in both ways to read it."""
    counts, failures = Counter(), []
    meaning = Meaning(f, args, sw.mesh(sizes))
    apart = [axis.name for axis in speaks_of(meaning.run.body)]
    for name in (None, *apart[:1]):
        try:
            own = meaning
            if name is not None:
                own = Meaning(f, args, sw.mesh(sizes), apart=name, run=meaning.run)
            tally = check_meaning(own, tolerance)
        except TooLong:
            continue
        except AssertionError as error:
            failures.append(f"{name or ''} {error}")
            continue
        except sw.DeadlockError:
            counts["programs that would hang"] += 1
            break
        counts["values compared"] += tally.compared
        counts["values unknown"] += tally.unknown.total()
    counts["programs"] += 1
    return counts, failures


def attempt(f: Any, args: list[Any], sizes: dict[str, int]) -> Outcome:
    """Prove a program and run it."""
    try:
        counts, failures = values(f, args, sizes)
    except Exception as error:
        if "_meaning" in _origin(error):
            return Counter({"programs": 1}), [f"{type(error).__name__}: {error}"]
        return Counter({"programs that cannot be traced": 1}), []
    if counts["programs that would hang"]:
        return counts, failures
    said, wrong = results(f, args, sizes)
    return counts + said, failures + wrong


def results(f: Any, args: list[Any], sizes: dict[str, int]) -> Outcome:
    """Prove a program, and compare what it gives on the mesh with what it gives on one device."""
    counts, failures = Counter(), []
    try:
        proof = prove(f, *args, mesh=sw.mesh(sizes), run=False)
    except Exception as error:
        if "_meaning" in _origin(error) or (
            "/prove/" in _origin(error) and not _untraceable(error)
        ):
            failures.append(f"{type(error).__name__}: {error}")
        counts["programs without a run on one device"] += 1
        return counts, failures
    counts[f"programs {proof.status}"] += 1
    runs = [real(f, mesh) for mesh in (sizes, dict.fromkeys(sizes, 1))]
    equal = _equal(runs, args)
    again = None
    for k, result in enumerate(proof.results):
        same = "same" if equal[k] else "different"
        counts[f"results {result.status}, numbers {same}"] += 1
        wrong = (result.status, same) == ("proved", "different")
        if (result.status, same) == ("refuted", "same"):
            # The first device may have the largest value, so that its own maximum is that of all.
            wrong = all(_equal(runs, others)[k] for others in _others(args))
            counts["  different with other numbers"] += not wrong
        if wrong and result.status == "refuted":
            # Alike by a law that is not known here: `prove` has to withdraw it after a run.
            again = again or prove(f, *args, mesh=sw.mesh(sizes))
            status = again.results[k].status
            counts[f"  {status} after a run"] += 1
            wrong = status == "refuted"
        if wrong:
            failures.append(
                f"{result.path} is {result.status} ({result.reason}), and the numbers are {same}"
            )
    return counts, failures


def real(f: Any, sizes: dict[str, int]) -> Callable[..., list[np.ndarray]]:
    """Return a function that returns the results on real devices."""
    shape = tuple(sizes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    run = jax.jit(functools.partial(f, mesh=Mesh(devices, tuple(sizes))))
    return lambda *args: [leaf.value for leaf in jax.tree.leaves(trial.plain(run(*args)))]


def _equal(runs: list[Callable[..., list[np.ndarray]]], args: list[Any]) -> list[bool]:
    """Return whether each result is the same on the mesh as on one device."""
    got, want = (run(*args) for run in runs)
    return [alike(*pair) for pair in zip(got, want, strict=True)]


def _others(args: list[Any]) -> Iterator[list[Any]]:
    """Yield the arguments with their elements in other orders."""
    rng = np.random.default_rng(0)
    for _ in range(OTHERS):
        yield [rng.permutation(np.ravel(x)).reshape(np.shape(x)) for x in args]


def alike(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether two results are the same but for rounding."""
    if got.shape != want.shape:
        return False
    kind = np.promote_types(got.dtype, float)
    got, want = got.astype(kind), want.astype(kind)
    scale = np.max(np.abs(want), initial=1e-2, where=np.isfinite(want))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        return bool(np.all(same | (np.abs(got - want) <= NEAR * scale)))


def _origin(error: BaseException) -> str:
    """The files that an error came through, the innermost one of this project."""
    names, trace = [], error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return names[-1] if names else ""


def _untraceable(error: BaseException) -> bool:
    return isinstance(error, ShardwiseError | TypeError | ValueError)
