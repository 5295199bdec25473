"""Edits of `in_specs` and `out_specs`, from the shapes and factors of wrong results."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from .candidate import Candidate
from .edits import EditContext

Entries = Sequence[tuple[str, ...]]
"""For each dimension, the axes that split it."""


def change_specs(r: EditContext) -> Iterator[Candidate]:
    """Declare another sharding of an argument or a result."""
    source = r.sites.source
    seen: set[tuple[ast.Call, str]] = set()
    for i, node in enumerate(sorted(r.sites.specs(), key=lambda spec: not _is_result(r, spec))):
        old = _entries(node)
        if old is None:
            continue
        results = _is_result(r, node)
        for rank, entries in sorted(_likely(r, node, old, results), key=lambda row: row[0]):
            text = _written(r, node, entries)
            if (node, text) in seen or _trimmed(entries) == _trimmed(old):
                continue
            seen.add((node, text))
            edit = source.replace(node, text)
            whole = not any(entries)
            if whole and source.owner_of(edit) is source.tree:  # other code may use the constant
                continue
            described = f"declare {text} instead of {source.text_of(node)}"
            # Replicating an argument is right too, but the program is then no longer sharded.
            if whole and not results:
                described += ": every device then has all of it"
                rank += 4
            yield r.make([edit], described, rank + 0.1 * i)


def _likely(
    r: EditContext, node: ast.Call, old: Entries, results: bool
) -> Iterator[tuple[float, Entries]]:
    """Yield other entries for a spec, each with its rank."""
    for shape in r.shapes:
        position = _position(r, node)
        other = results and position is not None and f"[{position}]" not in shape.path
        on_each = [(sizes, _change(got, shape.want, results)) for sizes, got in shape.got]
        for entries in _changed(old, on_each[-1][1], r.sizes):
            if all(_resizes(old, entries, change, sizes) for sizes, change in on_each):
                yield 1.2 + 0.4 * (not results) + 0.5 * other, entries
    names = list(dict.fromkeys(name for axes in r.axes for name in axes))
    if r.ratio is not None and r.ratio > 1 and not results:  # equal values were summed
        for name in (name for name in names if r.sizes[name] == round(r.ratio)):
            for dim in range(max(len(old), 1) + 1):
                yield 3.2 + 0.3 * dim, _with(old, dim, (name,))
    rank = 1.6 if r.misplaced and results else 6.8
    others: list[Entries] = [[(name,)] for name in names]
    others += [[(), (name,)] for name in names] + [[]]
    others += [[(a,), (b,)] for a, b in itertools.permutations(names, 2)]
    for nth, entries in enumerate(others):
        yield rank + 0.1 * nth, entries


def _change(got: Sequence[int], want: Sequence[int], results: bool) -> list[float]:
    """Return the factor by which a spec has to change each dimension; [] for another rank."""
    change = [b / a if results else a / b for a, b in zip(got, want, strict=False) if a and b]
    return change if len(change) == len(got) == len(want) else []


def _resizes(old: Entries, new: Entries, change: Sequence[float], sizes: Mapping[str, int]) -> bool:
    """Return whether other entries change the dimensions on a mesh by these factors."""

    def parts(entries: Entries, dim: int) -> int:
        return math.prod(sizes[name] for name in entries[dim]) if dim < len(entries) else 1

    return all(
        math.isclose(parts(new, dim), times * parts(old, dim)) for dim, times in enumerate(change)
    )


def _changed(old: Entries, change: Sequence[float], sizes: Mapping[str, int]) -> Iterator[Entries]:
    """Yield the entries that change the size of each dimension by a factor."""
    if not change:
        return
    options = [
        [*_resized(old[dim] if dim < len(old) else (), times, sizes)]
        for dim, times in enumerate(change)
    ]
    yield from map(list, itertools.product(*options))


def _resized(
    entry: tuple[str, ...], times: float, sizes: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    """Yield the entries of one dimension that change its size by a factor."""
    if times == 1:
        yield entry
    for name, size in sizes.items():
        if name in entry and math.isclose(times * size, 1):
            yield tuple(other for other in entry if other != name)
        elif name not in entry and math.isclose(times, size):
            yield (*entry, name)


def _with(old: Entries, dim: int, entry: tuple[str, ...]) -> Entries:
    padded = [*old, *[()] * (dim + 1 - len(old))]
    return [*padded[:dim], (*padded[dim], *entry), *padded[dim + 1 :]]


def _entries(node: ast.Call) -> Entries | None:
    """Return the entries of a spec; None if they are not written as constants."""
    try:
        values = [ast.literal_eval(argument) for argument in node.args]
    except ValueError:
        return None
    return [() if v is None else (v,) if isinstance(v, str) else tuple(v) for v in values]


def _trimmed(entries: Entries) -> list[tuple[str, ...]]:
    """Return entries without those at the end that name no axis."""
    last = max((dim + 1 for dim, entry in enumerate(entries) if entry), default=0)
    return [*entries[:last]]


def _written(r: EditContext, node: ast.Call, entries: Entries) -> str:
    texts = [r.writer.axes(entry) if entry else "None" for entry in _trimmed(entries)]
    return f"{r.sites.source.text_of(node.func)}({', '.join(texts)})"


def _is_result(r: EditContext, node: ast.AST) -> bool:
    """Return whether a spec belongs to `out_specs`."""
    keyword = _keyword(r, node)
    return keyword is not None and keyword.arg == "out_specs"


def _keyword(r: EditContext, node: ast.AST) -> ast.keyword | None:
    """Return the `in_specs=` or `out_specs=` that a spec is written in."""
    parent = r.sites.source.parents.get(node)
    while parent is not None and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.keyword) and parent.arg in ("in_specs", "out_specs"):
            return parent
        parent = r.sites.source.parents.get(parent)
    return None


def _position(r: EditContext, node: ast.AST) -> int | None:
    """Return the number of the argument or result that a spec belongs to, if there are several."""
    keyword = _keyword(r, node)
    value = keyword.value if keyword is not None else None
    elements = value.elts if isinstance(value, ast.Tuple) else []
    inside = (i for i, element in enumerate(elements) if node in ast.walk(element))
    return next(inside, None)


SPECS = (change_specs,)
