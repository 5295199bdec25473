"""What a step is given to train, and what it cannot be."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...._base.boxes import boxes
from ...._base.errors import ArgumentError, ShardingError, a_type, explain_error
from ...._base.numbers import instead_of


def refuse_objects(params: Any) -> None:
    """Raise for an NNX object in the place of params."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(params, nnx.Pytree):
        raise ArgumentError(
            explain_error(
                f"params is {a_type(params)}, an NNX object",
                where="step.init",
                rule="sw.data_parallel trains pytrees of arrays.",
                remedy="sw.nnx.data_parallel(loss) trains the model itself.",
            )
        )


def refuse_boxes(variables: Any) -> None:
    """Raise for a variable of Linen's that names axes of a mesh to be split over."""
    for path, names in boxes(variables):
        raise ShardingError(
            explain_error(
                f"{path} is in a box that splits it by {names}",
                where="params",
                rule="Every device of a data-parallel step has all of the params.",
                remedy="step.init(nn.unbox(variables)): the model takes them as they are.",
            )
        )


def refuse_no_arrays(collections: Any) -> None:
    """Raise if something in a collection of Linen's cannot be on a device."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(collections):
        dtype = getattr(leaf, "dtype", None)
        number = isinstance(leaf, bool | int | float | complex)
        if number or (dtype is not None and not isinstance(dtype, np.dtype)):
            continue
        if dtype is None or instead_of(dtype):
            found = a_type(leaf) if dtype is None else f"of dtype {dtype}"
            raise ShardingError(
                explain_error(
                    f"{jax.tree_util.keystr(path)} is {found}",
                    where="the collections",
                    rule="What a state holds besides the params are arrays, too.",
                    remedy="close over it in the loss, and leave it out of the variables.",
                )
            )


def refuse_integers(params: Any, where: str, remedy: str) -> None:
    """Raise if something that is to be trained is not a floating-point array."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ShardingError(
            explain_error(
                f"there are no arrays in it ({a_type(params)})",
                where=where,
                rule="What is trained are floating-point arrays.",
                remedy='step.init({"w": jnp.zeros(3)}), or what the init of a model returns.',
            )
        )
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
            found = f"{a_type(leaf)}" if dtype is None else f"of dtype {dtype}"
            if isinstance(leaf, float | complex):
                remedy = f"jnp.asarray({leaf}), if it is to be trained; otherwise {remedy}"
            raise ShardingError(
                explain_error(
                    f"{jax.tree_util.keystr(path) or 'it'} is {found}",
                    where=where,
                    rule="What is trained are floating-point arrays.",
                    remedy=remedy,
                )
            )
