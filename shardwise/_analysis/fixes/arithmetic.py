"""Edits of ordinary arithmetic: factors that are missing or too many, and what a reference does."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from .candidate import Candidate, shown
from .edits import EditContext
from .sites import called
from .source import Source

SIZES = {"len", "axis_size"}
"""Functions that return the size of something."""


def as_reference(r: EditContext) -> Iterator[Candidate]:
    """Compute a step as the reference does, where operands or surroundings are the same."""
    own = r.sites.source
    known = {ast.dump(node) for _, node in r.reference}
    alike: dict[str, dict[str, str]] = {}
    for source, node in r.reference:
        dumped, text = ast.dump(node), source.text_of(node)
        for key in _keys(source, node):
            alike.setdefault(key, {})[dumped] = text
    rank = 1.5 if r.is_wrong_alone else 5
    for node in r.sites.nodes() if alike else ():
        parent = own.parents.get(node)
        is_used_alike = isinstance(parent, ast.expr) and ast.dump(parent) in known
        if not isinstance(node, ast.expr) or is_used_alike:
            continue
        dumped, twins = ast.dump(node), {}
        if dumped not in known:
            twins |= {t: text for key in _keys(own, node) for t, text in alike.get(key, {}).items()}
        if not isinstance(node, ast.Name):
            twins |= alike.get(f"of {dumped}", {})
        for text in twins.values():
            described = f"compute {shown(text)}, as the reference does"
            yield r.make([own.replace(node, r.writer.grouped(node, text))], described, rank)


def _keys(source: Source, node: ast.expr) -> Iterator[str]:
    """Yield the keys under which two versions of an expression meet: what is around, what is in."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.expr | ast.Assign):
        yield ast.dump(parent).replace(ast.dump(node), "...", 1)
    if isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Name | ast.Constant):
        yield f"of {ast.dump(node.left)}"


def drop_factor(r: EditContext) -> Iterator[Candidate]:
    """Drop a constant factor."""
    source, write = r.sites.source, r.writer
    for node in r.sites.nodes():
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Div):
            continue
        pairs = [(node.right, node.left)]
        pairs += [(node.left, node.right)] if isinstance(node.op, ast.Mult) else []
        for factor, rest in pairs:
            if not isinstance(factor, ast.Constant) or not isinstance(factor.value, int | float):
                continue
            times = [factor.value, 1 / factor.value] if factor.value else []
            fits = r.ratio is not None and any(
                math.isclose(r.ratio, t, rel_tol=1e-4) for t in times
            )
            edit = source.replace(node, write.operand(rest, node))
            described = f"drop the factor {source.text_of(factor)} of {shown(source.text_of(node))}"
            yield r.make([edit], described, 1.9 if fits else 3.3 if r.is_wrong_alone else 7.5)


def scale_by_size(r: EditContext) -> Iterator[Candidate]:
    """Divide what a collective returns, or what a function returns, by the size of something."""
    source, write = r.sites.source, r.writer
    if r.ratio is None or r.ratio <= 1:
        return
    sizes = [
        f"{write.lax('axis_size')}({write.axes(axes)})"
        for axes in r.axes
        if math.isclose(math.prod(r.sizes[name] for name in axes), r.ratio, rel_tol=1e-4)
    ]
    functions = [source.function_around(node) for node in r.sites.nodes()]
    for place, node in enumerate(
        r.sites.calls({"psum", "psum_scatter", "all_to_all", "all_gather"})
    ):
        function = source.function_around(node)
        is_count = function in functions and math.isclose(r.ratio, round(r.ratio), rel_tol=1e-4)
        named = _sizes_in(function) if is_count else ()
        for nth, size in enumerate([*sizes, *named]):
            text = source.text_of(node)
            forms = [write.grouped(node, f"{text} / {size}")]
            forms.append(f"jax.tree.map(lambda x: x / {size}, {text})")
            for form, value in enumerate(forms):
                described = f"divide the {called(node)} by {shown(size)}"
                rank = 2.6 + 0.5 * place + 0.2 * nth + 0.1 * form
                yield r.make([source.replace(node, value)], described, rank)


def _sizes_in(function: ast.AST) -> Iterator[str]:
    """Yield the local names of sizes: of an axis, a dimension, a list."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = [*zip(target.elts, value.elts, strict=False)]
            for name, size in pairs:
                is_size = called(size) in SIZES or (
                    isinstance(size, ast.Subscript) and called(size.value) == "shape"
                )
                if isinstance(name, ast.Name) and is_size:
                    yield name.id


ARITHMETIC = (as_reference, drop_factor, scale_by_size)
