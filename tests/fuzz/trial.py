"""One program, run for real and simulated, and compared."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import TOLERANCE, real_mesh
from .language import Argument, Program


@dataclass(frozen=True)
class Outcome:
    """What came of a program: right, refused (by JAX, or by name), or wrong, and why.

    `error` is the distance.
    """

    kind: str
    why: str = ""
    error: float = 0.0


def attempt(program: Program, tell: Callable[[str], None] = lambda phase: None) -> Outcome:
    """Run a program both ways, telling which is next. Only what JAX itself runs counts."""
    if program.hangs:
        return attempt_to_hang(program)
    functions = load(program)
    args = arguments(program)
    tell("real")
    try:
        want = run_real(program, functions, args)
    except Exception as error:
        return Outcome("refused", f"{type(error).__name__}: {error}")
    tell("simulated")
    try:
        got = run_simulated(program, functions, args)
    except Exception as error:
        if _may_refuse(program, error):
            return Outcome("refused", str(error))
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    return compare(got, want)


def _may_refuse(program: Program, error: Exception) -> bool:
    """One thing that JAX runs is refused by name: see `_refuse_split_residuals` in `_call`."""
    return (
        isinstance(error, sw.UnsupportedError)
        and "declared the same along" in str(error)
        and program.outside
        and {"an output that only seems replicated", "no check_vma"} <= set(program.features)
    )


def attempt_simulated(program: Program) -> Outcome:
    """Run a program simulated only: whether it raises."""
    try:
        run_simulated(program, load(program), arguments(program))
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    return Outcome("right")


def attempt_to_hang(program: Program) -> Outcome:
    """Run a program that would hang on real devices: it has to end in a DeadlockError."""
    functions = load(program)
    try:
        got = run_simulated(program, functions, arguments(program))
    except sw.DeadlockError as error:
        told = "<fuzz" in str(error)
        return Outcome("right") if told else Outcome("wrong", f"no line in: {error}")
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    return Outcome("wrong", f"a number instead of a DeadlockError: {got}")


def load(program: Program) -> dict[str, Any]:
    """Define the program's functions; its lines show up in tracebacks and messages."""
    code = program.code()
    name = f"<fuzz {abs(hash(code)) % 10**8}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(code, name, "exec"), space)
    return space


def arguments(program: Program) -> tuple[np.ndarray, ...]:
    return tuple(_argument(a, seed) for seed, a in enumerate(program.arguments))


def _argument(argument: Argument, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if argument.dtype == "float32":
        return np.asarray(rng.uniform(-1, 1, argument.shape), np.float32)
    return np.asarray(rng.integers(0, 9, argument.shape), np.int32)


def run_real(program: Program, functions: dict[str, Any], args: Any) -> Any:
    mesh = real_mesh(**program.mesh)
    call = functools.partial(functions["program"], mesh=mesh)
    call = functions["transform"](call) if program.outside else call
    placed = jax.device_put(args, NamedSharding(mesh, P()))
    return jax.device_get(jax.jit(call)(*placed))


def run_simulated(program: Program, functions: dict[str, Any], args: Any) -> Any:
    mesh = sw.mesh(**program.mesh)
    call = sw.simulate(functions["program"], mesh=mesh, at_once=program.at_once)
    call = functions["transform"](call) if program.outside else call
    return jax.device_get((jax.jit(call) if program.jit else call)(*args))


def compare(got: Any, want: Any) -> Outcome:
    if jax.tree.structure(got) != jax.tree.structure(want):
        return Outcome("wrong", f"structure {jax.tree.structure(got)}")
    worst = 0.0
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, a), b in pairs:
        where = jax.tree_util.keystr(path)
        if a.dtype != b.dtype or a.shape != b.shape:
            return Outcome("wrong", f"{where}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}")
        error = distance(a, b)
        worst = max(worst, error)
        if not error <= TOLERANCE.get(str(b.dtype), 0.0):
            return Outcome("wrong", f"{where}: off by {error:.3g}\n got {a}\nwant {b}", error)
    return Outcome("right", error=worst)


def distance(got: Any, want: Any) -> float:
    """The largest difference. Numbers in these programs are of order one, whatever cancels."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = np.max(np.abs(want), initial=1.0)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return float(np.max(np.where(same, 0.0, np.abs(got - want)), initial=0.0) / scale)
