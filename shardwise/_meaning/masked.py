"""Lookups in a table whose rows are split: each device masks out other rows, then a sum.

A vocabulary that is split over devices is looked up as follows: subtract the index of the device's
first row, keep the rows that are the device's own, put zero for the rest, `psum`. Whatever the mask
and the clipping look like, they are comparisons of linear functions of the index and the device's
coordinate: between the points where a comparison changes its result, everything is linear. So they
are evaluated at all these points, and what is true there is true for every index. If a device keeps
exactly its own rows and reads them at their local positions, its result is a share of the lookup in
the whole table (`rows`). On one device the same expression is the lookup itself, with zero for an
index outside of the table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from . import term as T
from .evaluate import EACH, FLOATING, TRUTH
from .term import Scaled, Shape, Term
from .value import Dim, Value, read_as, tidy_dim, uncut, whole_size, with_dim

Map = tuple[int | None, ...]
"""For each dimension of a term, the dimension of the whole expression that it is."""


class NotLinear(Exception):
    """The expression has other operations than comparisons of an index and a coordinate."""


@dataclasses.dataclass
class Points:
    """An expression of an index and a device's coordinate, evaluated at many pairs of them."""

    device: np.ndarray
    index: np.ndarray
    at: int | None
    """The dimension along which the coordinate changes."""
    leaf: Term | None = None
    spots: set[Map] = dataclasses.field(default_factory=set)
    turns: list[np.ndarray] = dataclasses.field(default_factory=list)
    """The values that are compared with zero during the evaluation."""

    @classmethod
    def of(cls, pairs: set[tuple[int, int]], at: int | None) -> Points:
        """Return points sorted by device, then by index."""
        rows = sorted(pairs)
        return cls(
            np.array([k for k, _ in rows], object), np.array([u for _, u in rows], object), at
        )

    def missed(self) -> set[tuple[int, int]]:
        """Return the points between two others at which a comparison changes, if linear there."""
        points = set()
        wide = (np.diff(self.device) == 0) & (np.diff(self.index) > 1)
        for gap in self.turns:
            sign = np.sign(gap)
            for i in np.flatnonzero(wide & (sign[1:] != sign[:-1])):
                low, high = self.index[i], self.index[i + 1]
                root = low + (high - low) * Fraction(gap[i]) / Fraction(gap[i] - gap[i + 1])
                near = math.floor(root)
                points |= {(self.device[i], u) for u in range(near - 1, near + 2) if low < u < high}
        return points

    def value(self, x: Scaled, dims: Map) -> np.ndarray:
        """Return the values of a term, whose dimensions are `dims` of the whole expression."""
        coef, t = x
        if not coef or t is T.ONE:
            return np.full(len(self.index), coef, object)
        return self.term(t, dims) * coef

    def term(self, t: Term, dims: Map) -> Any:
        if t.op == "bcast":
            return self.value(t.kids[0], tuple(dims[d] for d in t.params))
        if t.op == "iota" and dims == (self.at,) and self.at is not None:
            return self.device
        if t.op == "sum":
            return sum(self.value(kid, dims) for kid in t.kids)
        if t.op == "select" and len(t.kids) == 3:
            which, no, yes = (self.value(kid, dims) for kid in t.kids)
            self.turns.append(which)
            return np.where(which.astype(bool), yes, no)
        truth = t.op in TRUTH and dict(t.params)["operand"] == "bool"
        function = TRUTH[t.op] if truth else EACH.get(t.op)
        if t.params == FLOATING:
            raise NotLinear
        if function is not None and (truth or T.of(t.op).truth or T.of(t.op).selects):
            kids = [self.value(kid, dims) for kid in t.kids]
            if not truth:
                self.turns += kids if len(kids) == 1 else [a - b for a, b in combinations(kids, 2)]
            return np.asarray(function(*kids)).astype(object) * 1
        if (self.leaf is not None and t is not self.leaf) or (
            self.at is not None and self.at in dims
        ):
            raise NotLinear
        self.leaf = t
        self.spots.add(dims)
        return self.index


