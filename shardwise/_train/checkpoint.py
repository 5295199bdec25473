"""Checkpoints with Orbax: the arrays of a state, the step, the position in the data.

A checkpoint holds a checksum of every array, and one over all that is written beside the arrays.
They are computed by the thread that writes it, and compared when it is read: a checkpoint that was
damaged is told from a whole one, whichever file the damage is in. The one before it is taken then,
which is why two are kept at least.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._durable import Identity, Lock, broken_seal, checksum, seal, unused
from .._errors import ShardingError, ShardwiseError, explain_error, require, warn
from .._hosts import others

FORMAT = "shardwise fit 2"
LEAST = 2
"""How many checkpoints are kept at least: the newest may turn out to be damaged."""


@dataclass(frozen=True)
class Restored:
    """What a checkpoint gave back: the step, the arrays of the state, the position in the data."""

    step: int
    arrays: Any
    position: dict[str, Any]


class _Damaged(Exception):
    """A checkpoint is not what was written; the text says how that showed."""


class Checkpoints:
    """The checkpoints of one training, in a folder of their own that one process holds.

    Arrays are stored by their path in the state, so that a checkpoint can be read without the
    classes that made it. A checkpoint is complete or not there: Orbax renames it into place.

    Args:
        folder: The folder; it is made if it is not there.
        keep: How many to keep.
        writes: Whether this process writes them; of several, the first does, and others read.

    Attributes:
        newest: The step of the newest one.
        optimizer: What the optimizer's state is made of, stored with each.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int, *, writes: bool = True) -> None:
        require("orbax.checkpoint", "sw.fit with checkpoint=")
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
        strange = [letter for letter in str(self.folder) if letter in "*?[]\\"]
        if strange:
            raise ShardingError(
                explain_error(
                    f"{str(self.folder)!r} has a {strange[0]!r} in it",
                    where="argument 'checkpoint'",
                    rule="Orbax takes * ? [ ] and \\ for patterns, and would write checkpoints "
                    "there that cannot be read.",
                    remedy="a folder without them.",
                )
            )
        self._lock = Lock(
            self.folder / ".lock",
            what=f"the checkpoints in {self.folder}",
            doing="trains",
            remedy="wait for it, stop it, or use another folder.",
        )
        if writes:
            self._take()
        self._identity = Identity(self.folder)
        try:
            self._manager = self._make_manager(keep)
        except BaseException:
            self._lock.__exit__()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shardwise-checkpoint")
        self._saving: Future[None] | None = None
        self._closed = False
        self.newest: int | None = None
        self.optimizer: list[str] = []

    def _make_manager(self, keep: int) -> Any:
        ocp = self._ocp
        # Orbax would have all processes wait for each other at every turn.
        alone = ocp.options.MultiprocessingOptions()
        if others.count() > 1:
            own = others.index()
            alone = ocp.options.MultiprocessingOptions(
                primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process{own}"
            )
        # Written by a thread of ours, one after another: Orbax's own would outlive a failure.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,
            enable_async_checkpointing=False,
            multiprocessing_options=alone,
        )
        handlers = {
            "state": ocp.StandardCheckpointHandler(multiprocessing_options=alone),
            "about": ocp.JsonCheckpointHandler(multiprocessing_options=alone),
        }
        return ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    def _take(self) -> None:
        """Make the folder and take its lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.__enter__()
        except OSError as error:
            raise ShardwiseError(
                explain_error(
                    f"nothing can be written there: {error.strerror or error}",
                    where=f"the checkpoints in {self.folder}",
                    rule="A training that cannot be stored is not started.",
                    remedy="a folder that can be written.",
                )
            ) from error

    def save(self, step: int, arrays: Any, position: dict[str, Any]) -> None:
        """Store a state; it may change as soon as this returns.

        What is left to do then, the checksums and the writing, is done by another thread; what
        fails there is raised by the next call.
        """
        self.wait()
        self.watch()
        # As the host holds them: a checkpoint belongs to no number of devices.
        state = _on_host(_named(arrays))
        self._saving = self._thread.submit(self._write, step, state, position)
        self.newest = step

    def _write(self, step: int, state: dict[str, np.ndarray], position: dict[str, Any]) -> None:
        args = self._ocp.args
        about = seal(
            {
                "format": FORMAT,
                "arrays": _types(state),
                "optimizer": self.optimizer,
                "sums": {name: _sum(x) for name, x in state.items()},
                "position": position,
            }
        )
        state = {name: x for name, x in state.items() if x.size}  # Orbax stores no empty arrays
        stored = self._manager.save(
            step, args=args.Composite(state=args.StandardSave(state), about=args.JsonSave(about))
        )
        if not stored:
            raise RuntimeError(f"Orbax left out step {step}: there is a later one")

    def wait(self) -> None:
        """Wait for what is being written, and raise what failed there."""
        saving = self._saving
        if saving is not None:
            with self._told():
                saving.result()
            self._saving = None

    def watch(self) -> None:
        """Raise if the folder has gone away."""
        lost = self._identity.lost()
        if lost:
            raise ShardwiseError(
                explain_error(
                    f"it {lost} while the training ran",
                    where=str(self.folder),
                    rule="What was stored went with it, and nothing more can be stored.",
                    remedy="put it back if it was moved, and run it again: it resumes from the "
                    "newest checkpoint there, or from the start.",
                )
            )

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, whole or not."""
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir())

    def resume(self, like: Any) -> Restored | None:
        """The newest checkpoint that is whole, or None if there is none at all.

        Damaged ones are told, and kept under another name, so that their steps can be stored anew.

        Args:
            like: The arrays of a state like the one that was stored.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                with _quiet():
                    arrays, position = self._load(step, like)
            except _Damaged as error:
                damaged[step] = str(error)
                continue
            if damaged:
                self._set_aside(damaged, step)
            self.newest = step
            return Restored(step, arrays, position)
        if damaged:
            raise self._none_left(damaged)
        return None

    def read(self, step: int, like: Any) -> Restored:
        """A checkpoint that another process has found to be whole."""
        try:
            arrays, position = self._load(step, like)
        except _Damaged as error:
            raise ShardwiseError(
                explain_error(
                    f"process 0 has read it, process {others.index()} cannot: {error}",
                    where=f"checkpoint {step} in {self.folder}",
                    rule="All processes read one checkpoint, in one folder.",
                    remedy="a folder on a file system that all machines share.",
                )
            ) from error
        return Restored(step, arrays, position)

    def _set_aside(self, damaged: dict[int, str], taken: int) -> None:
        told = []
        for step, why in damaged.items():
            aside = unused(self.folder / f"{step}.damaged")
            (self.folder / str(step)).rename(aside)
            told.append(f"checkpoint {step} is damaged ({why}); it is kept as {aside.name}")
        self._manager.reload()
        warn(
            f"{self.folder}: {'; '.join(told)}. The training resumes from step {taken}: "
            f"{max(damaged) - taken} steps are done again.",
        )

    def _none_left(self, damaged: dict[int, str]) -> ShardwiseError:
        listed = "".join(f"\n    - checkpoint {n}: {why}" for n, why in damaged.items())
        return ShardwiseError(
            explain_error(
                f"no checkpoint there can be used:{listed}",
                where=str(self.folder),
                rule="A damaged checkpoint is not trained on.",
                remedy="bring back a copy of one of them, or use another folder to begin anew.",
            )
        )

    def _load(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        try:
            return self._read(step, like)
        except (ShardwiseError, MemoryError, _Damaged):
            raise
        except Exception as error:
            what = f"it cannot be read: {type(error).__name__}: {error}"[:500]
            if isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error):
                raise ShardwiseError(
                    explain_error(
                        what,
                        where=f"checkpoint {step} in {self.folder}",
                        rule="What cannot be read may still be whole.",
                        remedy="let this user read it; or delete it, to go on from the one before.",
                    )
                ) from error
            raise _Damaged(" ".join(what.split())[:200]) from error

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        args = self._ocp.args
        about = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))["about"]
        if broken := broken_seal(about):
            raise _Damaged(broken)
        named = _named(like)
        self._check(step, about, _types(named))
        wanted = {name: np.empty(x.shape, x.dtype) for name, x in named.items() if x.size}
        state = self._manager.restore(
            step, args=args.Composite(state=args.StandardRestore(wanted))
        )["state"]
        for name in wanted:
            if _sum(state[name]) != about["sums"][name]:
                raise _Damaged(f"{name} has not the checksum it was stored with")
        leaves, structure = jax.tree.flatten(like)
        found = [
            _like(leaf, state[name]) if leaf.size else leaf
            for name, leaf in zip(named, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, found), about["position"]

    def close(self) -> None:
        """Wait for what is being written, and let go of the folder."""
        if self._closed:
            return
        self._closed, saving = True, self._saving
        try:
            self.wait()
            with self._told():
                self._manager.close()
        finally:
            self._thread.shutdown(wait=False)
            if saving is None or saving.done():
                self._lock.__exit__()
            else:  # a second interrupt did not wait for it
                saving.add_done_callback(self._lock.__exit__)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say of which folder an error speaks, and that nothing before it is lost."""
        try:
            yield
        except Exception as error:
            self.watch()
            raise ShardwiseError(
                explain_error(
                    f"a checkpoint could not be written: {type(error).__name__}: {error}"[:500],
                    where=str(self.folder),
                    rule="The checkpoints before it are whole.",
                    remedy="make room or repair the folder, and run it again: it resumes from the "
                    "newest of them.",
                )
            ) from error

    def _check(self, step: int, about: dict[str, Any], here: dict[str, str]) -> None:
        stored = about["arrays"]
        optimizer = about.get("optimizer", self.optimizer)  # older ones do not say
        if stored == here and optimizer == self.optimizer:
            return
        what = f"the state of the optimizer is {optimizer} there and {self.optimizer} here"
        if stored != here:
            name = min(n for n in {*stored, *here} if stored.get(n) != here.get(n))
            there, now = (types.get(name, "missing") for types in (stored, here))
            what = f"{name} is {there} there and {now} here"
        raise ShardingError(
            explain_error(
                what,
                where=f"checkpoint {step} in {self.folder}",
                rule="A training goes on with the model and the optimizer it began with.",
                remedy="another folder for another training.",
            )
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep threads of a reader that has failed already from printing that its loop is closed."""
    before = sys.unraisablehook

    def hook(found: Any) -> None:
        if "Event loop is closed" not in str(found.exc_value):
            before(found)

    sys.unraisablehook = hook
    try:
        yield
    except _Damaged:
        time.sleep(0.1)  # the others fail right after the first
        raise
    finally:
        sys.unraisablehook = before


def _named(arrays: Any) -> dict[str, Any]:
    """Arrays by their path; keys of `jax.random` as the numbers they are made of."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    if len(set(names)) < len(names):  # {"a.b": x, "a": {"b": y}}
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return {name: _plain(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}


def _types(named: dict[str, Any]) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in named.items()}


def _on_host(named: dict[str, Any]) -> dict[str, np.ndarray]:
    """The values as they are now, whatever becomes of the arrays."""
    fetched = jax.device_get(named)
    return {n: x.copy() if _is_seen(named[n]) else x for n, x in fetched.items()}


def _is_seen(leaf: Any) -> bool:
    """Whether the host sees the memory itself, which the next step may give away."""
    return not isinstance(leaf, jax.Array) or any(d.platform == "cpu" for d in leaf.devices())


def _sum(array: Any) -> str:
    return f"{checksum(np.ascontiguousarray(array).reshape(-1).view(np.uint8)):08x}"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, found: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(found, impl=jax.random.key_impl(leaf))
    return found
