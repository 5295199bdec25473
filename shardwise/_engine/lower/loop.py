"""Run one loop over the coordinates of an axis.

`lax.scan` over blocks of shards, `vmap` within a block. Reductions whose operand is computed in the
loop are accumulated in it, so N gradients never exist together; what later stages need is stacked.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._mesh import Axis
from ..._program import Op, Var
from ..._program.collectives import (
    RULES,
    accumulate,
    alone,
    identity,
    narrow,
    reduce,
    scatter,
    widen,
)
from .context import Context, Env
from .cost import LoopCost
from .deadlock import Divergence, first_in, first_of
from .plan import BlockSum, Fold, reads
from .value import StackedValue, stacked


@dataclasses.dataclass
class ShardLoop:
    """The loop over `axis` of `ops`; `rest` are the axes of the loops inside it."""

    axis: Axis
    rest: Sequence[Axis]
    ops: list[Op]
    folds: list[Fold]
    keep: list[Var]
    grown: dict[Var, Var]
    """The values in `keep` that overwrite a stack in place."""
    env: Env
    cx: Context

    def run(self) -> None:
        """Run it; afterwards `env` has the values in `keep` and the results of the folds."""
        self.watched = self.cx.watch.concerns(self.ops)
        inputs = reads(self.ops)
        self.fixed = {v: self.env[v] for v in inputs if self.axis not in self.env[v].dims}
        self.moving = [v for v in inputs if v not in self.fixed]
        self.size, self.pace = self.cx.pace.chunk(self._job())
        self.over = self._overwritten()
        outs, totals, divergence = self._all()
        for var, out in zip(self.keep, outs, strict=True):
            self.env[var] = stacked(out.array, [self.axis], out.dims)
        for fold, total in zip(self.folds, totals, strict=True):
            self.env[fold.op.outs[0]] = self._finish(fold, total)
        if divergence is not None:
            self.cx.divergences.append(divergence)

    def _job(self) -> LoopCost:
        sliced = sum(var.bytes for var in self.moving)
        totals = sum(fold.operand.bytes for fold in self.folds)
        return LoopCost(self.axis, self.ops, sliced, self.keep, totals, self.cx.pace.runs)

    # --- one shard

    def _shard(
        self, index: Any, slices: Sequence[Any], totals: list[Any] | None, batched: bool = True
    ) -> tuple[list[StackedValue], list[Any], Any]:
        local: Env = {**self.fixed}
        for var, array in zip(self.moving, slices, strict=True):
            local[var] = StackedValue(array, self.env[var].dims_without(self.axis))
        adding = self._adding(totals)
        inner = self.cx.at(self.axis, index, self.pace, self._summing(), adding, batched)
        operands = [fold.operand for fold in self.folds]
        self.cx.run(self.ops, self.rest, local, [*self.keep, *operands], inner)
        parts = [local[fold.operand].spread(self._along(fold)) for fold in self.folds]
        outs = [local[var] for var in self.keep]
        return outs, parts, inner.divergence() if self.watched else None

    def _summing(self) -> dict[BlockSum, str]:
        if self.size == 1:
            return {}
        return {fold.within: self._block for fold in self.folds if fold.within}

    def _adding(self, totals: list[Any] | None) -> dict[Var, Any]:
        """Return the totals that inner loops add to, instead of stacking rows that are added
        later."""
        pairs = zip(self.folds, totals or (), strict=bool(totals))
        return {fold.operand: total for fold, total in pairs if fold.by_rows}

    @property
    def _block(self) -> str:
        return f"block of {self.axis.name}"

    # --- a block of shards, stacked in front

    def _single(
        self, index: Any, totals: list[Any] | None = None, stacks: Sequence[Any] = ()
    ) -> tuple[list[StackedValue], list[Any], Any]:
        slices = [value.at(self.axis, index).array for value in self._values(stacks)]
        outs, parts, divergence = self._shard(index, slices, totals, batched=False)
        return outs, [widen(part) for part in parts], divergence

    def _many(
        self, start: Any, size: int, totals: list[Any] | None = None, stacks: Sequence[Any] = ()
    ) -> tuple[list[StackedValue], list[Any], Any]:
        whole_axis = size == self.axis.size
        dims = [self.env[v].dims[self.axis] for v in self.moving]
        blocks = [
            value.array if whole_axis else value.block(self.axis, start, size)
            for value in self._values(stacks)
        ]
        index = start + jnp.arange(size, dtype=jnp.int32)
        summed = [None if fold.within else 0 for fold in self.folds]
        shards = jax.vmap(
            self._shard,
            in_axes=(0, dims, None),
            out_axes=(0, summed, 0),
            axis_name=self._block,
        )
        outs, parts, divergence = shards(index, blocks, totals)
        return outs, parts, None if divergence is None else first_in(divergence)

    def _values(self, stacks: Sequence[Any]) -> list[StackedValue]:
        """Return the values that differ between shards."""
        old = dict(zip(self.over.values(), stacks, strict=False))
        return [
            StackedValue(old[v], {self.axis: 0}) if v in old else self.env[v] for v in self.moving
        ]

    def _write(
        self, stacks: Sequence[Any], outs: Sequence[StackedValue], start: Any
    ) -> tuple[list[Any], list[StackedValue]]:
        """Write results into their stacks at a position; return the other results."""
        results = dict(zip(self.keep, outs, strict=True))
        parts = [results.pop(var).array for var in self.over]
        if self.size == 1:
            parts = [lax.expand_dims(part, (0,)) for part in parts]
        update = lax.dynamic_update_slice_in_dim
        new = [update(stack, part, start, 0) for stack, part in zip(stacks, parts, strict=True)]
        return new, [*results.values()]

    def _total(self, fold: Fold, part: Any) -> Any:
        return part if fold.within else reduce(fold.name, part)

    # --- all shards

    def _all(self) -> tuple[list[StackedValue], list[Any], Any]:
        n, size = self.axis.size, self.size
        if n == 1:
            outs, parts, divergence = self._single(np.int32(0))
            totals = [self._alone(*pair) for pair in zip(self.folds, parts, strict=True)]
            return [_in_front(out) for out in outs], totals, divergence
        if size == n:
            outs, parts, divergence = self._many(0, n)
            return outs, list(map(self._total, self.folds, parts)), divergence
        full, remainder = divmod(n, size)
        start = self._starts()
        no_divergence = self.cx.watch.no_divergence() if self.watched else None
        stacks = [self.env[old].array for old in self.over.values()]

        def step(carry: Any, block: Any) -> tuple[Any, list[StackedValue]]:
            totals, stacks, divergence = carry
            if size == 1:
                outs, parts, new = self._single(block, totals, stacks)
            else:
                outs, parts, new = self._many(block * size, size, totals, stacks)
            stacks, outs = self._write(stacks, outs, block * size)
            return (self._add(totals, parts), stacks, _join(divergence, new)), outs

        blocks = jnp.arange(full, dtype=jnp.int32)
        (totals, stacks, divergence), outs = lax.scan(step, (start, stacks, no_divergence), blocks)
        if size > 1:
            outs = [StackedValue(_flat(out.array), out.dims) for out in outs]
        if remainder:
            tail, parts, new = self._many(full * size, remainder, totals, stacks)
            stacks, tail = self._write(stacks, tail, full * size)
            totals, divergence = self._add(totals, parts), _join(divergence, new)
            outs = [
                StackedValue(lax.concatenate([a.array, b.array], 0), a.dims)
                for a, b in zip(outs, tail, strict=True)
            ]
        rest, written = iter(outs), dict(zip(self.over, stacks, strict=True))
        outs = [StackedValue(written[var]) if var in written else next(rest) for var in self.keep]
        return outs, totals, divergence

    def _overwritten(self) -> dict[Var, Var]:
        """Return the values that overwrite a stack, and which one; shapes and dtypes must match."""
        values = {var: self.env[old] for var, old in self.grown.items()}
        return {
            var: self.grown[var]
            for var, value in values.items()
            if value.dims == {self.axis: 0}
            and value.array.shape == (self.axis.size, *var.shape)
            and value.array.dtype == var.dtype
        }

    def _alone(self, fold: Fold, part: Any) -> Any:
        # As for a collective outside a loop: XLA removes one that keeps the shape.
        left_out = RULES[fold.op.name].same and all(axis.size == 1 for axis in fold.op.scope)
        return part if left_out else alone(fold.name, part)

    def _add(self, totals: list[Any], parts: list[Any]) -> list[Any]:
        return [self._sum(*terms) for terms in zip(self.folds, totals, parts, strict=True)]

    def _sum(self, fold: Fold, total: Any, part: Any) -> Any:
        if fold.by_rows:
            return part  # an inner loop has added to the total
        if self.size == 1:
            return RULES[fold.name].fold(total, part)  # pyright: ignore[reportOptionalCall]
        return lax.add(total, part) if fold.within else accumulate(fold.name, total, part)

    # --- folds

    def _along(self, fold: Fold) -> list[Axis]:
        return [axis for axis in self.rest if axis in fold.operand.axes]

    def _starts(self) -> list[Any]:
        @functools.cache
        def start(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
            return lax.full(shape, identity(name, dtype))

        leading = ((*(axis.size for axis in self._along(fold)),) for fold in self.folds)
        return [
            start(fold.name, (*sizes, *fold.operand.shape), fold.operand.dtype)
            for fold, sizes in zip(self.folds, leading, strict=True)
        ]

    def _finish(self, fold: Fold, total: Any) -> StackedValue:
        along = self._along(fold)
        total = narrow(total, fold.op.outs[0].dtype)
        if fold.op.name != "psum_scatter":
            return stacked(total, along)
        params = dict(fold.op.params)
        params["dimension"] += len(along)
        parts = scatter(total, self.axis.size, **params)
        return stacked(parts, [self.axis], stacked(parts, along).dims)


def _join(old: Divergence | None, new: Divergence | None) -> Divergence | None:
    return old if old is None or new is None else first_of([old, new])


def _in_front(out: StackedValue) -> StackedValue:
    return StackedValue(lax.expand_dims(out.array, (0,)), out.dims)


def _flat(array: Any) -> Any:
    return lax.reshape(array, (array.shape[0] * array.shape[1], *array.shape[2:]))
