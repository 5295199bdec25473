"""The results that `fn` may return: per-example values, and how to reduce them.

`named` turns the output of `fn` into one flat dictionary from metric name to a `Mean`, `Sum`,
`Min`, `Max` or a metric object. It is used twice on the same structure, once on shapes to plan the
run and once on traced values inside the step, so that the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ...._base.calls import public
from ...._base.errors import ShardingError, a_type


@dataclass(frozen=True)
class Reduction:
    """Values per example, possibly weighted, and how they are reduced: a class for each."""

    values: Any
    weights: Any = None

    def __init_subclass__(cls) -> None:
        # Not with `register_dataclass`: structures of different dataclasses with the same fields
        # compare as equal (JAX 0.10.2 to 0.12.0.1), and a cache of JAX then takes a `Sum` for a
        # `Max`.
        jax.tree_util.register_pytree_node(
            cls,
            lambda metric: ((metric.values, metric.weights), cls.__name__),
            lambda _, leaves: cls(*leaves),
        )


@public("sw.Mean")
class Mean(Reduction):
    """The weighted mean over all examples: the sum of `weights * values` over that of `weights`.

    Attributes:
        values: Per-example values, `[batch]`, or `[batch, ...]` such as one value per token.
        weights: Of the same shape, or of its leading part (`[batch]` for `[batch, tokens]`); a mask
            is a weight. An entry of weight zero does not count, even if its value is NaN. By
            default every value has weight one.
    """


@public("sw.Sum")
class Sum(Reduction):
    """The sum over all examples, of `weights * values` where there are weights (see `Mean`)."""


@public("sw.Min")
class Min(Reduction):
    """The least value over all examples; entries whose weight is zero are left out."""


@public("sw.Max")
class Max(Reduction):
    """The greatest value over all examples; entries whose weight is zero are left out."""


_REMEDY = (
    "return per-example values [batch], (values, weights), sw.Mean/Sum/Min/Max of those, "
    "a metric object with merge and compute, or a dict of any of these."
)


def is_metric_object(value: Any) -> bool:
    """Return whether this follows the protocol of CLU and metrax: `merge` and `compute`."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "merge", None))
        and callable(getattr(value, "compute", None))
    )


def named(output: Any) -> dict[str, Any]:
    """Give every metric in what `fn` returned a name and a `Reduction` or metric object."""
    if isinstance(output, Mapping) and output:
        _check_keys(output)
        metrics: dict[str, Any] = {}
        for key, value in output.items():
            for name, metric in named(value).items():
                full_name = f"{key}/{name}" if isinstance(value, Mapping) else str(key)
                if full_name in metrics:
                    raise _twice(full_name)
                metrics[full_name] = metric
        return metrics
    metric = _metric(output)
    return {type(metric).__name__.lower(): metric}


def _check_keys(output: Mapping[Any, Any]) -> None:
    """Raise for names that cannot be sorted, as JAX has to."""
    try:
        sorted(output)
    except TypeError:
        names = ", ".join(f"{key!r} ({type(key).__name__})" for key in output)
        raise ShardingError(
            f"it returned a dictionary with the names {names}.",
            where="fn",
            rule="The names of metrics are strings.",
            remedy="str(name) for the others.",
        ) from None


def _twice(name: str) -> ShardingError:
    return ShardingError(
        f"it returned two metrics of the name {name!r}.",
        where="fn",
        rule="Names of nested dictionaries are joined with a slash.",
        remedy="rename one of them.",
    )


def _metric(value: Any) -> Any:
    if isinstance(value, Reduction) and _is_array(value.values):
        return value
    if is_metric_object(value) and jax.tree.leaves(value) != [value]:
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(map(_is_array, value)):
        return Mean(*value)
    if _is_array(value):
        return Mean(value)
    raise ShardingError(
        f"it returned {_describe(value)}.",
        where="fn",
        rule="evaluate reduces per-example values.",
        remedy=_REMEDY,
    )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(repr, value))}" if value else "an empty dictionary"
    if isinstance(value, tuple | list):
        return f"{a_type(value)} of {len(value)}"
    if isinstance(value, Reduction):
        return f"sw.{type(value).__name__} of {_describe(value.values)}"
    if is_metric_object(value):
        return f"{a_type(value)}, which has merge and compute but is not a pytree"
    return f"{a_type(value)}"


def check_shapes(metrics: dict[str, Any], batch: int) -> None:
    """Raise if a metric is not per example; the message lists all such metrics.

    Args:
        metrics: The result of `named`, on shapes.
        batch: The number of rows of the batch.
    """
    problems = [
        f"{name!r}: {problem}"
        for name, metric in metrics.items()
        if isinstance(metric, Reduction) and (problem := _problem(metric, batch))
    ]
    if problems:
        raise ShardingError(
            "it did not return per-example values:\n    - " + "\n    - ".join(problems),
            where="fn",
            rule="The last step is padded. Padding can be removed from values per example, but "
            "not from "
            "a mean or a sum over the batch.",
            remedy=_REMEDY,
        )


def check_rows(once: dict[str, Any], twice: dict[str, Any], batch: int) -> None:
    """Raise if the values of an example grow with the batch.

    Args:
        once: The result of `named` for a batch, on shapes.
        twice: The same for twice the batch.
        batch: The number of rows of the first.
    """
    for name, metric in twice.items():
        single = once.get(name)
        if not (isinstance(metric, Reduction) and isinstance(single, Reduction)):
            continue
        if single.values.shape[1:] != metric.values.shape[1:]:
            shapes = [list(reduction.values.shape) for reduction in (single, metric)]
            raise ShardingError(
                f"{name!r} has shape {shapes[0]} for {batch} rows and {shapes[1]} for {2 * batch}.",
                where="fn",
                rule="The values of an example must not depend on the number of examples in a "
                "step. "
                "The usual cause is [rows, 1] - [rows], which is [rows, rows].",
                remedy="give both the same shape: predictions[:, 0] - targets, or "
                "targets[:, None].",
            )


def _problem(metric: Reduction, batch: int) -> str:
    values, weights = metric.values, metric.weights
    if not values.shape:
        return f"a scalar ({values.dtype}), expected [{batch}] or [{batch}, ...]"
    if values.shape[0] != batch:
        return f"values of shape {list(values.shape)} for a batch of {batch}"
    if 0 in values.shape:
        return f"values of shape {list(values.shape)}, which are empty"
    if not _is_real(values.dtype):
        return f"values of dtype {values.dtype}, expected real numbers"
    if weights is None:
        return ""
    if not _is_real(weights.dtype):
        return f"weights of dtype {weights.dtype}, expected real numbers"
    padded = tuple(weights.shape) + (1,) * (len(values.shape) - len(weights.shape))
    fits = len(padded) == len(values.shape) and all(
        w in (1, v) for w, v in zip(padded, values.shape, strict=True)
    )
    if not fits or padded[0] != batch:
        return f"weights of shape {list(weights.shape)} do not fit values of {list(values.shape)}"
    return ""


def _is_real(dtype: Any) -> bool:
    return (
        dtype == jnp.bool_
        or jnp.issubdtype(dtype, jnp.integer)
        or jnp.issubdtype(dtype, jnp.floating)
    )
