"""The two remedies for a gradient that autodiff has summed already, in the words of the line."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass

from .._program import Where


@dataclass(frozen=True)
class _Gradient:
    """`grad(loss)(params, *rest)`, each as it is written."""

    grad: str = "jax.grad"
    loss: str = "loss"
    params: str = "w"
    rest: tuple[str, ...] = ("x",)

    def call(self, function: str, params: str) -> str:
        return f"{function}({', '.join([params, *self.rest])})"


def two_ways(where: Where | None = None, over: str = "'data'") -> str:
    """What to write instead of the gradient at a place, reduced over some axes."""
    found = (_read(where) if where else None) or _Gradient()
    name = found.params if found.params.isidentifier() else "params"
    reduced = f"{found.grad}(lambda {name}: jax.lax.pmean({found.call(found.loss, name)}, {over}))"
    own = found.call(f"{found.grad}({found.loss})", name)
    return (
        "either differentiate the reduced loss, which autodiff handles:\n"
        f"    {reduced}({found.params})\n"
        "or make the parameters differ first, and reduce the gradients yourself:\n"
        f"    {name} = jax.lax.pcast({found.params}, {over}, to='varying')\n"
        f"    jax.lax.pmean({own}, {over})"
    )


def _read(where: Where) -> _Gradient | None:
    """The gradient that is taken there, if it is written in one line and in the usual form."""
    line = linecache.getline(where.file, where.line)
    try:
        call = ast.parse(line.encode()[where.column : where.end_column].strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Call)):
        return None
    taken = call.func
    grad = ast.unparse(taken.func)
    plain = not (call.keywords or taken.keywords) and len(taken.args) == 1 and call.args
    if not plain or grad.split(".")[-1] not in ("grad", "value_and_grad"):
        return None
    if not isinstance(taken.args[0], ast.Name | ast.Attribute):
        return None
    params, *rest = (ast.unparse(argument) for argument in call.args)
    return _Gradient(grad, ast.unparse(taken.args[0]), params, tuple(rest))
