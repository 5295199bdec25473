"""Parse groups of device numbers in HLO, and find the mesh axes along which they run.

XLA numbers devices in mesh order, the last axis fastest.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..._base.errors import UnsupportedError

Groups = list[list[int]]
"""Devices that exchange something with each other, in order."""


def replica_groups(attributes: str, devices: int) -> Groups:
    """Return the groups of a collective, from any notation of `replica_groups=`."""
    if match := _MESH.search(attributes):
        groups = _along_axes(match["sizes"], match["axes"])
        if match["ids"] is None:
            return groups
        shape = f"[{_count(match['sizes'])}]"
        numbers = iota(f"{shape}<={match['ids']}").tolist()
        return [[numbers[device] for device in group] for group in groups]
    if match := re.search(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", attributes):
        return iota(match[1]).tolist()
    if match := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes):
        listed = [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", match[1])]
        return listed or [list(range(devices))]
    if "replica_groups=" not in attributes:
        return [list(range(devices))]
    raise UnsupportedError(
        f"groups of devices in a notation that is not known: {attributes[:200]}",
        where="the optimised HLO",
        rule="Nothing is guessed about what is sent.",
        remedy="compile=False explains the program from its trace alone; please report this.",
    )


_MESH = re.compile(
    r"replica_groups=mesh\[(?P<sizes>[^\]]*)\](?:,? device_ids=\((?P<ids>[^)]*\)?)\))?"
    r" ?\{(?P<axes>[^}]*)\}"
)
"""Groups along the axes of a mesh that XLA generated, with the order of its devices."""


def _count(sizes: str) -> int:
    return math.prod(int(size) for size in re.findall(r"=(\d+)", sizes))


def permuted(attributes: str) -> list[tuple[int, int]]:
    """Return the sources and targets of a collective permute, without those that stay in place."""
    match = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
    pairs = re.findall(r"\{(\d+),(\d+)\}", match[1]) if match else ()
    return [(int(a), int(b)) for a, b in pairs if a != b]


def iota(text: str) -> np.ndarray:
    """Return device numbers from a notation like `[4,2]<=[2,4]T(1,0)`: iota, transpose, reshape."""
    match = re.match(r"\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))", text)
    assert match, f"not a tile assignment: {text}"
    shape = _numbers(match[1])
    if match[4]:
        return np.array(_numbers(match[4])).reshape(shape)
    counted = np.arange(math.prod(shape)).reshape(_numbers(match[2]))
    if match[3]:
        counted = counted.transpose(_numbers(match[3]))
    return counted.reshape(shape)


def _along_axes(sizes: str, names: str) -> Groups:
    """Return groups from the notation `mesh['a'=4,'b'=2] {'b'}`, or of a sub-axis: `{'a':(1)2}`."""
    mesh = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", sizes)}
    named = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", names)
    order: list[tuple[str, int, int]] = []  # every axis, split into the named sub-axes
    for name, size in mesh.items():
        cuts = [(int(offset), int(n)) for axis, offset, n in named if axis == name and n]
        order += _parts(name, size, cuts)
    shape = [size for _, _, size in order]
    parts = [(name, int(offset or 1), int(n or mesh[name])) for name, offset, n in named]
    inner = [order.index(part) for part in parts]
    outer = [place for place in range(len(order)) if place not in inner]
    counted = np.arange(math.prod(shape)).reshape(shape).transpose(outer + inner)
    return counted.reshape(-1, math.prod(shape[place] for place in inner)).tolist()


def _parts(name: str, size: int, cuts: Sequence[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Split an axis into sub-axes, the slowest first, each with the product of those before it."""
    bounds = {1, size}
    for offset, count in cuts:
        bounds |= {offset, offset * count}
    edges = sorted(bounds)
    if len(edges) < 2:
        return [(name, 1, size)]
    return [(name, a, b // a) for a, b in itertools.pairwise(edges)]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


# --- mesh axes of groups and shardings


def axes_of_groups(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of a group differ."""
    return axes_of_pairs([(group[0], device) for group in groups for device in group[1:]], mesh)


def axes_of_pairs(pairs: Sequence[tuple[int, int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which sources and targets differ."""
    if not pairs:
        return ()
    shape = tuple(mesh.values())
    a, b = (np.stack(np.unravel_index(np.array(side), shape)) for side in zip(*pairs, strict=True))
    return tuple(name for name, varies in zip(mesh, (a != b).any(axis=1), strict=True) if varies)


Spec = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dimension of an array, the slowest first."""


def spec_of_sharding(text: str, rank: int, mesh: Mapping[str, int]) -> Spec | None:
    """Return an HLO sharding as a spec over the mesh; None if no spec can express it.

    Args:
        text: As in the module: `{devices=[4,1,2]<=[8] last_tile_dim_replicate}`.
        rank: The rank of the array.
        mesh: The axes and their sizes.
    """
    replicated: Spec = ((),) * rank
    if not text or text in ("{replicated}", "{manual}"):
        return replicated if text != "{manual}" else None
    if text.startswith("{mesh["):
        return _named_spec(text, rank, mesh)
    match = re.match(r"\{devices=(\[[\d,]+\](?:<=\[[\d,]+\](?:T\([\d,]+\))?|[\d,]+))", text)
    if match is None or "manual" in text:
        return None
    tiles = iota(match[1])
    if tiles.size != math.prod(mesh.values()):
        return None
    spec = []
    for dimension in range(rank):
        axes = _axes_of_dimension(tiles, dimension, mesh)
        if axes is None:
            return None
        spec.append(axes)
    return tuple(spec)


def _named_spec(text: str, rank: int, mesh: Mapping[str, int]) -> Spec | None:
    """Return the spec of a sharding over named axes: `{mesh['a'=4,'b'=2], [{'a'}, {}]}`.

    The names are those of the mesh, or generated by XLA for the same sizes.
    """
    match = re.match(r"\{mesh\[([^\]]*)\](, device_ids=[^\[]*)?, \[(.*?)\]", text)
    if match is None or match[2]:
        return None
    named_sizes = re.findall(r"'([^']+)'=(\d+)", match[1])
    if [int(size) for _, size in named_sizes] != list(mesh.values()):
        return None
    mesh_names = dict(zip((name for name, _ in named_sizes), mesh, strict=True))
    rows = re.findall(r"\{([^}]*)\}", match[3])
    if len(rows) != rank or ":(" in match[3]:
        return None
    return tuple(tuple(mesh_names[name] for name in re.findall(r"'([^']+)'", row)) for row in rows)


def _axes_of_dimension(
    tiles: np.ndarray, dimension: int, mesh: Mapping[str, int]
) -> tuple[str, ...] | None:
    """Return the axes whose combined coordinates are the index of the tile on each device."""
    parts = tiles.shape[dimension]
    if parts == 1:
        return ()
    tile_index = np.empty(tiles.size, int)
    tile_index[tiles.reshape(-1)] = np.indices(tiles.shape)[dimension].reshape(-1)
    coordinates = dict(
        zip(mesh, np.unravel_index(np.arange(tiles.size), tuple(mesh.values())), strict=True)
    )
    for axes in _with_product(mesh, parts):
        number = np.zeros(tiles.size, int)
        for name in axes:
            number = number * mesh[name] + coordinates[name]
        if (number == tile_index).all():
            return axes
    return None


def _with_product(mesh: Mapping[str, int], parts: int) -> Iterator[tuple[str, ...]]:
    real = [name for name, size in mesh.items() if size > 1]
    for count in range(1, len(real) + 1):
        for axes in itertools.permutations(real, count):
            if math.prod(mesh[name] for name in axes) == parts:
                yield axes
