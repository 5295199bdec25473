"""Report when a check is weak: uninformative data, or nothing to compare with.

A wrong program may pass on zeros, on data that is the same on every device, or on a single mesh.
Such a verdict gets `SW5xx` findings that say so, and what to do about it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._mesh import AbstractMesh
from ..._program import Split, Var
from ..._program.liveness import ancestors
from ..faults import Degenerate, Finding, NothingCompared, OneDevice, SameData
from ..faults.limits import DRAW, DRAWN
from ..lift import Run, plain
from .lint import axes_used


def unseen(
    base: Run,
    runs: Sequence[Run],
    meshes: Sequence[AbstractMesh],
    given: bool,
    proved: bool,
) -> list[Finding]:
    """Return findings about what this check could not show.

    `given`: there is a reference. `proved`: the program is right on all meshes, for all inputs.
    """
    if not base.paths:
        return [NothingCompared.so("the function returns no arrays: nothing was compared")]
    if not any(value.size for value in base.results()):
        return [NothingCompared.so("every result is empty: nothing was compared")]
    findings = list(_single(meshes, given, {axis.name for axis in axes_used(base.body)}))
    degenerate = [*_degenerate(base)]
    if degenerate and not any(math.prod(var.shape) for var in base.body.ins):
        return [NothingCompared.no_elements()]
    findings += degenerate
    return findings + list(_alike(runs[-1] if runs else base, proved))


def with_values(finding: Finding) -> Finding:
    """Return the finding with a remedy that fits drawn values: pass values instead."""
    remedy = finding.remedy.replace(f", {DRAW}", f", {DRAWN}")
    return dataclasses.replace(finding, remedy=remedy)


def _single(
    meshes: Sequence[AbstractMesh], given: bool, used: Collection[str]
) -> Iterator[Finding]:
    """Report that only one device was tried, along all axes or along one that is used."""
    names = [str(name) for name in meshes[0].axis_names]
    ones = [name for name in names if all(mesh.shape[name] == 1 for mesh in meshes)]
    if given or not ones:
        return
    all_axes = len(ones) == len(names)
    for axis in names[:1] if all_axes else (name for name in ones if name in used):
        yield OneDevice.along(axis, all_axes)


ZERO = "is zero everywhere"
DEGENERATE = (
    ZERO,
    "is NaN everywhere",
    "is infinite or NaN everywhere",
    "is NaN in some of its elements",
)


def _degenerate(base: Run) -> Iterator[Finding]:
    """Report results without information; zeros only if there is nothing else."""
    words = [_what_is_wrong(value) for value in base.results()]
    for word in DEGENERATE:
        paths = [path for path, found in zip(base.paths, words, strict=True) if found == word]
        if paths and (word != ZERO or len(paths) == len(words)):
            yield Degenerate.of(paths, word, "elements" in word)


def _what_is_wrong(value: np.ndarray) -> str:
    """Return the word of `DEGENERATE` for a result. Single infinite elements may be a mask."""
    zero, nan, infinite, partly = DEGENERATE
    if not value.size or not value.any():
        return zero if value.size else ""
    is_nan = np.isnan(value)
    if not np.isfinite(value).any():
        return nan if is_nan.all() else infinite
    return partly if is_nan.any() else ""


def _alike(run: Run, proved: bool) -> Iterator[Finding]:
    """Report that all split inputs, or some of them, are the same on every device."""
    values = dict(zip(run.body.ins, run.traced.plain, strict=True))
    splits = [op for op in run.body.ops if isinstance(op, Split)]
    splits = [op for op in splits if any(axis.size > 1 for axis in op.axes)]
    direct = [(op, values[a]) for op in splits if isinstance(a := op.ins[0], Var) and a in values]
    equal = [op for op, value in direct if not _differs(op, value)]
    if len(equal) < len(direct):
        yield from () if proved else _partly_alike(run, equal)
        return
    # Look at computed values too, if the rows of the arguments they depend on are all equal.
    direct_splits = [op for op, _ in direct]
    computed = [op for op in splits if op not in direct_splits and isinstance(op.ins[0], Var)]
    operands = [a for op in computed for maker in ancestors(run.body, op.ins[0]) for a in maker.ins]
    if not splits or any(_has_rows(values[atom]) for atom in operands if atom in values):
        return
    observed = run.observe([op.ins[0] for op in computed])
    if not any(_differs(op, value.first) for op, value in zip(computed, observed, strict=True)):
        yield SameData.at(splits[0].where, [])


def _partly_alike(run: Run, alike: Sequence[Split]) -> Iterator[Finding]:
    """Report the arguments that are the same on every device while others differ.

    Arguments with the shape and dtype of a result are taken for state, such as weights or moments
    that start at zero: a step changes them, and a wrong change shows.
    """
    names = dict(zip(run.arguments, run.traced.argument_paths, strict=True))
    states = {(atom.shape, atom.dtype) for atom in run.body.outs if isinstance(atom, Var)}
    equal = {
        names[op.ins[0]]: op
        for op in alike
        if op.ins[0] in names and (op.ins[0].shape, op.ins[0].dtype) not in states
    }
    if equal:
        yield SameData.at(next(iter(equal.values())).where, [*equal])


def _differs(op: Split, value: Any) -> bool:
    """Return whether the parts of an array differ between devices."""
    counts = [math.prod(axis.size for axis in axes) for axes in op.placement]
    splits = [(dim, count) for dim, count in enumerate(counts) if count > 1]
    return any(_pieces_differ(value, dim, count) for dim, count in splits)


def _has_rows(value: Any) -> bool:
    """Return whether the rows of an array differ."""
    return _jax.is_traced(value) or (np.ndim(value) > 0 and _pieces_differ(value, 0, len(value)))


def _pieces_differ(value: Any, dim: int, count: int) -> bool:
    if _jax.is_traced(value):
        return True
    first, *others = np.split(np.asarray(plain(jnp.asarray(value))), max(count, 1), dim)
    return any(piece.tobytes() != first.tobytes() for piece in others)
