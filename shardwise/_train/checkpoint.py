"""Checkpoints with Orbax: the arrays of a state, the step, the position in the data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ShardingError, ShardwiseError, explain_error


class Checkpoints:
    """The checkpoints of one training, in a folder of their own.

    Arrays are stored by their path in the state, so that a checkpoint can be read without the
    classes that made it. A checkpoint is complete or not there: Orbax renames it into place.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
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
        # As the host holds them: a checkpoint belongs to no number of devices.
        state = jax.device_get(_named(arrays))
        about = {"arrays": _types(state), "position": position}
        state = {name: x for name, x in state.items() if x.size}  # Orbax stores no empty arrays
        with self._told():
            self._manager.save(
                step,
                args=args.Composite(state=args.StandardSave(state), about=args.JsonSave(about)),
            )

    def latest(self) -> int | None:
        """The step of the newest checkpoint."""
        return self._manager.latest_step()

    def load(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The arrays of a state like this one, and the position in the data."""
        try:
            return self._load(step, like)
        except (ShardwiseError, MemoryError):
            raise
        except Exception as error:
            raise ShardwiseError(
                explain_error(
                    f"it cannot be read: {type(error).__name__}: {error}",
                    where=f"checkpoint {step} in {self.folder}",
                    rule="A checkpoint is complete, or not there.",
                    remedy=f"delete the folder {step} there to go on from the one before.",
                )
            ) from error

    def _load(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        args = self._ocp.args
        about = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))["about"]
        named = _named(like)
        self._check(step, about["arrays"], _types(named))
        wanted = {name: np.empty(x.shape, x.dtype) for name, x in named.items() if x.size}
        state = self._manager.restore(
            step, args=args.Composite(state=args.StandardRestore(wanted))
        )["state"]
        leaves, structure = jax.tree.flatten(like)
        found = [
            _like(leaf, state[name]) if leaf.size else leaf
            for name, leaf in zip(named, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, found), about["position"]

    def close(self) -> None:
        """Wait for what is being written."""
        with self._told():
            self._manager.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say of which folder an error speaks, and that nothing before it is lost."""
        try:
            yield
        except Exception as error:
            raise ShardwiseError(
                explain_error(
                    f"a checkpoint could not be written: {type(error).__name__}: {error}"[:500],
                    where=str(self.folder),
                    rule="The checkpoints before it are whole.",
                    remedy="make room or mend the folder, and run it again: it goes on from the "
                    "newest of them.",
                )
            ) from error

    def _check(self, step: int, stored: dict[str, str], here: dict[str, str]) -> None:
        if stored == here:
            return
        name = min(n for n in {*stored, *here} if stored.get(n) != here.get(n))
        raise ShardingError(
            explain_error(
                f"{name} is {stored.get(name, 'missing')} there and "
                f"{here.get(name, 'missing')} here",
                where=f"checkpoint {step} in {self.folder}",
                rule="A training goes on with the model and the optimizer it began with.",
                remedy="another folder for another training.",
            )
        )


def _named(arrays: Any) -> dict[str, Any]:
    """Arrays by their path; keys of `jax.random` as the numbers they are made of."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    if len(set(names)) < len(names):  # {"a.b": x, "a": {"b": y}}
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return {name: _plain(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}


def _types(named: dict[str, Any]) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in named.items()}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, found: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(found, impl=jax.random.key_impl(leaf))
    return found
