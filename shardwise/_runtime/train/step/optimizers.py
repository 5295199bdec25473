"""The extra arguments of an optimizer's update, and errors about those a step cannot pass."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ...._base.errors import UnsupportedError, text_of
from .gradient import Reduced
from .state import kinds_of

T = TypeVar("T")


def apply_optimizer(
    optimizer: Any, opt_state: Any, reduced: Reduced, update: Callable[..., T]
) -> T:
    """Update the params, and explain an error of an optimizer that needs more than a step can pass.

    Optimizers that would not fail by themselves, such as those that need a gradient per example,
    raise an error before the update.

    Args:
        optimizer: The optax transformation.
        opt_state: Its state.
        reduced: The gradient and the loss.
        update: Calls the update, with the extra arguments that it takes.
    """
    kinds = kinds_of(opt_state)
    for kind, unsupported in _UNSUPPORTED.items():
        if kind in kinds:
            raise unsupported()
    try:
        return update(**_extra_arguments(optimizer, reduced))
    except (AttributeError, TypeError, ValueError) as error:
        text = text_of(error)
        if re.search(r"missing \d+ required keyword-only arguments?: .*'value_fn'", text):
            raise _line_search() from None
        if "SAMState" in kinds and "grad_fn" in text:
            raise _another_gradient() from None
        raise


def _extra_arguments(optimizer: Any, reduced: Reduced) -> dict[str, Any]:
    """Return the extra arguments of an optimizer's update that a step can pass."""
    import optax

    if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
        return {}
    available = {"value": reduced.metrics["loss"], "grad": reduced.grads}
    parameters = inspect.signature(optimizer.update).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return available
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in available.items() if name in names}


def _unsupported(what: str, rule: str, remedy: str) -> Callable[[], UnsupportedError]:
    return partial(UnsupportedError, what, where="the optimizer", rule=rule, remedy=remedy)


_ONCE = "A step computes the loss and its gradient once, for the optimizer to use."

_line_search = _unsupported(
    "its update takes value_fn, to evaluate the loss again, as a line search does",
    _ONCE,
    "optax.lbfgs(0.1, linesearch=None), or an optimizer without a line search.",
)
_another_gradient = _unsupported(
    "its update takes grad_fn, for another gradient, as sam with opaque_mode=True does",
    _ONCE,
    "opaque_mode=False, which takes a separate step for each gradient.",
)
_UNSUPPORTED = {
    "LookaheadState": _unsupported(
        "optax.lookahead has two sets of params, and the gradient is that of one of them",
        "A step trains exactly the params that the loss takes.",
        "the optimizer inside it, without lookahead.",
    ),
    "DifferentiallyPrivateAggregateState": _unsupported(
        "its update takes one gradient for each example, as differential privacy does",
        "A step passes one gradient to an optimizer, that of the mean over the batch.",
        "an optimizer for one gradient; clipping that gradient does not make it private.",
    ),
}
"""Optimizers that a step cannot run, by the type of their state."""
