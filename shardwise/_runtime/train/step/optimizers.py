"""What an optimizer's update takes from a step, and what it may want that a step does not have."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...._base.errors import UnsupportedError, explain_error, text_of
from .gradient import Reduced
from .state import kinds_of


def extra_arguments(optimizer: Any, reduced: Reduced) -> dict[str, Any]:
    """What an optimizer's update takes besides the gradient, as far as a step knows it."""
    import optax

    if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
        return {}
    known = {"value": reduced.metrics["loss"], "grad": reduced.grads}
    taken = inspect.signature(optimizer.update).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return known
    names = {one.name for one in taken}
    return {name: value for name, value in known.items() if name in names}


@contextlib.contextmanager
def updating(opt_state: Any) -> Iterator[None]:
    """Say of an optimizer that wants more than a step has what that is, where its update fails.

    One for a gradient of each example does not always fail: it may take params for examples. One
    that always fails would take the blame for an error of the user's inside it.
    """
    kinds = kinds_of(opt_state)
    for want in _NEVER:
        if want.kind in kinds:
            raise want.told()
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        text = text_of(error)
        for want in _WANTS:
            if (not want.kind or want.kind in kinds) and re.search(want.text, text):
                raise want.told() from None
        raise


@dataclass(frozen=True)
class _Want:
    """What some optimizers want: known by a part of their state and the text of their error."""

    kind: str
    text: str
    what: str
    rule: str
    remedy: str

    def told(self) -> UnsupportedError:
        """The error in words."""
        return UnsupportedError(
            explain_error(self.what, where="the optimizer", rule=self.rule, remedy=self.remedy)
        )


_ONCE = "A step computes the loss and its gradient once, for the optimizer to use."

_WANTS = (
    _Want(
        "",
        r"missing \d+ required keyword-only arguments?: .*'value_fn'",
        "its update takes value_fn, to evaluate the loss again, as a line search does",
        _ONCE,
        "optax.lbfgs(0.1, linesearch=None), or an optimizer without a line search.",
    ),
    _Want(
        "SAMState",
        "grad_fn",
        "its update takes grad_fn, to take the gradient again, as sam with opaque_mode=True does",
        _ONCE,
        "opaque_mode=False, with which each of its gradients is one of a step of its own.",
    ),
)

_NEVER = (
    _Want(
        "LookaheadState",
        "",
        "optax.lookahead has two sets of params, of which the gradient is that of one",
        "A step trains what the loss is given, all of it and nothing else.",
        "the optimizer inside it, without lookahead.",
    ),
    _Want(
        "DifferentiallyPrivateAggregateState",
        "",
        "its update takes one gradient for each example, as differential privacy does",
        "A step gives an optimizer one gradient, that of the mean over the batch.",
        "an optimizer for one gradient; clipped, it is not private.",
    ),
)
