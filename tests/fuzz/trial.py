"""One program, run for real and simulated, and compared."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

import shardwise as sw

from ..support import TOLERANCE
from .language import Program


@dataclass(frozen=True)
class Outcome:
    """What came of a program: right, found (to hang), refused (by JAX), or wrong, and why.

    `error` is the distance.
    """

    kind: str
    why: str = ""
    error: float = 0.0


def attempt(program: Program, tell: Callable[[str], None] = lambda phase: None) -> Outcome:
    """Run a program both ways, telling which is next. Only what JAX itself runs counts."""
    with jax.enable_x64(program.x64):
        if program.hangs:
            return attempt_to_hang(program)
        functions = load(program)
        args = arguments(program, functions)
        tell("real")
        try:
            want = run_real(program, functions, args)
        except Exception as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        tell("simulated")
        try:
            got = run_simulated(program, functions, args)
        except Exception as error:
            return Outcome("wrong", f"{type(error).__name__}: {error}")
        # JAX itself has other weak types where a batch is computed step by step.
        weak = program.jit or not program.outside
        return compare(got, want, rough=program.rough, bits=bits(program), weak=weak)


def attempt_simulated(program: Program) -> Outcome:
    """Run a program simulated only: whether it raises."""
    with jax.enable_x64(program.x64):
        try:
            functions = load(program)
            run_simulated(program, functions, arguments(program, functions))
        except Exception as error:
            return Outcome("wrong", f"{type(error).__name__}: {error}")
        return Outcome("right")


def attempt_to_hang(program: Program) -> Outcome:
    """Run a program that would hang on real devices: it has to end in a DeadlockError."""
    functions = load(program)
    args = arguments(program, functions)
    try:
        got = run_simulated(program, functions, args)
    except sw.DeadlockError as error:
        told = "<fuzz" in str(error)
        return Outcome("found") if told else Outcome("wrong", f"no line in: {error}")
    except Exception as error:
        try:
            jax.make_jaxpr(_real(program, functions))(*args)
        except Exception as own:  # JAX does not even trace it
            return Outcome("refused", f"{type(own).__name__}: {own}")
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    return Outcome("wrong", f"a number instead of a DeadlockError: {got}")


def load(program: Program) -> dict[str, Any]:
    """Define the program's functions; its lines show up in tracebacks and messages."""
    code = program.code()
    name = f"<fuzz {abs(hash(code)) % 10**8}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    names, shape = tuple(program.mesh), tuple(program.mesh.values())
    types = (AxisType.Explicit if program.explicit else AxisType.Auto,) * len(names)
    devices = np.array(jax.devices()[: prod(shape)]).reshape(shape)
    space: dict[str, Any] = {"sw": sw, "mesh": Mesh(devices, names, axis_types=types)}
    space["virtual"] = AbstractMesh(shape, names, axis_types=types)
    exec(compile(code, name, "exec"), space)
    return space


def arguments(program: Program, functions: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments, as the script of the program makes them."""
    texts = [argument.code(seed) for seed, argument in enumerate(program.arguments)]
    texts = [text.replace("float32", "float64") if program.x64 else text for text in texts]
    return tuple(eval(text, functions) for text in texts)


def run_real(program: Program, functions: dict[str, Any], args: Any) -> Any:
    mesh = functions["mesh"]
    specs = eval(program.specs, functions)
    if program.form != "pmap":
        args = [
            a if isinstance(a, float) else jax.device_put(a, NamedSharding(mesh, spec))
            for a, spec in zip(args, specs, strict=True)
        ]
    call = _real(program, functions)
    functions["REAL"][0] = True
    with jax.set_mesh(mesh) if program.explicit else contextlib.nullcontext():
        return plain(jax.jit(call)(*args))


def _real(program: Program, functions: dict[str, Any]) -> Callable[..., Any]:
    call = eval(program.real, functions)
    # A simulated function is traced before it is transformed, as one inside `jit` is.
    return functions["transform"](jax.jit(call)) if program.outside else call


def run_simulated(program: Program, functions: dict[str, Any], args: Any) -> Any:
    call = eval(program.simulated, functions)
    call = functions["transform"](call) if program.outside else call
    functions["REAL"][0] = False
    return plain((jax.jit(call) if program.jit else call)(*args))


@dataclass(frozen=True)
class Leaf:
    """An array on the host, and whether its type was weak."""

    value: np.ndarray
    weak: bool

    def type(self, weak: bool = True) -> str:
        prefix = "weak " if weak and self.weak else ""
        return f"{prefix}{self.value.dtype}{list(self.value.shape)}"


def plain(results: Any) -> Any:
    """The results on the host."""

    def leaf(x: Any) -> Leaf:
        weak = bool(getattr(jax.typeof(x), "weak_type", False))
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return Leaf(np.asarray(x), weak)

    return jax.tree.map(leaf, results)


def bits(program: Program) -> set[str]:
    """The paths of results that were computed without rounding."""
    if program.around not in ("plain", "jit", "vmap"):
        return set()
    return {f"[{k}]" for k, output in enumerate(program.outputs) if output.exact}


def compare(
    got: Any,
    want: Any,
    rough: str | None = None,
    bits: Collection[str] = (),
    weak: bool = True,
) -> Outcome:
    """Compare results that were made by `plain`, as exactly as their types allow.

    Those at the paths `bits` have to be the same to the last bit, signs of zeros included.
    """
    if jax.tree.structure(got) != jax.tree.structure(want):
        return Outcome("wrong", f"structure {jax.tree.structure(got)}")
    worst = 0.0
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, a), b in pairs:
        where = jax.tree_util.keystr(path)
        if a.type(weak) != b.type(weak):
            return Outcome("wrong", f"{where}: {a.type(weak)}, not {b.type(weak)}")
        error = distance(a.value, b.value, signs=where in bits)
        allowed = 0.0 if where in bits else TOLERANCE.get(str(b.value.dtype), 0.0)
        allowed = max(allowed, TOLERANCE[rough]) if rough and allowed else allowed
        worst = max(worst, error if allowed <= 1e-5 else 0.0)
        if not error <= allowed:
            why = f"{where}: off by {error:.3g}\n got {a.value}\nwant {b.value}"
            return Outcome("wrong", why, error)
    return Outcome("right", error=worst)


def distance(got: Any, want: Any, signs: bool = False) -> float:
    """The largest difference. Numbers in these programs are of order one, whatever cancels."""
    if not jnp.issubdtype(want.dtype, jnp.complexfloating):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = np.max(np.abs(want), initial=1.0, where=np.isfinite(want))
    with np.errstate(invalid="ignore"):
        errors = np.abs(got - want)
    errors = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, errors)
    errors = np.where(np.isnan(errors), np.inf, errors)
    if signs:
        other = np.signbit(np.real(got)) != np.signbit(np.real(want))
        errors = np.where((got == 0) & (want == 0) & other, np.inf, errors)
    return float(np.max(errors, initial=0.0) / scale)
