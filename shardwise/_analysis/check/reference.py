"""Expected results from the user's `reference`: a function of the same arguments, or a value."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._base.calls import called_wrongly
from ..._base.errors import ArgumentError, ShardingError, a_type, noting
from ..._base.numbers import convert
from ..._engine.call import simulate_p
from ..._engine.tracing import Tracing
from ..._jax.types import unplaced
from ..draw import taken_apart
from ..lift import Run, eps_of, plain, widened
from .compare import Wanted
from .numbers import few, paths_apart
from .options import refused


def wanted_of(reference: Any, base: Run, args: tuple[Any, ...]) -> list[Wanted]:
    """Return what each result of a program should be."""
    defaults = [Wanted(*row) for row in zip(base.results(), base.dtypes, strict=True)]
    if reference is None:
        return defaults
    on_base = dict(zip(base.paths, defaults, strict=True))
    run = _traced(reference, base, args) if callable(reference) else None
    if run is not None:
        weak = [aval.weak_type for aval in run.program.jaxpr.out_avals]
        # Name updated arguments as in the program, whatever the reference calls its parameters.
        paths = map(base.traced.name_of, run.traced.tree.paths)
        rows = zip(paths, run.results(), run.dtypes, weak, strict=True)
        expected = {
            path: Wanted(value, _typed(value, dtype, on_base.get(path), weakly), 0.0, i, run)
            for i, (path, value, dtype, weakly) in enumerate(rows)
        }
    else:
        result = _called(reference, base, args) if callable(reference) else reference
        leaves = jax.tree_util.tree_leaves_with_path(result)
        expected = {
            (name := "result" + jax.tree_util.keystr(path)): _array(name, leaf, on_base.get(name))
            for path, leaf in leaves
        }
    _refuse_others(expected, base)
    # A value says nothing about updated arguments: for those, one device is the reference.
    return [expected[path] if path in expected else on_base[path] for path in base.paths]


def _called(reference: Any, base: Run, args: tuple[Any, ...]) -> Any:
    mesh = {"mesh": base.mesh} if Tracing(reference, base.mesh).takes_mesh else {}
    try:
        with noting("computing the reference"):
            return reference(*_by_value(args), **mesh)
    except TypeError as error:
        rule = "The reference is a function of the same arguments as the program."
        explained = called_wrongly(reference, args, mesh, error, rule=rule)
        if explained is None:
            raise
        raise explained from None


def _by_value(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments on one device, if some are placed on a mesh."""
    leaves, rebuild = taken_apart(args)
    local_leaves = list(map(unplaced, leaves))
    moved = any(new is not old for new, old in zip(local_leaves, leaves, strict=True))
    return rebuild(local_leaves) if moved else args


def _typed(value: np.ndarray, dtype: Any, beside: Wanted | None, weakly: bool) -> Any:
    """Return the dtype of a weakly typed number: that of the result it belongs to, as in JAX."""
    if not weakly or beside is None:
        return dtype
    number = np.zeros((), dtype).item()
    typed = jnp.result_type(number, beside.dtype)
    fits = isinstance(number, float | complex) or np.array_equal(value.astype(typed), value)
    return np.dtype(typed) if fits else dtype


def _array(name: str, leaf: Any, beside: Wanted | None) -> Wanted:
    try:
        value = np.asarray(jnp.asarray(plain(leaf)))
    except (TypeError, ValueError, OverflowError) as error:
        raise refused(
            f"{name} of the reference is {a_type(leaf)}: {error}",
            "The reference is a function of the same arguments, or its result: arrays.",
            "reference=lambda *args: ..., or a pytree of arrays",
            ArgumentError,
        ) from error
    if isinstance(leaf, np.ndarray | np.generic):
        convert(np.asarray(leaf), value.dtype, f"{name} of the reference")  # raises if it cannot
    dtype = _typed(value, value.dtype, beside, type(leaf) in (int, float, complex))
    return Wanted(widened(value, value.dtype), dtype, eps_of(value.dtype), is_value=True)


def _traced(reference: Any, base: Run, args: tuple[Any, ...]) -> Run | None:
    """Return the reference as a program if JAX can trace it; NumPy code cannot be traced."""
    in_specs, static = base.tracing.in_specs, base.tracing.static.taken_by(reference)
    tracing = Tracing(reference, base.mesh, in_specs, static)
    try:
        unplaced_tracing = Tracing(reference, None, static=static, alone=True)
        run = Run(tracing if tracing.takes_mesh else unplaced_tracing, args)
        run.program.inline(simulate_p.name)  # so that it is evaluated in float64 as well
        run.results()
    except Exception:
        return None
    return run


def _refuse_others(paths: Collection[str], base: Run) -> None:
    """Raise if the reference has other results than the program, naming them."""
    results = [path for path in base.paths if path.startswith("result")]
    if {*results} <= {*paths} <= {*base.paths}:
        return
    expected = [path for path in base.paths if path in {*paths, *results}]
    raise refused(
        f"the reference has other results: {paths_apart([*paths], expected)}",
        "The reference has the structure of the program's result: "
        f"{few(results) or 'nothing at all'}.",
        "return the same pytree from both: the same keys, in the same places.",
        ShardingError,
    )
