"""The checkpoints of a training: saving, and choosing the one to resume from.

The record of a checkpoint (`record.py`) has a checksum of every array and one over itself, computed
by the thread that writes. A checkpoint that is read is compared with its record, and the record
with the folder: one that is damaged or belongs to another run is reported, and the one before it is
used. That is why at least two are kept.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...._base.durable import Identity, Lock
from ...._base.errors import ShardingError, ShardwiseError, require, warn
from ...hosts import others
from .arrays import by_name, on_host, sums_of, types_of
from .orbax import CheckpointFiles, quiet
from .record import (
    FILE,
    History,
    Record,
    Unusable,
    agreed_history,
    read_history,
)

LEAST = 2
"""The least number of checkpoints to keep: the newest may be damaged."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was read.

    Attributes:
        step: The number of steps taken.
        arrays: The arrays of the state.
        position: The position in the data.
        seal: The checksum of the record, which identifies the checkpoint to other processes.
    """

    step: int
    arrays: Any
    position: dict[str, Any]
    seal: str = ""


class Checkpoints:
    """The checkpoints of one run, in a folder that one process locks.

    Arrays are stored by their path in the state, so that a checkpoint can be read without the
    classes of the state. A checkpoint is written atomically: Orbax renames it into place.

    Args:
        folder: The folder; it is created if it does not exist.
        keep: How many to keep.
        writes: Whether this process writes them; of several, process 0 does.

    Attributes:
        newest: The step of the newest checkpoint.
        optimizer: The types in the optimizer's state, stored with each.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int, *, writes: bool = True) -> None:
        require("orbax.checkpoint", "sw.fit with checkpoint=")
        self.folder = Path(folder).absolute()
        _check_folder(self.folder, folder)
        self._lock = Lock(
            self.folder / ".lock",
            resource=f"the checkpoints in {self.folder}",
            activity="trains",
            remedy="wait for it, stop it, or use another folder.",
        )
        if writes:
            self._acquire()
        self._identity = Identity(self.folder)
        try:
            self._files = CheckpointFiles(self.folder, keep)
        except BaseException:
            self._lock.__exit__()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shardwise-checkpoint")
        self._saving: Future[None] | None = None
        self._closed = False
        self._history = History("")
        self._session = ""
        self._start = 0
        self.newest: int | None = None
        self.optimizer: list[str] = []

    @property
    def run(self) -> str:
        """The name of the run, known after `resume`."""
        return self._history.run

    def _acquire(self) -> None:
        """Create the folder and acquire its lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.__enter__()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ShardwiseError:
        return ShardwiseError(
            f"nothing can be written there: {error.strerror or error}",
            where=f"the checkpoints in {self.folder}",
            rule="fit does not start a training that it cannot store.",
            remedy="a folder that can be written.",
        )

    # --- writing

    def save(self, step: int, arrays: Any, position: dict[str, Any]) -> None:
        """Store a state; the caller may donate or change it as soon as this returns.

        Another thread computes the checksums and writes; the next call raises its errors.
        """
        self.wait()
        self.watch()
        # Arrays on the host: a checkpoint does not depend on the number of devices.
        state = on_host(by_name(arrays))
        self._saving = self._thread.submit(self._write, step, state, position)
        self.newest = step

    def _write(self, step: int, state: dict[str, np.ndarray], position: dict[str, Any]) -> None:
        if not self._session:
            self._begin_session()
        record = Record(
            history=self._history,
            step=step,
            types=types_of(state),
            sums=sums_of(state),
            optimizer=self.optimizer,
            position=position,
        ).sealed()
        self._files.write(step, state, record)

    def _begin_session(self) -> None:
        """Enter this session into `run.json`, before its first checkpoint is written."""
        session = secrets.token_hex(4)
        history = self._history.extend(session, self._start)
        history.write(self.folder)
        self._history, self._session = history, session

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise its error."""
        saving = self._saving
        if saving is not None:
            with self._naming_folder():
                saving.result()
            self._saving = None

    def watch(self) -> None:
        """Raise if the folder was deleted or moved."""
        change = self._identity.lost()
        if change:
            raise ShardwiseError(
                f"it {change} while the training ran",
                where=str(self.folder),
                rule="The checkpoints went with it, and no further ones can be stored.",
                remedy="put it back if it was moved, and run it again: it resumes from the "
                "newest checkpoint there, or from the start.",
            )

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and release the folder."""
        if self._closed:
            return
        self._closed, saving = True, self._saving
        try:
            self.wait()
            with self._naming_folder():
                self._files.close()
        finally:
            self._thread.shutdown(wait=False)
            if saving is None or saving.done():
                self._lock.__exit__()
            else:  # a second interrupt did not wait for it
                saving.add_done_callback(self._lock.__exit__)

    @contextmanager
    def _naming_folder(self) -> Iterator[None]:
        """Raise errors of writing with the name of the folder."""
        try:
            yield
        except Exception as error:
            self.watch()
            raise ShardwiseError(
                f"a checkpoint could not be written: {type(error).__name__}: {error}"[:500],
                where=str(self.folder),
                rule="The checkpoints before it are whole.",
                remedy="make room or repair the folder, and run it again: it resumes from the "
                "newest of them.",
            ) from error

    # --- reading

    def resume(self, like: Any) -> Restored | None:
        """Return the newest valid checkpoint of this run, or None if there is none.

        Invalid ones are reported and renamed, so that their steps can be stored again.

        Args:
            like: The arrays of a state like the one that was stored.
        """
        self._find_history()
        unusable: dict[int, Unusable] = {}
        for step in reversed(self._files.steps()):
            try:
                with quiet():
                    restored = self._load(step, like, self._history)
            except Unusable as error:
                unusable[step] = error
                continue
            if unusable:
                self._set_aside(unusable, step)
            self.newest = self._start = step
            return restored
        if unusable:
            raise self._none_left(unusable)
        return None

    def _find_history(self) -> None:
        """Read the history of the run from `run.json`, or else from the checkpoints."""
        history, reason = read_history(self.folder)
        if history is None:
            history = agreed_history(self._whole_records(), self.folder)
            if reason:
                warn(f"{self.folder / FILE} is damaged ({reason}); it is rewritten")
            if history.sessions or not self._files.steps():
                try:
                    history.write(self.folder)
                except OSError as error:
                    raise self._unwritable(error) from error
        self._history = history

    def _whole_records(self) -> list[Record]:
        records = []
        for step in self._files.steps():
            try:
                records.append(self._files.record(step))
            except Unusable:
                continue
        return records

    def read(self, step: int, like: Any, seal: str) -> Restored:
        """Return the checkpoint that process 0 has chosen.

        Args:
            step: Its step.
            like: The arrays of a state like the one that was stored.
            seal: The checksum of its record.
        """
        try:
            restored = self._load(step, like, None)
            if restored.seal != seal:
                raise Unusable("it is another checkpoint of that step")
        except Unusable as error:
            raise ShardwiseError(
                f"process 0 has read it, process {others.index()} cannot: {error}",
                where=self._files.where(step),
                rule="All processes read one checkpoint, in one folder.",
                remedy="a folder on a file system that all machines share.",
            ) from error
        return restored

    def _load(self, step: int, like: Any, history: History | None) -> Restored:
        record = self._files.record(step)
        if history is not None and (reason := history.objection(record)):
            raise Unusable(reason, "foreign")
        _check_types(record, types_of(by_name(like)), self.optimizer, self._files.where(step))
        arrays = self._files.arrays(step, record, like)
        return Restored(step, arrays, record.position, record.sealed()["crc"])

    def _set_aside(self, unusable: dict[int, Unusable], start: int) -> None:
        reports = []
        for step, error in unusable.items():
            path = self._files.set_aside(step, error.kind)
            reports.append(
                f"checkpoint {step} is {error.kind} ({error}); it is kept as {path.name}"
            )
        damaged = [step for step, error in unusable.items() if error.kind == "damaged"]
        redone = f": {max(damaged) - start} steps are done again" if damaged else ""
        warn(
            f"{self.folder}: {'; '.join(reports)}. The training resumes from step {start}{redone}."
        )

    def _none_left(self, unusable: dict[int, Unusable]) -> ShardwiseError:
        listed = "".join(f"\n    - checkpoint {n}: {error}" for n, error in unusable.items())
        return ShardwiseError(
            f"no checkpoint there can be used:{listed}",
            where=str(self.folder),
            rule="A checkpoint that is damaged, renamed or of another run is not used.",
            remedy="restore its name, restore a copy of one of them, or use another folder to "
            "start again.",
        )


def _check_folder(folder: Path, argument: str | os.PathLike[str]) -> None:
    """Raise unless checkpoints can be stored in this folder."""
    if folder.exists() and not folder.is_dir():
        raise ShardingError(
            f"{argument} is a file",
            where="argument 'checkpoint'",
            rule="Checkpoints are kept in a folder.",
            remedy="name a folder; fit creates it.",
        )
    wildcards = [character for character in str(folder) if character in "*?[]\\"]
    if wildcards:
        raise ShardingError(
            f"{str(folder)!r} has a {wildcards[0]!r} in it",
            where="argument 'checkpoint'",
            rule="Orbax interprets * ? [ ] and \\ as patterns, and could not read the "
            "checkpoints it writes there.",
            remedy="a folder without them.",
        )


def _check_types(record: Record, here: dict[str, str], optimizer: list[str], where: str) -> None:
    """Raise unless a checkpoint has the arrays and the optimizer of the current state."""
    stored = record.types
    if stored == here and record.optimizer == optimizer:
        return
    problem = f"the state of the optimizer is {record.optimizer} there and {optimizer} here"
    if stored != here:
        name = min(n for n in {*stored, *here} if stored.get(n) != here.get(n))
        saved, current = (types.get(name, "missing") for types in (stored, here))
        problem = f"{name} is {saved} there and {current} here"
    raise ShardingError(
        problem,
        where=where,
        rule="A training resumes with the model and the optimizer it began with.",
        remedy="another folder for another training.",
    )
