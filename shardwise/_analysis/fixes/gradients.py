"""Edits of how gradients are reduced: by the program, or by autodiff."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from .candidate import Candidate, Writer, shown
from .edits import WORDS, EditContext, Generator, axis_of, renamed, uses
from .sites import GRADIENTS, Sites, called
from .source import Edit


def reduce_gradient(r: EditContext) -> Iterator[Candidate]:
    """Reduce a gradient where it is taken."""
    source, write = r.sites.source, r.writer
    if not r.unsummed:
        return
    for node in _gradient_calls(r.sites):
        for nth, (axes, name) in enumerate(itertools.product(r.axes, ("pmean", "psum"))):
            text = source.text_of(node)
            described = f"{WORDS[name]} {shown(text)} over {write.axes(axes)}"
            edit = source.replace(node, write.call(name, text, axes))
            yield r.make([edit], described, 2.5 + 0.3 * nth + (1.5 if r.is_multiple else 0))


def vary_before_grad(r: EditContext) -> Iterator[Candidate]:
    """Make parameters vary over devices before the gradient, so that autodiff does not sum it.

    If autodiff and the program both sum a gradient, also try a mean instead of the program's sum.
    """
    source, write = r.sites.source, r.writer
    sums = uses(r.sites, "psum") if (r.ratio or 0) > 1 else []
    for node in _gradient_calls(r.sites):
        for nth, axes in enumerate(r.axes):
            for argument in _differentiated(node):
                value = write.call("pcast", source.text_of(argument), axes, _to_varying(write))
                name = shown(source.text_of(argument))
                text = (
                    f"let {name} vary over {write.axes(axes)} before the gradient, so that "
                    "autodiff does not sum it over devices"
                )
                edit = source.replace(argument, value)
                yield r.make([edit], text, 2.55 + 0.4 * nth)
                for i, reduction in enumerate(sums):
                    edits = [edit, renamed(r, reduction, "pmean")]
                    combined = f"{text}, and use pmean instead of psum"
                    yield r.make(edits, combined, 2.9 + 0.4 * nth + 0.2 * i)


def reduce_loss(r: EditContext) -> Iterator[Candidate]:
    """Reduce a loss where it is returned, in the function that is differentiated."""
    source, write = r.sites.source, r.writer
    for node in _losses(r.sites):
        text = source.text_of(node)
        for nth, (axes, name) in enumerate(itertools.product(r.axes, ("pmean", "psum"))):
            described = f"{WORDS[name]} {shown(text)} over {write.axes(axes)}, then differentiate"
            edit = source.replace(node, write.call(name, text, axes))
            yield r.make([edit], described, 2.65 + 0.3 * nth + (0 if r.is_multiple else 1.5))


def _losses(sites: Sites) -> Iterator[ast.expr]:
    """Yield what the functions return that are differentiated; without auxiliary results."""
    tree = sites.source.tree
    calls = [node for node in sites.nodes(outside=True) if isinstance(node, ast.Call)]
    taken = [node.args[0] for node in calls if called(node) in GRADIENTS and node.args]
    names = {function.id for function in taken if isinstance(function, ast.Name)}
    for function in ast.walk(tree):
        if isinstance(function, ast.Lambda) and function in taken:
            yield function.body
        elif isinstance(function, ast.FunctionDef) and function.name in names:
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    value = node.value
                    first = value.elts[:1] if isinstance(value, ast.Tuple) else [value]
                    yield from (v for v in first if sites.source.function_around(v) is function)


def _to_varying(write: Writer) -> str:
    return f", to={write.quote}varying{write.quote}"


def keep_checks(r: EditContext) -> Iterator[Candidate]:
    """Drop `check_vma=False`: with the check, autodiff knows which values vary over devices."""
    source = r.sites.source
    for name, start, end in _options(r.sites) if r.unchecked else ():
        edit = _without(source.data, start, end)
        text = f"remove {name}=False: without it, autodiff sums gradients over devices"
        yield r.make([edit], text, 1)


def _options(sites: Sites) -> Iterator[tuple[str, int, int]]:
    """Yield where the check is turned off: in a call, or in a dictionary of options."""
    span = sites.source.span
    for node in sites.nodes(outside=True):
        if isinstance(node, ast.keyword) and _turns_off(node.arg, node.value):
            yield str(node.arg), *span(node)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and _turns_off(key.value, value):
                    yield str(key.value), span(key)[0], span(value)[1]


def _turns_off(name: object, value: ast.expr) -> bool:
    is_false = isinstance(value, ast.Constant) and value.value is False
    return is_false and name in ("check_vma", "check_rep")


def sum_once(r: EditContext) -> Iterator[Candidate]:
    """Drop `check_vma=False`, and the reduction of a gradient, which autodiff then does."""
    source, write = r.sites.source, r.writer
    taking = {source.function_around(node) for node in _gradient_calls(r.sites)}
    around = {function for node in taking for function in ast.walk(node)}
    sums = [
        (node, axis)
        for node in r.sites.calls({"psum", "pmean"})
        if node.args and (axis := axis_of(node)) and source.function_around(node) in around
    ]
    for check in keep_checks(r):
        for i, (node, axis) in enumerate(sums):
            edit = source.replace(node, write.operand(node.args[0], node))
            text = f"{check.description}; remove the {called(node)} over {source.text_of(axis)}"
            yield r.make([*check.edits, edit], text, 1.2 + 0.2 * i)


def _gradient_calls(sites: Sites) -> Iterator[ast.Call]:
    """Yield the calls of gradient functions: `jax.grad(loss)(w, x)`, or `g(w, x)` of such a g."""
    tree = sites.source.tree
    bound = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and called(node.value) in GRADIENTS
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function in sites.functions:
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            direct = isinstance(node.func, ast.Call) and called(node.func) in GRADIENTS
            if direct or (isinstance(node.func, ast.Name) and node.func.id in bound):
                yield node


def _differentiated(node: ast.Call) -> list[ast.expr]:
    """Return the arguments that a gradient is taken for, if they are written in the call."""
    inner = node.func if isinstance(node.func, ast.Call) else None
    for keyword in inner.keywords if inner else ():
        if keyword.arg == "argnums" and isinstance(keyword.value, ast.Constant):
            number = keyword.value.value
            if isinstance(number, int) and number < len(node.args):
                return [node.args[number]]
            return []
    return [node.args[0]]


def _without(data: bytes, start: int, end: int) -> Edit:
    """Return the edit that removes an argument and its comma."""
    first = start
    while data[first - 1 : first].isspace():
        first -= 1
    if data[first - 1 : first] == b",":
        return Edit(first - 1, end, "")
    after = end
    while data[after : after + 1] in (b",", b" "):
        after += 1
    return Edit(start, after, "")


GRADIENT_EDITS: tuple[Generator, ...] = (sum_once, vary_before_grad, reduce_loss, reduce_gradient)
