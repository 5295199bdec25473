"""Rewrite statistics of a local part as statistics of the whole array."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from .candidate import Candidate, shown
from .edits import BY_FUNCTION, WORDS, EditContext, is_value
from .sites import called, is_module
from .source import Source

MOMENTS = {"var": "", "std": "sqrt"}


def reduce_shares(r: EditContext) -> Iterator[Candidate]:
    """Reduce every share where it is computed, or every statistic of a function."""
    yield from _all_reduced(r, r.shares, 2.7)
    source = r.sites.source
    statistics = r.sites.calls(set(BY_FUNCTION) | {"sum"})
    local = [node for node in statistics if called(_parent(source, node)) not in WORDS]
    for function in dict.fromkeys(map(source.function_around, local)):
        inside = [node for node in local if source.function_around(node) is function]
        yield from _all_reduced(r, inside, 4.1)


def _parent(source: Source, node: ast.expr) -> ast.expr:
    parent = source.parents.get(node)
    return parent if isinstance(parent, ast.expr) else node


def _all_reduced(r: EditContext, nodes: Sequence[ast.expr], rank: float) -> Iterator[Candidate]:
    """Reduce several values in one edit."""
    write, source = r.writer, r.sites.source
    nodes = [node for node in nodes if is_value(node, source.parents.get(node))]
    spans = [source.span(node) for node in nodes]
    nested = any(a[0] < b[1] and b[0] < a[1] for a, b in itertools.combinations(spans, 2))
    if len(nodes) < 2 or nested:
        return
    for nth, (axes, usual) in enumerate(itertools.product(r.axes, ("psum", "pmean"))):
        edits, done = [], []
        for node in nodes:
            name = BY_FUNCTION.get(called(node), (usual,))[0]
            text = source.text_of(node)
            moment = _moment(r, node, axes)
            edits.append(source.replace(node, moment or write.call(name, text, axes)))
            done.append(f"{'take' if moment else WORDS[name]} {shown(text)}")
        yield r.make(edits, f"{'; '.join(done)} over {write.axes(axes)}", rank + 0.4 * nth)


def variance(r: EditContext) -> Iterator[Candidate]:
    """Take the variance around the mean over all devices."""
    for node in r.sites.calls(set(MOMENTS)):
        for axes in r.axes:
            text = _moment(r, node, axes)
            if text is not None:
                described = f"take the {called(node)} around the mean of all devices"
                yield from _instead(r, node, text, described)


def _moment(r: EditContext, node: ast.expr, axes: Sequence[str]) -> str | None:
    """Write a variance around the mean over all devices; None if the node is not one."""
    operand = _operand(node)
    if called(node) not in MOMENTS or not isinstance(node, ast.Call) or operand is None:
        return None
    write = r.writer
    x = r.sites.source.text_of(operand)
    x = f"({x})" if isinstance(operand, ast.BinOp) else x
    options = _options(r, node, operand, "ddof")
    args = ", ".join([*(o for o in options if not o.startswith("keepdims")), "keepdims=True"])
    mean = write.call("pmean", f"{x}.mean({args})", axes)
    text = write.call("pmean", f"(({x} - {mean}) ** 2).mean({', '.join(options)})", axes)
    return f"{write.jnp}.sqrt({text})" if MOMENTS[called(node)] else text


def weighted_mean(r: EditContext) -> Iterator[Candidate]:
    """Divide the sum over all devices by the sum of weights over all devices."""
    source, write = r.sites.source, r.writer
    for node in r.sites.calls({"mean", "average"}):
        weight = next((k for k in node.keywords if k.arg in ("where", "weights")), None)
        operand = _operand(node)
        if weight is None or operand is None:
            continue
        x, w = source.text_of(operand), source.text_of(weight.value)
        options = "".join(f", {o}" for o in _options(r, node, operand, "where", "weights"))
        summand = f"{x}{options}, where={w}" if weight.arg == "where" else f"({x}) * ({w}){options}"
        for axes in r.axes:
            total = write.call("psum", f"{write.jnp}.sum({summand})", axes)
            count = write.call("psum", f"{write.jnp}.sum({w}{options})", axes)
            described = f"divide the sum of all devices by the sum of all {shown(w)}"
            yield from _instead(r, node, f"{total} / {count}", described)


def norm(r: EditContext) -> Iterator[Candidate]:
    """Take the norm of the whole: the root of the sum of all squares."""
    source, write = r.sites.source, r.writer
    for node in r.sites.calls({"norm", "global_norm"}):
        operand = _operand(node)
        if operand is None:
            continue
        x, options = source.text_of(operand), _options(r, node, operand)
        square = f"({x})**2" if isinstance(operand, ast.BinOp) else f"{x}**2"
        squares = f"{write.jnp}.sum({', '.join([square, *options])})"
        if called(node) == "global_norm":
            squares = f"sum({write.jnp}.sum(x**2) for x in jax.tree.leaves({x}))"
        for axes in r.axes:
            text = f"{write.jnp}.sqrt({write.call('psum', squares, axes)})"
            described = f"take the norm over all devices along {write.axes(axes)}"
            yield from _instead(r, node, text, described)


def _instead(r: EditContext, node: ast.Call, text: str, described: str) -> Iterator[Candidate]:
    """Yield candidates that replace a statistic, and also the reduction around it."""
    source, write = r.sites.source, r.writer
    yield r.make([source.replace(node, write.grouped(node, text))], described, 4)
    for call in r.sites.calls({"pmean", "psum"}):
        if call.args and call.args[0] is node:
            yield r.make([source.replace(call, write.grouped(call, text))], described, 3.8)


def _operand(node: ast.expr) -> ast.expr | None:
    """Return the operand of a statistic: `x` in `jnp.var(x)` and in `x.var()`."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Attribute) and not is_module(function.value):
        return function.value
    return node.args[0] if node.args else None


def _options(r: EditContext, node: ast.Call, operand: ast.expr, *without: str) -> list[str]:
    """Return the other arguments of a call as source text."""
    text = r.sites.source.text_of
    positional = [text(value) for value in node.args if value is not operand]
    return positional + [f"{k.arg}={text(k.value)}" for k in node.keywords if k.arg not in without]


def softmax(r: EditContext) -> Iterator[Candidate]:
    """Normalise over all devices, using a gathered logsumexp."""
    source, write = r.sites.source, r.writer
    for node in r.sites.calls({"softmax", "log_softmax", "logsumexp"}):
        if not node.args:
            continue
        x = source.text_of(node.args[0])
        options = [source.text_of(argument) for argument in node.args[1:]]
        options += [f"{k.arg}={source.text_of(k.value)}" for k in node.keywords]
        if called(node) == "logsumexp":
            suffix = ", ".join(["", *options])
        else:
            suffix = ", ".join(["", *(options or ["axis=-1"]), "keepdims=True"])
        for axes in r.axes:
            local = f"{write.nn}.logsumexp({x}{suffix})"
            total = f"{write.nn}.logsumexp({write.call('all_gather', local, axes)}, axis=0)"
            text = {
                "logsumexp": total,
                "softmax": f"{write.jnp}.exp({x} - {total})",
                "log_softmax": f"({x} - {total})",
            }[called(node)]
            described = f"take the {called(node)} over all devices along {write.axes(axes)}"
            yield r.make([source.replace(node, text)], described, 4.4)


STATISTICS = (reduce_shares, variance, weighted_mean, norm, softmax)
