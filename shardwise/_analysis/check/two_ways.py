"""Write the two remedies for a gradient that autodiff has summed, using names of the source."""

from __future__ import annotations

import ast
import linecache
from typing import Any

from ... import _jax
from ..._program import Collective, Op, Where
from .diagnose import line_of

USUAL = "jax.grad(loss)(w, x)"
"""The call to write if that of the program is unknown or unusual."""


def two_ways(of: Op | None = None, over: str = "'data'") -> str:
    """Return the remedy for a gradient that is reduced once more; `of` is an operation of it."""
    if of is not None and _jax.is_derived_around((of.source, *of.calls)):
        return (
            f"average the loss over {over} where it is made: jax.lax.pmean instead of psum inside "
            "the shard_map; or the mean, not the sum, of what it returns for each device."
        )
    # A reduce-scatter is the gradient of split parameters, which differ between devices already.
    split = isinstance(of, Collective) and of.name != "psum"
    return rewritten(None if of is None else line_of(of), over, split)


def rewritten(where: Where | None = None, over: str = "'data'", split: bool = False) -> str:
    """Return the remedy for the gradient at a place, whose parameters may be `split`."""
    call: Any = (_read(where) if where else None) or ast.parse(USUAL, mode="eval").body
    params, *rest = map(ast.unparse, call.args)
    name = params if params.isidentifier() else "params"
    (loss,) = call.func.args
    value = f"{ast.unparse(loss)}({', '.join([name, *rest])})"
    if isinstance(loss, ast.Lambda):
        name, value = loss.args.args[0].arg, ast.unparse(loss.body)
        if (reduced := _reduced_over(loss.body)) is not None:
            return (
                f"what is differentiated is already reduced over {reduced}. Look inside it for "
                f"what every device adds whole before a sum over {over}, and for what is summed "
                f"over {over} more than once, or summed where it should be averaged."
            )
    grad, local_gradient = ast.unparse(call.func.func), ast.unparse(call.func)
    alternative = (
        "\nor make the parameters differ first, and reduce the gradients yourself:\n"
        f"    {name} = jax.lax.pcast({params}, {over}, to='varying')\n"
        f"    jax.lax.pmean({local_gradient}({', '.join([name, *rest])}), {over})"
    )
    return (
        f"{'' if split else 'either '}differentiate the reduced loss, which autodiff handles:\n"
        f"    {grad}(lambda {name}: jax.lax.pmean({value}, {over}))({params})"
        f"{'' if split else alternative}\n"
        f"Where the loss is summed over {over} inside already, average it there instead."
    )


def _read(where: Where) -> ast.Call | None:
    """Parse the gradient taken at a place, if it is written on one line in a usual form."""
    line = linecache.getline(where.file, where.line)
    try:
        call = ast.parse(line.encode()[where.column : where.end_column].strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    match call:
        case ast.Call(ast.Call(grad, [ast.Name() | ast.Attribute()], []), [_, *_], []):
            pass
        case ast.Call(ast.Call(grad, [ast.Lambda(ast.arguments(args=[_]))], []), [_], []):
            pass
        case _:
            return None
    return call if ast.unparse(grad).split(".")[-1] in ("grad", "value_and_grad") else None


def _reduced_over(value: ast.expr) -> str | None:
    """Return the axes of a `psum` or `pmean` as source text, if the value is one."""
    if not isinstance(value, ast.Call):
        return None
    if ast.unparse(value.func).split(".")[-1] not in ("psum", "pmean"):
        return None
    keywords = [keyword.value for keyword in value.keywords if keyword.arg == "axis_name"]
    axes = [*value.args[1:2], *keywords]
    return ast.unparse(axes[0]) if axes else None
