"""Rules for windows that slide over an array: convolutions and pooling.

A window that slides over a split dimension reads elements of other devices, unless the windows are
aligned with the parts: no window is wider than its stride, nothing is padded, and the stride
divides each part. Then every device has its own windows whole, and the result is split alike.
Examples are a convolution with a kernel of size 1, patches of an image, and pooling.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from .._program import Leaf
from . import term as T
from .algebra import ANY, ORDER, RING
from .contract import meet, part_ways
from .elementwise import check_product, not_dropped, only_sums, refuse_debts
from .notes import Notes
from .rules import frozen, rule
from .value import (
    Dim,
    Dims,
    Unknown,
    Value,
    axes_in,
    read_as,
    tidy_dim,
    uncut,
    whole_along,
    whole_shape,
    whole_size,
    with_hidden,
)


@dataclasses.dataclass(frozen=True)
class Window:
    """How a window slides along one dimension."""

    size: int
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    spread: int = 1
    """The dilation of the array: the distance between its elements."""
    reach: int = 1
    """The dilation of the window."""

    def over(self, dim: Dim) -> Dim | None:
        """Return the split of the result, or None if windows read elements of several devices."""
        if len(dim) != 1 or self.padding != (0, 0) or self.spread != 1 or self.size < 1:
            return None
        ((size, axes),) = dim
        part = size // math.prod(axis.size for axis in axes)
        if (self.size - 1) * self.reach + 1 > self.stride or part % self.stride:
            return None
        return tidy_dim([(size // self.stride, axes)])


def _aligned(v: Value, along: dict[int, Window]) -> Value:
    """Return the operand with these dimensions unsplit, unless its windows are aligned."""
    return whole_along(v, [d for d, window in along.items() if window.over(v.dims[d]) is None])


def _after(v: Value, along: dict[int, Window], sizes: Sequence[int]) -> list[Dim]:
    """Return these dimensions after the windows; `sizes` are the local ones."""
    dims = []
    for (d, window), size in zip(along.items(), sizes, strict=True):
        dim = window.over(v.dims[d]) if axes_in([v.dims[d]]) else uncut(size)
        if dim is None:
            raise Unknown("windows that cross the parts of a split dimension")
        dims.append(dim)
    return dims


def _slid(v: Value, windows: Iterable[Window], sizes: Sequence[int]) -> tuple[Value, Dims]:
    """Return the operand with unaligned dimensions unsplit, and the dimensions after the windows.

    There is a window for each dimension; `sizes` are the local ones after the windows.
    """
    along = {d: window for d, window in enumerate(windows) if window != Window(1)}
    v = _aligned(v, along)
    after = dict(zip(along, _after(v, along, [sizes[d] for d in along]), strict=True))
    return v, tuple(after.get(d, dim) for d, dim in enumerate(v.dims))


@rule("conv_general_dilated", needs=RING)
def convolutions(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Convolve; aligned dimensions may be split, and input features split alike leave a sum owed.

    Aligned are examples, output features, groups, and windows that stay within a device's part.
    """
    x, k = ins
    p = op.params
    owed, born = check_product("a convolution", not_dropped(op, ins))
    (xb, xf, *xs), (ko, ki, *ks), (ob, of, *spots) = (
        p["dimension_numbers"].lhs_spec,
        p["dimension_numbers"].rhs_spec,
        p["dimension_numbers"].out_spec,
    )
    k = whole_along(k, ks)
    settings = (p["window_strides"], p["padding"], p["lhs_dilation"], p["rhs_dilation"])
    slides = zip((k.local[d] for d in ks), *settings, strict=True)
    along = {d: Window(*slide) for d, slide in zip(xs, slides, strict=True)}
    x = _aligned(x, along)
    groups = _groups(p, x.dims[xf], k.dims[ko], k.dims[ki])
    if groups is None:
        x, k = whole_along(x, [xb, xf]), whole_along(k, [ko, ki])
    elif groups == 1:
        x, k = meet(w, x, k, [(xf, ki)])
    paired = [ki] if groups == 1 else [ko]
    features = axes_in([x.dims[xf], k.dims[ko]])
    x, k = part_ways(x, k, [xf], paired, [], [])
    hidden = sorted({*x.hidden, *k.hidden})
    if groups not in (None, 1) and features & set(hidden):
        raise Unknown("groups of features that are split in two ways")
    x, k = with_hidden(x, hidden), with_hidden(k, hidden)
    over = axes_in([x.dims[xf]]) if groups == 1 else frozenset()
    shape = op.outs[0].shape
    dims = [uncut(size) for size in shape]
    dims[of] = k.dims[ko]
    if p["batch_group_count"] == 1:
        dims[ob] = x.dims[xb]
    for d, dim in zip(spots, _after(x, along, [shape[d] for d in spots]), strict=True):
        dims[d] = dim
    whole = whole_shape(dims, hidden)
    options = {**p, "feature_group_count": groups or p["feature_group_count"]}
    params = frozen({key: str(value) for key, value in options.items() if key not in DEVICE})
    x, k = not_dropped(op, [x, k])
    if not x.coef or not k.coef:
        return [Value(*T.zero(whole), tuple(dims), tuple(hidden))]
    term = T.make("conv", params, ((1, x.term), (1, k.term)), whole)
    owed |= {(axis, "sum") for axis in over}
    scaled = T.tidy(x.coef * k.coef), term
    return [Value(*scaled, tuple(dims), tuple(hidden), owed, op if over else born)]


