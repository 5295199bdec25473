"""The record of a checkpoint: the values stored beside its arrays, under one checksum.

A record names the run, the session and the step that wrote it, the checksum of every array, the
types in the optimizer's state and the position in the data. The name of the folder is not trusted:
a checkpoint that was renamed, or copied from another run, does not match its place.

A run is one training in one folder. A session is one call of `fit` that stored something; it starts
at the step of a checkpoint, and supersedes what earlier sessions stored after that step. The file
`run.json` in the folder lists the run and its sessions. A copy of the folder that is trained
further has different sessions, so that its checkpoints are not mistaken for those of the original.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...._base.durable import broken_seal, seal, write_whole
from ...._base.errors import ShardwiseError

FORMAT = "shardwise fit 3"
FILE = "run.json"


class Unusable(Exception):
    """A checkpoint that must not be used.

    Args:
        why: What is wrong with it, as a clause.
        kind: `damaged`, or `foreign` if it belongs to another run or step.
    """

    def __init__(self, why: str, kind: str = "damaged") -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True)
class History:
    """A run and the sessions that wrote its checkpoints, in order.

    Attributes:
        run: The name of the run.
        sessions: The name of each session and the step that it started from.
    """

    run: str
    sessions: tuple[tuple[str, int], ...] = ()

    def extend(self, session: str, start: int) -> History:
        """Return the history with one more session; sessions that it supersedes are left out."""
        earlier = tuple((name, first) for name, first in self.sessions if first < start)
        return History(self.run, (*earlier, (session, start)))

    def objection(self, record: Record) -> str:
        """Return why a checkpoint is not one of this run, as a clause; empty if it is."""
        if record.history.run != self.run:
            return f"it belongs to run {record.history.run}, this folder to run {self.run}"
        names = [name for name, _ in self.sessions]
        if record.session not in names:
            return "it was written by a copy of this run that was trained elsewhere"
        later = [first for _, first in self.sessions[names.index(record.session) + 1 :]]
        if any(first < record.step for first in later):
            return f"this run was resumed at step {min(later)} after it was written"
        return ""

    def write(self, folder: Path) -> None:
        """Write `run.json`."""
        facts = {"format": FORMAT, "run": self.run, "sessions": self.sessions}
        write_whole(folder / FILE, (json.dumps(seal(facts)) + "\n").encode())


def new_history() -> History:
    """Return the history of a run that begins now, named after the time."""
    return History(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}")


def read_history(folder: Path) -> tuple[History | None, str]:
    """Return the history in `run.json`, or None and, where the file is damaged, what is wrong."""
    path = folder / FILE
    try:
        facts = json.loads(path.read_bytes())
        reason = broken_seal(facts)
    except FileNotFoundError:
        return None, ""
    except PermissionError as error:
        raise ShardwiseError(
            f"it cannot be read: {error.strerror}",
            where=str(path),
            rule="It names the run of the checkpoints beside it.",
            remedy="let this user read it.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        facts, reason = None, f"{type(error).__name__}: {error}"
    if reason or facts is None:
        return None, reason
    _require_format(facts, str(path))
    return _history(facts), ""


@dataclass(frozen=True)
class Record:
    """One checkpoint without its arrays.

    Attributes:
        history: The run, and its sessions up to the one that wrote the checkpoint.
        step: The number of steps taken.
        types: Dtype and shape of each array.
        sums: The checksum of each array.
        optimizer: The types in the optimizer's state.
        position: The position in the data.
    """

    history: History
    step: int
    types: dict[str, str]
    sums: dict[str, str]
    optimizer: list[str]
    position: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> str:
        """The session that wrote the checkpoint."""
        return self.history.sessions[-1][0]

    def sealed(self) -> dict[str, Any]:
        """Return the record as JSON, with its checksum."""
        return seal(
            {
                "format": FORMAT,
                "run": self.history.run,
                "sessions": self.history.sessions,
                "step": self.step,
                "arrays": self.types,
                "sums": self.sums,
                "optimizer": self.optimizer,
                "position": self.position,
            }
        )


def read_record(facts: Any, step: int, where: str) -> Record:
    """Return the record that was stored in the folder of a step.

    Raises:
        Unusable: It is damaged, or of another step.
        ShardwiseError: Another version of shardwise wrote it.
    """
    if problem := broken_seal(facts):
        raise Unusable(problem)
    _require_format(facts, where)
    if facts["step"] != step:
        raise Unusable(f"it is a checkpoint of step {facts['step']}, renamed or copied", "foreign")
    return Record(
        history=_history(facts),
        step=step,
        types=facts["arrays"],
        sums=facts["sums"],
        optimizer=facts["optimizer"],
        position=facts["position"],
    )


def agreed_history(records: list[Record], folder: Path) -> History:
    """Return the history that all checkpoints of a folder without `run.json` share.

    Raises:
        ShardwiseError: They are of different runs.
    """
    if not records:
        return new_history()
    newest = max(records, key=lambda record: record.step)
    for record in records:
        if newest.history.objection(record):
            raise ShardwiseError(
                f"checkpoint {record.step} is of run {record.history.run} (session "
                f"{record.session}), checkpoint {newest.step} of run {newest.history.run} "
                f"(session {newest.session})",
                where=str(folder),
                rule=f"A folder holds the checkpoints of one run, which {FILE} names; that "
                "file is missing or damaged.",
                remedy=f"restore {FILE}, or move the checkpoints of the other run away.",
            )
    return newest.history


def _history(facts: dict[str, Any]) -> History:
    return History(facts["run"], tuple((name, first) for name, first in facts["sessions"]))


def _require_format(facts: dict[str, Any], where: str) -> None:
    if facts.get("format") != FORMAT:
        raise ShardwiseError(
            f"its format is {facts.get('format')!r}, this version reads {FORMAT!r}",
            where=where,
            rule="A training resumes with the version of shardwise that began it.",
            remedy="use that version, or another folder to start again.",
        )
