"""What a loss may return, and the sums computed from it.

A loss returns `[rows]`, or more values per row such as one per token; `(losses, weights)`; or a
scalar, the mean over its rows. Each becomes a `LossTerm`, and so does each further metric. A device
contributes the sum of `weight * value` and the sum of weights of each term: only sums can be added
over devices to give the mean over the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ...._base.errors import ShardingError, a_type
from .part import BatchPart, LossOf

TAKEN = {"loss", "weight", "updated", "grad_norm", "param_norm", "step", "seconds"}
REMEDY = "return one loss per row, or (losses, weights) with weights of the same shape."


@dataclass(frozen=True)
class LossTerm:
    """Values of one part of the batch, to be averaged over all parts.

    Attributes:
        name: The metric's name, for messages.
        values: `[rows, ...]`, or a scalar, which stands for the mean of its rows.
        weights: Of the same shape, or None where every value counts once.
    """

    name: str
    values: Any
    weights: Any = None

    @property
    def scalar(self) -> bool:
        """Whether it is already a mean over the rows."""
        return self.values.ndim == 0

    def size(self, rows: int) -> int:
        """Return how many values `rows` rows have; a scalar stands for one."""
        return 1 if self.scalar else math.prod(self.values.shape[1:]) * rows

    def total(self, mask: Any) -> Any:
        """Return the sum of the absolute weights, as a constant."""
        return jax.lax.stop_gradient(jnp.sum(jnp.abs(self._weights(mask))))

    def _weights(self, mask: Any) -> Any:
        """Return weights of the shape of the values, zero for padding."""
        dtype = accumulator(self.values.dtype)
        weights = jnp.ones((), dtype) if self.weights is None else self.weights.astype(dtype)
        if mask is not None:
            mask = mask.reshape(mask.shape + (1,) * (self.values.ndim - 1))
            weights = jnp.where(mask, weights, jnp.zeros((), dtype))
        return jnp.broadcast_to(jax.lax.stop_gradient(weights), self.values.shape)

    def sums(self, mask: Any) -> tuple[Any, Any]:
        """Return the weighted sum of the values and the sum of the weights, in float32 or better.

        Args:
            mask: Which rows are real, or None if all are.

        Returns:
            Both sums; None for the second where all weights are known to be one.
        """
        values = self.values.astype(accumulator(self.values.dtype))
        if mask is None and self.weights is None:
            return jnp.sum(values), None
        weights = self._weights(mask)
        weighted = jnp.where(weights != 0, weights * values, 0)
        return jnp.sum(weighted), jnp.sum(weights)


def accumulator(dtype: Any) -> Any:
    """Return the dtype to add up values of `dtype` in: float32 where it is narrower."""
    return jnp.promote_types(dtype, jnp.float32)


@dataclass(frozen=True)
class Objective:
    """A loss, how to read its output, and whose statistics it uses: `batch` or `shard`."""

    loss: LossOf
    has_aux: bool
    statistics: str

    def terms(
        self, params: Any, state: Any, batch: Any, place: BatchPart
    ) -> tuple[dict[str, LossTerm], Any]:
        """Return the loss and the metrics of some rows, by name, and the new state."""
        output, new = self.loss(params, state, batch, place)
        return _read(output, self.has_aux, place.rows), new


def _read(output: Any, has_aux: bool, rows: int) -> dict[str, LossTerm]:
    """Return the loss and the metrics from the output of a loss function."""
    metrics: Any = {}
    if has_aux:
        if not (isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Mapping)):
            raise _wrong(
                f"it returned {_describe(output)}",
                "With has_aux=True a loss returns a pair: the losses, and a dict of metrics.",
                "return losses, {'accuracy': hits}",
            )
        output, metrics = output
    loss = _term("loss", output, rows, has_aux)
    if not jnp.issubdtype(loss.values.dtype, jnp.floating):
        raise _wrong(
            f"its losses have dtype {loss.values.dtype}",
            "A gradient needs real floating-point losses.",
            "losses.astype(jnp.float32), after everything that is to be differentiated.",
        )
    unnamed = [name for name in metrics if not isinstance(name, str)]
    if unnamed:
        problem = f"it returned a metric named {unnamed[0]!r}"
        raise _wrong(problem, "The names of metrics are text.", f"{str(unnamed[0])!r}")
    reserved = TAKEN & set(metrics)
    if reserved:
        raise _wrong(
            f"it returned a metric named {min(reserved)!r}",
            f"{', '.join(sorted(TAKEN))} are reported by the step itself, or by sw.fit.",
            "give it another name.",
        )
    return {"loss": loss} | {n: _term(n, value, rows, True) for n, value in metrics.items()}


def _term(name: str, value: Any, rows: int, has_aux: bool) -> LossTerm:
    weights = None
    if isinstance(value, tuple) and len(value) == 2:
        value, weights = value
    if isinstance(weights, Mapping) and not has_aux:
        raise _wrong(
            "it returned a pair whose second part is a dict",
            "A pair is (losses, weights), unless has_aux=True says that metrics come with it, or "
            "mutable= that updated Linen collections do.",
            "has_aux=True, or mutable='batch_stats'",
        )
    if not _is_array(value) or not (weights is None or _is_array(weights)):
        raise _wrong(f"its {name!r} is {_describe(value)}", "A loss returns arrays.", REMEDY)
    values = jnp.asarray(value)
    if values.ndim and values.shape[0] != rows:
        raise _wrong(
            f"its {name!r} has shape {list(values.shape)} for {rows} rows",
            "Losses and metrics have one value, or one row of values, per example; "
            "or they are scalars, the mean over the rows.",
            REMEDY,
        )
    weights = None if weights is None else jnp.asarray(weights)
    for array in (values, weights):
        if array is not None and jnp.issubdtype(array.dtype, jnp.complexfloating):
            problem, rule = f"its {name!r} has dtype {array.dtype}", "Losses and weights are real."
            raise _wrong(problem, rule, "for example jnp.abs.")
    if weights is None:
        return LossTerm(name, values)
    fitted = weights.reshape(weights.shape + (1,) * max(values.ndim - weights.ndim, 0))
    if fitted.ndim != values.ndim or any(
        w not in (1, v) for w, v in zip(fitted.shape, values.shape, strict=True)
    ):
        raise _wrong(
            f"its {name!r} has shape {list(values.shape)}, its weights {list(weights.shape)}",
            "Weights have the shape of the values, or of their leading part.",
            REMEDY,
        )
    if values.ndim == 0:
        raise _wrong(f"its {name!r} is a scalar with a weight", "A scalar is a plain mean.", REMEDY)
    return LossTerm(name, values, fitted)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") or isinstance(value, bool | int | float)


def _describe(value: Any) -> str:
    if _is_array(value):
        return f"an array of shape {list(jnp.shape(value))}"
    if isinstance(value, tuple | list):
        return f"{a_type(value)} of {len(value)}"
    return f"{a_type(value)}"


def _wrong(what: str, rule: str, remedy: str) -> ShardingError:
    return ShardingError(what, where="the loss", rule=rule, remedy=remedy)