DEVICE = ("lhs_shape", "rhs_shape", "preferred_element_type", "precision")
"""Parameters that affect how a device computes, not what."""


def _groups(p: dict, x: Dim, out: Dim, inner: Dim) -> int | None:
    """Return the number of groups of features in the whole; None if groups cross devices.

    Devices that split the features of both operands alike have whole groups of them.
    """
    if p["batch_group_count"] != 1:
        return None
    local = p["feature_group_count"]
    if axes_in([inner]) or len(x) != 1 or len(out) != 1 or x[0][1] != out[0][1]:
        return local if local == 1 or not axes_in([x, out, inner]) else None
    count = math.prod(axis.size for axis in x[0][1])
    # If each device has one group, the kernel's input features determine how many there are.
    return local * count if local > 1 or whole_size(x) == count * whole_size(inner) else 1


@rule("reduce_window_sum", needs=RING)
@rule("reduce_window_max", "reduce_window_min", "reduce_window", needs=ANY)
def windows(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Slide windows along dimensions that every device has whole, or aligned with the parts."""
    v, *rest = ins
    if op.name != "reduce_window_sum":
        refuse_debts(op.name, ins)
    only_sums("a sum over windows", v)
    if any(not operand.plain for operand in rest):
        raise Unknown("a window with a start that differs between devices")
    p = op.params
    settings = ("window_strides", "padding", "base_dilation", "window_dilation")
    slides = zip(p["window_dimensions"], *(p[name] for name in settings), strict=True)
    v, dims = _slid(v, itertools.starmap(Window, slides), op.outs[0].shape)
    params = frozen({key: str(value) for key, value in p.items()})
    shape = whole_shape(dims, v.hidden)
    if op.name == "reduce_window_sum":
        return [v.having(T.linear(op.name, params, v.scaled, shape), dims=dims)]
    kids = [v.scaled, *(operand.scaled for operand in rest)]
    return [v.having(T.function(op.name, params, kids, shape), dims=dims)]


@rule("select_and_scatter_add", needs=ORDER)
def backward_windows(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Add numbers, or shares, to the largest element of each window: the gradient of pooling.

    The windows are those of the second operand, so the first is split as their results are.
    """
    source, v = ins
    refuse_debts(op.name, [v])
    only_sums(op.name, source)
    p = op.params
    settings = (p["window_dimensions"], p["window_strides"], p["padding"])
    v, dims = _slid(v, map(Window, *settings), source.local)
    source = read_as(source, dims)
    hidden = sorted({*source.hidden, *v.hidden})
    if axes_in(v.dims) & {*hidden} or source.debts & v.axes:
        raise Unknown(f"{op.name} of operands that are split in two ways")
    source, v = with_hidden(source, hidden), with_hidden(v, hidden)
    if not source.coef:
        return [source.having(T.zero(v.term.shape), dims=v.dims)]
    params = frozen({key: str(value) for key, value in p.items()})
    kids = ((1, source.term), (1, v.term) if v.coef > 0 else v.scaled)
    term = T.make(op.name, params, kids, whole_shape(v.dims, hidden))
    return [source.having((source.coef, term), dims=v.dims)]
