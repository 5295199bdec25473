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


def with_results(values: Sequence[StackedResult], body: Body, uses: Uses) -> list[StackedResult]:
    """Return the recorded values, with the results of each derivative inserted after it."""
    within = _Within(body)
    added: dict[int, list[StackedResult]] = {}
    replaced: set[int] = set()
    for call in within.derivatives:
        for part in within.calls(values, call):
            results = _results(values, part, call, within, uses)
            beside = any(not uses.backward(values[i].op) for i in results)
            added.setdefault(part[-1], []).extend(
                dataclasses.replace(
                    values[i],
                    call=call,
                    name=_name(call, uses.backward(values[i].op), beside),
                )
                for i in results
            )
            # A value that is already shown at that line is not shown twice.
            replaced |= {
                i for i in results if _at(values[i], call) and isinstance(values[i].op, Join)
            }
    return [
        entry
        for i, value in enumerate(values)
        for entry in (*([] if i in replaced else [value]), *added.get(i, ()))
    ]


class _Within:
    """The derivatives that each operation belongs to."""

    def __init__(self, body: Body):
        self.enclosing_by_op: dict[int, dict[DerivativeCall, None]] = {}
        self.inherited: dict[int, dict[DerivativeCall, None]] = {}
        self._walk(body, {})
        enclosing = itertools.chain.from_iterable(self.enclosing_by_op.values())
        self.derivatives = list(dict.fromkeys(enclosing))
        self.ops = {
            derivative: {
                op for op, enclosing in self.enclosing_by_op.items() if derivative in enclosing
            }
            for derivative in self.derivatives
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
            self.enclosing_by_op[id(op)] = {
                **around,
                **dict.fromkeys(itertools.starmap(DerivativeCall, derivatives)),
            }
            for inner in op.bodies:
                self._walk(inner, self.enclosing_by_op[id(op)])

    def calls(self, values: Sequence[StackedResult], call: DerivativeCall) -> Iterator[list[int]]:
        """Yield the consecutive values of each call."""
        is_inside = [call in self.enclosing_by_op.get(id(value.op), ()) for value in values]
        for selected, group in itertools.groupby(range(len(values)), is_inside.__getitem__):
            run = list(group) if selected else []
            depth = min((len(values[i].around.iteration) for i in run), default=0)
            for _, part in itertools.groupby(
                run, lambda i, d=depth: values[i].around.iteration[:d]
            ):
                yield list(part)


def _results(
    values: Sequence[StackedResult],
    part: Sequence[int],
    call: DerivativeCall,
    within: _Within,
    uses: Uses,
) -> list[int]:
    """Return the results of a derivative: first those of the function, then gradients."""
    ranked = []
    for i in part:
        if call not in within.inherited[id(values[i].op)]:
            place = uses.leaves(values[i].var, within.ops[call])
            ranked += [(uses.backward(values[i].op), place, i)] if place is not None else []
    return [i for _, _, i in sorted(ranked)]


def _at(result: StackedResult, call: DerivativeCall) -> bool:
    location = result.op.where
    return (location.file, location.line) == (call.where.file, call.where.line)


def _name(call: DerivativeCall, gradient: bool, beside: bool) -> str:
    """Return the name of a result on the line of the call.

    Of two names, one is that of the gradient: the last for `value_and_grad`, the first for `grad`
    with a result `beside` it. Otherwise they are names of several gradients.
    """
    statement = statement_of(call.where)
    value = getattr(statement, "value", None)
    if statement is None or not isinstance(value, ast.Call) or not _same(value, call):
        return ""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[first, second])]) if (
            call.function != "grad" or beside
        ):
            target = second if gradient == (call.function != "grad") else first
            return ast.unparse(target).strip("()")
    return name_of(statement)


def _same(call: ast.Call, derivative: DerivativeCall) -> bool:
    """Return whether a call in the source is that of the derivative."""
    location = derivative.where
    place = call.lineno, call.col_offset, call.end_col_offset
    return place == (location.line, location.column, location.end_column)
