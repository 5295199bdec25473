"""What the exit codes mean, for every command."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """0 and 1 answer the question that was asked; 2 and 3 say that it could not be answered."""

    OK = 0
    WRONG = 1
    NOT_RUN = 2
    UNKNOWN = 3
