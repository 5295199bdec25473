"""The results of `grad` and `value_and_grad`, shown at the line of the call.

The loss and the gradients are computed on other lines: those of the differentiated function. They
are the values of a derivative's operations that the rest of the program uses.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from ..._program import Body, Join, derivatives_of
from .names import name_of, statement_of
from .seen import DerivativeCall, StackedResult, Uses


def with_results(seen: Sequence[StackedResult], body: Body, uses: Uses) -> list[StackedResult]:
    """Return the recorded values, with the results of each derivative inserted after it."""
    within = _Within(body)
    added: dict[int, list[StackedResult]] = {}
    replaced: set[int] = set()
    for asked in within.asked:
        for part in within.calls(seen, asked):
            results = _results(seen, part, asked, within, uses)
            beside = any(not uses.backward(seen[i].op) for i in results)
            added.setdefault(part[-1], []).extend(
                dataclasses.replace(
                    seen[i],
                    asked=asked,
                    name=_name(asked, uses.backward(seen[i].op), beside),
                )
                for i in results
            )
            # A value that is already shown at that line is not shown twice.
            replaced |= {i for i in results if _at(seen[i], asked) and isinstance(seen[i].op, Join)}
    return [
        entry
        for i, value in enumerate(seen)
        for entry in (*([] if i in replaced else [value]), *added.get(i, ()))
    ]


class _Within:
    """The derivatives that each operation belongs to."""

    def __init__(self, body: Body):
        self.own: dict[int, dict[DerivativeCall, None]] = {}
        self.inherited: dict[int, dict[DerivativeCall, None]] = {}
        self._walk(body, {})
        self.asked = list(
            dict.fromkeys(derivative for enclosing in self.own.values() for derivative in enclosing)
        )
        self.ops = {
            derivative: {op for op, enclosing in self.own.items() if derivative in enclosing}
            for derivative in self.asked
        }

    def _walk(self, body: Body, around: dict[DerivativeCall, None]) -> None:
        for op in body.ops:
            derivatives = [
                derivative
                for source in (op.source, *op.calls)
                for derivative in derivatives_of(source)
            ]
            # The backward pass of a derivative goes through inner derivatives, but is not a result
            # of them.
            derivatives = derivatives[-1:] if op.back_through_all else derivatives
            self.inherited[id(op)] = around
            self.own[id(op)] = {
                **around,
                **dict.fromkeys(itertools.starmap(DerivativeCall, derivatives)),
            }
            for inner in op.bodies:
                self._walk(inner, self.own[id(op)])

    def calls(self, seen: Sequence[StackedResult], asked: DerivativeCall) -> Iterator[list[int]]:
        """Yield the consecutive values of each call."""
        is_inside = [asked in self.own.get(id(value.op), ()) for value in seen]
        for selected, group in itertools.groupby(range(len(seen)), is_inside.__getitem__):
            run = list(group) if selected else []
            depth = min((len(seen[i].around.iteration) for i in run), default=0)
            for _, part in itertools.groupby(run, lambda i, d=depth: seen[i].around.iteration[:d]):
                yield list(part)


def _results(
    seen: Sequence[StackedResult],
    part: Sequence[int],
    asked: DerivativeCall,
    within: _Within,
    uses: Uses,
) -> list[int]:
    """Return the results of a derivative: first those of the function, then gradients."""
    ranked = []
    for i in part:
        if asked not in within.inherited[id(seen[i].op)]:
            place = uses.leaves(seen[i].var, within.ops[asked])
            ranked += [(uses.backward(seen[i].op), place, i)] if place is not None else []
    return [i for _, _, i in sorted(ranked)]


def _at(result: StackedResult, asked: DerivativeCall) -> bool:
    location = result.op.where
    return (location.file, location.line) == (asked.where.file, asked.where.line)


def _name(asked: DerivativeCall, gradient: bool, beside: bool) -> str:
    """Return the name of a result on the line of the call.

    Of two names, one is that of the gradient: the last for `value_and_grad`, the first for `grad`
    with a result `beside` it. Otherwise they are names of several gradients.
    """
    statement = statement_of(asked.where)
    value = getattr(statement, "value", None)
    if statement is None or not isinstance(value, ast.Call) or not _same(value, asked):
        return ""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[first, second])]) if (
            asked.function != "grad" or beside
        ):
            target = second if gradient == (asked.function != "grad") else first
            return ast.unparse(target).strip("()")
    return name_of(statement)


def _same(call: ast.Call, asked: DerivativeCall) -> bool:
    """Return whether a call in the source is that of the derivative."""
    location = asked.where
    place = call.lineno, call.col_offset, call.end_col_offset
    return place == (location.line, location.column, location.end_column)
