"""Determine which process failed first.

The first exit that a launcher sees need not be the cause: a process that raises takes a moment to
end, and one that lost its connection to it may end earlier. So exits are ranked: a process's own
report of an error, and a signal that the launcher did not send, precede their consequences. A
process that ended successfully can be the cause, if another one reports that it still waits for it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from ..._base.error_texts import CONNECTION_LOST
from .events import Exited, Lost, Reported, describe_exit, exit_code

_SHOWN = 20
"""The maximum number of lines of standard error in a report."""
_PEER = 77  # the exit code of a process that was ended because another one failed


@dataclass(frozen=True)
class Failure:
    """The first failure of an attempt.

    Attributes:
        who: The process and its host.
        how: How it ended, as a clause.
        words: The last lines of its standard error.
        code: The exit code that the launcher ends with.
        outside: Whether something outside the program ended it.
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
        """Return the report with only the last lines."""
        return self._with_lines(4)

    def _with_lines(self, most: int) -> str:
        last = self.words.rstrip().splitlines()[-most:]
        return f"{self.who} failed first: {self.how}" + "".join(f"\n    {line}" for line in last)

    @property
    def line(self) -> str:
        """Return it in one line that is the same for equal failures of several attempts."""
        last = self.words.strip().splitlines()[-1:] or [""]
        return f"{self.how}: {last[0]}"


Evidence = Exited | Reported | Lost

FOLLOWS = 2
"""The rank of consequences of another failure."""


def first_failure(evidence: list[Evidence], paused: Mapping[int, str] | None = None) -> Failure:
    """Return the cause of the events, given in order of arrival.

    Args:
        evidence: The events.
        paused: The processes that a signal has stopped, and their hosts: if others give up, they
            waited for these.
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
    """Return whether an event is not just a consequence of another failure."""
    return any(rank(cause) < FOLLOWS for cause in causes(evidence))


def causes(evidence: list[Evidence]) -> list[Evidence]:
    """Return the evidence without the exits of processes that reported their reason."""
    reported = {
        (report.process, report.code) for report in evidence if isinstance(report, Reported)
    }
    return [e for e in evidence if not (isinstance(e, Exited) and (e.process, e.code) in reported)]


def rank(event: Evidence) -> int:
    """Return the distance from the cause: 0 is the cause, `FOLLOWS` or more a consequence."""
    if isinstance(event, Lost):
        return 1
    if isinstance(event, Reported):
        broken = any(phrase in event.words for phrase in CONNECTION_LOST)
        return 1 if event.left else 3 if event.peer else FOLLOWS if broken else 0
    if event.code == -signal.SIGABRT:
        return FOLLOWS
    return 3 if event.code == _PEER else 0