MANY, LARGE, ROUNDS = 1024, 1 << 63, 24


def _tried(
    which: tuple[Scaled, Map], place: tuple[Scaled, Map], count: int, size: int, at: int | None
) -> tuple[Points, set[Map], np.ndarray, np.ndarray]:
    """Evaluate a mask and a position at points between which one is constant, the other linear."""
    if count > MANY:
        raise NotLinear
    pairs = {(k, u) for k in range(count) for u in (-LARGE, LARGE)}
    ends = (-1, 0, size - 1, size)
    pairs |= {(k, k * size + end) for k in range(count) for end in ends}
    for _ in range(ROUNDS):
        points = Points.of(pairs, at)
        mask = points.value(*which)
        spots, points.spots = points.spots, set()
        positions = points.value(*place)
        points.turns.append(mask)
        more = points.missed() - pairs
        if not more:
            return points, spots, mask, positions
        pairs |= more
    raise NotLinear


def _own_rows(
    mask: Scaled, chosen: int, index: Scaled, shape: Shape, lead: int, windows: Sequence[int], size
) -> tuple[Term, Map] | None:
    """Return the index into the whole, if each device keeps exactly its own rows of `size`.

    `mask` selects them from an array of this shape, where it equals `chosen`; they are at the local
    positions `index`. The first `lead` dimensions are hidden ones, and `windows` are those of a
    row. Also return the dimensions of the index, as numbered without the windows.
    """
    rank, count = len(shape), math.prod(shape[:lead])
    rows = [p for p in range(rank - lead) if p not in windows]
    spread: Map = (*range(lead), *(lead + p for p in rows), None)
    try:
        points, spots, live, place = _tried(
            (mask, tuple(range(rank))), (index, spread), count, size, 0 if lead else None
        )
    except NotLinear:
        return None
    if points.leaf is None or len(points.spots) != 1 or spots != points.spots:
        return None
    (spot,) = spots
    local = points.index - points.device * size
    own = ((local >= 0) & (local < size)).astype(bool)
    if None in spot or not ((live != 0) == (own == bool(chosen))).all():
        return None
    if not (place[own] == local[own]).all():
        return None
    return points.leaf, tuple(rows.index(p - lead) for p in spot if p is not None)


def _choice(t: Term) -> tuple[Scaled, int, Scaled] | None:
    """Return the condition, the chosen case and the value of a choice between it and zero."""
    if t.op != "select" or len(t.kids) != 3:
        return None
    cases = t.kids[1:]
    if bool(cases[0][0]) == bool(cases[1][0]):
        return None
    live = 0 if cases[0][0] else 1
    return t.kids[0], live, cases[live]


def _thin(small: Term, large: Term) -> list[int] | None:
    """Return the positions of `small`'s dimensions in `large`, if the others have size 1."""
    if [s for s in small.shape if s != 1] != [s for s in large.shape if s != 1]:
        return None
    groups = T.matched(small.shape, large.shape)
    places: dict[int, int] = {}
    for old, new in groups or []:
        pair = [d for d in old if small.shape[d] != 1], [d for d in new if large.shape[d] != 1]
        places |= dict(zip(*pair, strict=True))
    return [places[d] for d in range(len(small.shape))] if len(places) == len(small.shape) else None


def looked_up(v: Value) -> Value:
    """Return a masked lookup as a share of the whole lookup; any other value unchanged."""
    choice = _choice(v.term)
    if choice is None or len(v.hidden) > 1:
        return v
    if choice[2][1].op == "reshape" and choice[2][1].kids[0][1].op == "gather":
        return _squeezed(v, choice)
    return _looked_up(v, choice) if choice[2][1].op == "gather" else v


