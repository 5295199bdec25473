"""Parse the text of an exported program: which operations its result depends on.

The text may be untrusted. So it is parsed into operations and not searched: names of functions,
scopes and attributes may contain any text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from jax._src.interpreters import mlir as _mlir
from jax._src.lib.mlir import ir as _ir  # pyright: ignore[reportPrivateImportUsage]

_AXIS = re.compile(r'"(\w+)"=(\d+)')
_NAME = re.compile(r'"(\w+)"')
_NOT_SPLIT = re.compile(r"(replicated|unreduced)=\{[^}]*\}")


@dataclasses.dataclass(frozen=True)
class ManualComputation:
    """A `shard_map` in a program."""

    axes: dict[str, int]
    """The axes that it is manual over, with their sizes."""
    split: frozenset[str]
    """The axes that its arguments are split over."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """The operations of an exported program."""

    operations: frozenset[str]
    """The names of the operations that the result depends on."""
    shard_maps: tuple[ManualComputation, ...]
    """Those that the result depends on."""
    custom_calls: frozenset[str]
    """The targets of all calls of native code, used or not."""


def summarize(text: str) -> Summary:
    """Return the operations of the program in an MLIR text."""
    with _mlir.make_ir_context():
        module = _ir.Module.parse(text)
        top = [op.operation for op in module.body.operations]
        functions = {_text(op, "sym_name"): op for op in top if op.name == "func.func"}
        sizes: dict[str, int] = {}
        for op in top:
            if op.name == "sdy.mesh":
                for axis, size in _AXIS.findall(str(op.attributes["mesh"])):
                    sizes[axis] = min(int(size), sizes.get(axis, int(size)))
        live = _live(functions["main"], functions)
        shard_maps = [op for op in live if op.name == "sdy.manual_computation"]
        called = [op for op in _below(top) if op.name == "stablehlo.custom_call"]
        return Summary(
            frozenset(op.name for op in live),
            tuple(_manual_computation(op, sizes) for op in shard_maps),
            frozenset(_text(op, "call_target_name") for op in called),
        )


def _manual_computation(op: Any, sizes: dict[str, int]) -> ManualComputation:
    axes = _NAME.findall(str(op.attributes["manual_axes"]))
    split_axes = _NAME.findall(_NOT_SPLIT.sub("", str(op.attributes["in_shardings"])))
    return ManualComputation(
        {axis: sizes.get(axis, 0) for axis in axes}, frozenset(split_axes) & frozenset(axes)
    )


def _live(function: Any, functions: dict[str, Any]) -> list[Any]:
    """Return the operations that the result of a function depends on.

    All operands of such an operation count, and the results of its regions and of the function
    that it calls.
    """
    visited: dict[Any, None] = {}
    pending = [function]
    while pending:
        op = pending.pop()
        if op in visited:
            continue
        visited[op] = None
        owners = (value.owner for value in op.operands)
        pending += [owner.operation for owner in owners if not isinstance(owner, _ir.Block)]
        pending += [list(block.operations)[-1].operation for block in _blocks(op)]
        if "callee" in op.attributes:
            name = _ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            pending.append(functions[name])
    return list(visited)


def _below(operations: list[Any]) -> Iterator[Any]:
    """Yield operations and all those in their regions."""
    pending = list(operations)
    while pending:
        op = pending.pop()
        yield op
        pending += [inner.operation for block in _blocks(op) for inner in block.operations]


def _blocks(op: Any) -> list[Any]:
    return [block for region in op.regions for block in region.blocks]


def _text(op: Any, attribute: str) -> str:
    return str(_ir.StringAttr(op.attributes[attribute]).value)
