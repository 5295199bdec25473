"""Which process failed first, out of what was heard of all of them.

The first exit that a launcher sees need not be the cause: a process that raises takes a moment to
end, and one that lost its connection to it may be gone before. What a process says of itself, and
a signal that nobody here sent, come before what follows from them. One that has ended well is the
cause, too, where another process reports that it still waits for it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from .events import Exited, Lost, Reported, describe_exit, exit_code

_BROKEN = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError")
_SHOWN = 20
"""Lines of a process's standard error that are shown, at most."""
_PEER = 77  # how a process exits that was ended because another one had failed


@dataclass(frozen=True)
class Failure:
    """The first failure of an attempt.

    Attributes:
        who: The process and its host.
        how: How it ended, as a clause.
        words: The last lines of its standard error.
        code: The exit code that the launcher ends with.
        outside: Whether somebody outside the program ended it.
    """

    who: str
    how: str
    words: str
    code: int
    outside: bool = False

    def __str__(self) -> str:
        return self._with_lines(_SHOWN)

    @property
    def brief(self) -> str:
        """With no more than its last words."""
        return self._with_lines(4)

    def _with_lines(self, most: int) -> str:
        last = self.words.rstrip().splitlines()[-most:]
        return f"{self.who} failed first: {self.how}" + "".join(f"\n    {line}" for line in last)

    @property
    def line(self) -> str:
        """In one line, and without what differs from attempt to attempt."""
        last = self.words.strip().splitlines()[-1:] or [""]
        return f"{self.how}: {last[0]}"


Evidence = Exited | Reported | Lost

FOLLOWS = 2
"""The rank of what follows from another failure."""


def first_failure(evidence: list[Evidence], paused: Mapping[int, str] | None = None) -> Failure:
    """Return the cause among what was heard, in the order it was heard.

    Args:
        evidence: What was heard.
        paused: The processes that a signal has stopped, and their hosts: where others give up, it
            is these that they waited for.
    """
    cause = min(causes(evidence), key=rank)
    if paused and rank(cause) >= FOLLOWS:
        process, host = next(iter(paused.items()))
        reason = "it was stopped by a signal (SIGSTOP, or Ctrl-Z) and not continued"
        message = f"The others waited for it until they gave up: {_described(cause)}."
        return Failure(f"process {process} on {host}", reason, message, 128 + signal.SIGSTOP, True)
    if isinstance(cause, Lost):
        return Failure(f"machine {cause.node}", f"contact was lost: {cause.why}", "", 1, True)
    subject = f"process {cause.process} on {cause.host}"
    if isinstance(cause, Reported) and cause.left:
        reason = f"it ended its script while {subject} waited for it"
        return Failure(cause.left, reason, cause.words, cause.code)
    if isinstance(cause, Reported):
        tails = [e.words for e in evidence if isinstance(e, Exited) and e.process == cause.process]
        message = tails[0] if tails and tails[0] else cause.words
        return Failure(subject, describe_exit(cause.code), message, cause.code)
    outside = cause.code in (-signal.SIGKILL, -signal.SIGTERM)
    return Failure(subject, describe_exit(cause.code), cause.words, exit_code(cause.code), outside)


def _described(cause: Evidence) -> str:
    if isinstance(cause, Lost):
        return f"machine {cause.node} was lost"
    return f"process {cause.process} on {cause.host}, {describe_exit(cause.code)}"


def is_known(evidence: list[Evidence]) -> bool:
    """Return whether something was heard that need not follow from another failure."""
    return any(rank(cause) < FOLLOWS for cause in causes(evidence))


def causes(evidence: list[Evidence]) -> list[Evidence]:
    """Return the evidence without the exits of processes that reported the reason before."""
    reported = {
        (report.process, report.code) for report in evidence if isinstance(report, Reported)
    }
    return [e for e in evidence if not (isinstance(e, Exited) and (e.process, e.code) in reported)]


def rank(one: Evidence) -> int:
    """Return the distance from the cause: 0 is the cause, `FOLLOWS` or more a consequence."""
    if isinstance(one, Lost):
        return 1
    if isinstance(one, Reported):
        broken = any(phrase in one.words for phrase in _BROKEN)
        return 1 if one.left else 3 if one.peer else FOLLOWS if broken else 0
    if one.code == -signal.SIGABRT:
        return FOLLOWS
    return 3 if one.code == _PEER else 0