def _squeezed(v: Value, choice: tuple[Scaled, int, Scaled]) -> Value:
    """Resolve a masked lookup whose dimension of size 1 was dropped before the mask."""
    which, live, (coef, t) = choice
    lookup = t.kids[0][1]
    places = _thin(t, lookup)
    if places is None:
        return v
    wide = T.bcast(which, lookup.shape, places)
    cases: list[Scaled] = [T.zero(lookup.shape), T.zero(lookup.shape)]
    cases[live] = (coef, lookup)
    lead = len(v.hidden)
    dims: list[Dim] = [()] * (len(lookup.shape) - lead)
    for d, place in enumerate(places[lead:]):
        dims[place - lead] = v.dims[d]
    scaled = T.elementwise("select", (), [wide, *cases], lookup.shape)
    widened = v.having((T.tidy(v.coef * scaled[0]), scaled[1]), dims=tuple(dims))
    out = looked_up(widened)
    if out.term is widened.term:
        return v
    shape = tuple(map(whole_size, v.dims))
    return out.having(T.reshape(out.scaled, shape), dims=v.dims)


def _looked_up(v: Value, choice: tuple[Scaled, int, Scaled]) -> Value:
    mask, chosen, (coef, lookup) = choice
    numbers, sizes, _, lead = lookup.params
    if len(numbers.start_index_map) != 1 or lead != len(v.hidden):
        return v
    d = numbers.start_index_map[0]
    if sizes[d] != 1:
        return v
    (times, table), index = lookup.kids
    size = table.shape[lead + d]
    own = _own_rows(mask, chosen, index, lookup.shape, lead, numbers.offset_dims, size)
    if own is None:
        return v
    whole_table = _whole_table(v, table, d)
    wide = tuple(1 if e == d else s for e, s in enumerate(sizes))
    kids = ((1, whole_table[1]), (1, own[0]))
    term = T.make("rows", (numbers, wide, own[1]), kids, lookup.shape[lead:])
    owed = v.owed | {(axis, "sum") for axis in v.hidden}
    scaled = T.tidy(v.coef * coef * times * whole_table[0]), term
    return v.having(scaled, hidden=(), owed=owed)


def _whole_table(v: Value, table: Term, d: int) -> Scaled:
    """Return the whole table, given the devices' tables."""
    if not v.hidden:
        return 1, table
    stacked = Value(1, table, tuple(uncut(size) for size in table.shape[1:]), v.hidden)
    rows = tidy_dim([(table.shape[1 + d] * v.hidden[0].size, v.hidden)])
    return read_as(stacked, with_dim(stacked.dims, d, rows)).scaled


def _inside(t: Term) -> Term:
    """Return a choice with its new dimensions of size 1 moved to its operands."""
    inner = t.kids[0][1] if t.op == "bcast" else t
    if inner.op != "select" or _thin(inner, t) is None:
        return t
    wide = [T.bcast(kid, t.shape, t.params) for kid in inner.kids]
    return T.make("select", (), wide, t.shape)


def added_up(
    index: Scaled, update: Value, numbers: Any, size: int
) -> tuple[Term, Scaled, Map] | None:
    """Return the index into the whole and the rows of a masked addition, if the mask is right.

    `index` and `update` have the same hidden axis, or none. `size` is the number of local rows.
    """
    choice = _choice(_inside(update.term))
    if choice is None or len(update.hidden) > 1 or len(numbers.scatter_dims_to_operand_dims) != 1:
        return None
    if numbers.scatter_dims_to_operand_dims[0] not in numbers.inserted_window_dims:
        return None
    mask, chosen, (coef, t) = choice
    lead, windows = len(update.hidden), numbers.update_window_dims
    own = _own_rows(mask, chosen, index, update.term.shape, lead, windows, size)
    if own is None or (lead and 0 not in T.uniform_dims(t)):
        return None
    inner = T.strip(t, {0}) if lead else t
    return own[0], (T.tidy(coef * update.coef), inner), own[1]
