"""Edits that send a value to other devices where a program only copies it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .candidate import Candidate, shown
from .edits import EditContext


def send_copies(r: EditContext) -> Iterator[Candidate]:
    """Send a value that is only copied: `sent = out`, `return x` of an argument.

    To the next device along an axis, to the previous one, or as in another `all_to_all` reversed.
    """
    source, write = r.sites.source, r.writer
    reverse = [text for call in r.sites.calls({"all_to_all"}) if (text := _reversed(r, call))]
    for place, (node, is_carried) in enumerate(_copies(r)):
        text, rank = source.text_of(node), 2.9 + 0.3 * place
        value = f"({text})" if isinstance(node, ast.Tuple) and not text.startswith("(") else text
        for rest in dict.fromkeys(reverse):
            call = f"{write.lax('all_to_all')}({value}, {rest})"
            described = f"send {shown(text)} back with an all_to_all"
            yield r.make([source.replace(node, call)], described, rank - (0.9 if r.shapes else 0))
        for name in dict.fromkeys(name for axes in r.axes for name in axes) if is_carried else ():
            axis = write.axes((name,))
            size = f"{write.lax('axis_size')}({axis})"
            for later, step, word in ((0, "+ 1", "next"), (0.1, "- 1", "previous")):
                ring = f"[(i, (i {step}) % {size}) for i in range({size})]"
                call = f"{write.lax('ppermute')}({value}, {axis}, {ring})"
                described = f"send {shown(text)} to the {word} device along {axis}"
                yield r.make([source.replace(node, call)], described, rank - 0.5 + later)


def _copies(r: EditContext) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the expressions that only copy names, and whether a name is assigned to."""
    for node in r.sites.nodes():
        if isinstance(node, ast.Assign) and _is_copy(node):
            yield node.value, True
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
            function = r.sites.source.function_around(node)
            arguments = function.args.args if isinstance(function, ast.FunctionDef) else []
            if node.value.id in [argument.arg for argument in arguments]:
                yield node.value, False


def _is_copy(node: ast.Assign) -> bool:
    """Return whether names are assigned to as many others, which does not unpack one."""
    values, targets = (
        [*each.elts] if isinstance(each, ast.Tuple) else [each]
        for each in (node.value, node.targets[0])
    )
    return len(values) == len(targets) and all(isinstance(value, ast.Name) for value in values)


def _reversed(r: EditContext, call: ast.Call) -> str | None:
    """Return the arguments of an `all_to_all` that undoes another one, after the first."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    given = [keywords.get("split_axis"), keywords.get("concat_axis")]
    if len(call.args) < 2 or None in given:
        return None
    text = r.sites.source.text_of
    first, second = (text(value) for value in given if value is not None)
    others = [f", {k.arg}={text(k.value)}" for k in call.keywords if k.value not in given]
    axis = text(call.args[1])
    return f"{axis}, split_axis={second}, concat_axis={first}{''.join(others)}"


SENDS = (send_copies,)
