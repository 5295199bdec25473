"""Checkpoints with Orbax: the arrays of a state, the step, the position in the data."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import ShardingError, explain_error


class Checkpoints:
    """The checkpoints of one training, in a folder of their own.

    Arrays are stored by their path in the state, so that a checkpoint can be read without the
    classes that made it. A checkpoint is complete or not there: Orbax renames it into place.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        # Orbax tells of every file it opens.
        logging.getLogger("absl").setLevel(logging.ERROR)
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.folder = Path(folder).absolute()
        if self.folder.exists() and not self.folder.is_dir():
            raise ShardingError(
                explain_error(
                    f"{folder} is a file",
                    where="argument 'checkpoint'",
                    rule="Checkpoints are kept in a folder.",
                    remedy="name a folder; it is made if it is not there.",
                )
            )
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, arrays: Any, position: dict[str, Any]) -> None:
        """Store a state; it may change as soon as this returns."""
        args = self._ocp.args
        state = {name: _plain(leaf) for name, leaf in _named(arrays)}
        self._manager.save(
            step,
            args=args.Composite(state=args.StandardSave(state), position=args.JsonSave(position)),
        )

    def latest(self) -> int | None:
        """The step of the newest checkpoint."""
        return self._manager.latest_step()

    def load(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The arrays of a state like this one, and the position in the data."""
        args = self._ocp.args
        leaves = _named(like)
        self._check(step, {name: _plain(leaf) for name, leaf in leaves})
        wanted = {
            name: jax.ShapeDtypeStruct(plain.shape, plain.dtype)
            for name, leaf in leaves
            for plain in [_plain(leaf)]
        }
        found = self._manager.restore(
            step,
            args=args.Composite(state=args.StandardRestore(wanted), position=args.JsonRestore()),
        )
        arrays = [_like(leaf, found["state"][name]) for name, leaf in leaves]
        return jax.tree.unflatten(jax.tree.structure(like), arrays), found["position"]

    def close(self) -> None:
        """Wait for what is being written."""
        self._manager.close()

    def _check(self, step: int, wanted: dict[str, Any]) -> None:
        stored = self._manager.item_metadata(step)["state"]
        stored = {name: tuple(meta.shape) for name, meta in dict(stored).items()}
        have = {name: tuple(leaf.shape) for name, leaf in wanted.items()}
        if stored == have:
            return
        name = min(n for n in {*stored, *have} if stored.get(n) != have.get(n))
        raise ShardingError(
            explain_error(
                f"{name} is {_shape(stored.get(name))} there and {_shape(have.get(name))} here",
                where=f"checkpoint {step} in {self.folder}",
                rule="A training goes on with the model and the optimizer it began with.",
                remedy="another folder for another training.",
            )
        )


def _named(arrays: Any) -> list[tuple[str, Any]]:
    paths = jax.tree_util.tree_leaves_with_path(arrays)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, found: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(found, impl=jax.random.key_impl(leaf))
    return found


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
