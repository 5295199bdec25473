"""Which casts lose the same on every mesh.

The arguments of a program are the same numbers on every mesh, and so is what is moved about,
selected, or computed from them element by element. To cast such a number to a coarser type loses
the same everywhere, and explains no difference: a float8 cast of the weights would otherwise excuse
six percent in whatever is made of them.

That holds for a cast that the program has on every mesh, with the same constants on the way to it:
`(x / n).astype(...)` rounds other numbers for every `n`, and what is cast only where there are
others to send it to is rounded on some meshes alone. Arrays that the program closes over may be
others on every mesh, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._program import Atom, Body, Collective, Cond, Join, Leaf, Lit, Op, Scan, Split, Var, While
from .rounding import EXACT, rounds
from .running import Run

COMPUTES = frozenset({"add", "add_any", "div", "integer_pow", "mul", "sqrt", "square", "sub"})
"""What gives the same bits for the same operands, wherever it is compiled."""

_SELECT = """
    argmax argmin cummax cummin iota reduce_and reduce_max reduce_min reduce_or
    select_and_gather_add sort top_k
"""
TAKES = (EXACT - frozenset(_SELECT.split())) | COMPUTES | {"convert_element_type"}
"""What makes its elements each of those in the same place, or takes them from elsewhere.

The largest of what a device has is another one on every mesh.
"""

MOVES = frozenset({"all_gather", "all_to_all", "ppermute"})
"""The collectives that compute nothing."""

Way = frozenset[Any]
"""The constants on the way from the arguments to a value."""

Casts = dict[Op, tuple[Any, ...]]
"""Casts of values that are the same on every mesh: their types, and the constants before them."""


def settled(runs: Sequence[Run]) -> list[frozenset[Op]]:
    """For each run of a program on some mesh, the casts that lose the same on all of them."""
    found = [_casts(run) for run in runs]
    counts = [Counter(casts.values()) for casts in found]
    shared = {key for key in counts[0] if all(one[key] == counts[0][key] for one in counts)}
    return [frozenset(op for op, key in casts.items() if key in shared) for casts in found]


def _casts(run: Run) -> Casts:
    known: dict[Var, Way] = dict.fromkeys(run.arguments, frozenset())
    casts: Casts = {}
    _follow(run.body, known, casts)
    return casts


def _follow(body: Body, known: dict[Var, Way], casts: Casts) -> None:
    for op in body.ops:
        way = _way(op, known)
        if way is not None:
            known.update(dict.fromkeys(op.outs, way))
            if isinstance(op, Leaf) and op.name == "convert_element_type" and rounds(op):
                (given,) = op.ins
                casts[op] = (_dtype(given), op.outs[0].dtype, way)
        for inner, pairs in _inside(op):
            ways = ((var, _way_of(atom, known)) for atom, var in pairs)
            known.update({var: way for var, way in ways if way is not None})
            _follow(inner, known, casts)


def _inside(op: Op) -> list[tuple[Body, list[tuple[Atom, Var]]]]:
    """The bodies of an operation, each with what it is given that does not change in a loop."""
    match op:
        case Scan():
            rows = list(zip(op.ins, op.body.ins, strict=True))
            return [(op.body, rows[: op.consts] + rows[op.consts + op.carry :])]
        case While():
            consts = op.ins[op.cond_consts : op.cond_consts + op.body_consts]
            return [(op.body, list(zip(consts, op.body.ins, strict=False)))]
        case Cond():
            return [(one, list(zip(op.ins[1:], one.ins, strict=True))) for one in op.branches]
    return []


def _way(op: Op, known: dict[Var, Way]) -> Way | None:
    """The constants before the results of an operation; None if they may differ between meshes."""
    match op:
        case Split() | Join():
            return _way_of(op.ins[0], known)
        case Collective() if op.name in MOVES:
            return _way_of(op.ins[0], known)
        case Leaf() if op.name in TAKES:
            pass
        case _:
            return None
    # Where numbers are taken from is no matter.
    numbers = [atom for atom in op.ins if jnp.issubdtype(_dtype(atom), jnp.inexact)]
    ways = [_way_of(atom, known) for atom in numbers or op.ins]
    if None in ways:
        return None
    constants = (atom for atom in op.ins if isinstance(atom, Lit) and op.name in COMPUTES)
    own = {(op.name, np.asarray(atom.value).tobytes()) for atom in constants}
    return frozenset(own).union(*(way for way in ways if way is not None))


def _way_of(atom: Atom, known: dict[Var, Way]) -> Way | None:
    return frozenset() if isinstance(atom, Lit) else known.get(atom)


def _dtype(atom: Atom) -> Any:
    return atom.dtype if isinstance(atom, Var) else jnp.asarray(atom.value).dtype
