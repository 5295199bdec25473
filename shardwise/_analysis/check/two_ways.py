"""Write the two remedies for a gradient that autodiff has summed, using names of the source."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass

from ... import _jax
from ..._program import Collective, Op, Where
from .diagnose import line_of


@dataclass(frozen=True)
class _Gradient:
    """A call `grad(loss)(params, *rest)` or `grad(lambda name: value)(params)`, as source text."""

    grad: str = "jax.grad"
    loss: str = "loss"
    params: str = "w"
    rest: tuple[str, ...] = ("x",)
    name: str = ""
    value: str = ""
    over: str | None = None
    """The axes that the value is reduced over, as source text, if it is reduced."""

    @property
    def variable(self) -> str:
        if self.name:
            return self.name
        return self.params if self.params.isidentifier() else "params"

    @property
    def lost(self) -> str:
        """The loss as an expression of the variable."""
        return self.value or self.call(self.loss, self.variable)

    def call(self, function: str, params: str) -> str:
        return f"{function}({', '.join([params, *self.rest])})"


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
    grad = (_read(where) if where else None) or _Gradient()
    if grad.over is not None:
        return (
            f"what is differentiated is already reduced over {grad.over}. Look inside it for what "
            f"every device adds whole before a sum over {over}, and for what is summed over {over} "
            "more than once, or summed where it should be averaged."
        )
    name = grad.variable
    reduced = f"{grad.grad}(lambda {name}: jax.lax.pmean({grad.lost}, {over}))({grad.params})"
    local_gradient = f"{grad.grad}(lambda {name}: {grad.value})({name})"
    if not grad.value:
        local_gradient = grad.call(f"{grad.grad}({grad.loss})", name)
    alternative = (
        "\nor make the parameters differ first, and reduce the gradients yourself:\n"
        f"    {name} = jax.lax.pcast({grad.params}, {over}, to='varying')\n"
        f"    jax.lax.pmean({local_gradient}, {over})"
    )
    return (
        f"{'' if split else 'either '}differentiate the reduced loss, which autodiff handles:\n"
        f"    {reduced}{'' if split else alternative}\n"
        f"Where the loss is summed over {over} inside already, average it there instead."
    )


def _read(where: Where) -> _Gradient | None:
    """Parse the gradient taken at a place, if it is written on one line in a usual form."""
    line = linecache.getline(where.file, where.line)
    try:
        call = ast.parse(line.encode()[where.column : where.end_column].strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Call)):
        return None
    transform = call.func
    grad = ast.unparse(transform.func)
    is_plain = not (call.keywords or transform.keywords) and len(transform.args) == 1 and call.args
    if not is_plain or grad.split(".")[-1] not in ("grad", "value_and_grad"):
        return None
    params, *other_args = (ast.unparse(argument) for argument in call.args)
    loss = transform.args[0]
    if isinstance(loss, ast.Name | ast.Attribute):
        return _Gradient(grad, ast.unparse(loss), params, tuple(other_args))
    if not isinstance(loss, ast.Lambda) or other_args or len(loss.args.args) != 1:
        return None
    value = ast.unparse(loss.body)
    return _Gradient(grad, "", params, (), loss.args.args[0].arg, value, _reduced_over(loss.body))


def _reduced_over(value: ast.expr) -> str | None:
    """Return the axes of a `psum` or `pmean` as source text, if the value is one."""
    if not isinstance(value, ast.Call):
        return None
    if ast.unparse(value.func).split(".")[-1] not in ("psum", "pmean"):
        return None
    keywords = [keyword.value for keyword in value.keywords if keyword.arg == "axis_name"]
    axes = [*value.args[1:2], *keywords]
    return ast.unparse(axes[0]) if axes else None
