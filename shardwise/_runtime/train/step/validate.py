"""Validate the variables to train."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...._base.boxes import boxes
from ...._base.errors import ArgumentError, ShardingError, a_type
from ...._base.numbers import dtype_remedy


def refuse_objects(params: Any) -> None:
    """Raise if params is an NNX object."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(params, nnx.Pytree):
        raise ArgumentError(
            f"params is {a_type(params)}, an NNX object",
            where="step.init",
            rule="sw.data_parallel trains pytrees of arrays.",
            remedy="sw.nnx.data_parallel(loss) trains the model itself.",
        )


def refuse_boxes(variables: Any) -> None:
    """Raise if a Linen variable is partitioned over mesh axes."""
    for path, names in boxes(variables):
        raise ShardingError(
            f"{path} is partitioned by {names}",
            where="params",
            rule="A data-parallel step replicates the params on every device.",
            remedy="step.init(nn.unbox(variables))",
        )


def refuse_no_arrays(collections: Any) -> None:
    """Raise if a leaf of a Linen collection cannot be put on a device."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(collections):
        dtype = getattr(leaf, "dtype", None)
        number = isinstance(leaf, bool | int | float | complex)
        if number or (dtype is not None and not isinstance(dtype, np.dtype)):
            continue
        if dtype is None or dtype_remedy(dtype):
            kind = a_type(leaf) if dtype is None else f"of dtype {dtype}"
            raise ShardingError(
                f"{jax.tree_util.keystr(path)} is {kind}",
                where="the collections",
                rule="The collections of a state are arrays, too.",
                remedy="close over it in the loss, and leave it out of the variables.",
            )


def refuse_integers(params: Any, where: str, remedy: str) -> None:
    """Raise if a leaf to be trained is not a floating-point array."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ShardingError(
            f"there are no arrays in it ({a_type(params)})",
            where=where,
            rule="Only floating-point arrays can be trained.",
            remedy='step.init({"w": jnp.zeros(3)}), or what the init of a model returns.',
        )
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
            kind = f"{a_type(leaf)}" if dtype is None else f"of dtype {dtype}"
            if isinstance(leaf, float | complex):
                remedy = f"jnp.asarray({leaf}), if it is to be trained; otherwise {remedy}"
            raise ShardingError(
                f"{jax.tree_util.keystr(path) or 'it'} is {kind}",
                where=where,
                rule="Only floating-point arrays can be trained.",
                remedy=remedy,
            )
