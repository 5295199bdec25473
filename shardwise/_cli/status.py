"""What the exit codes mean, for every command."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """0 and 1 are answers; 2 and 3 mean that there is none.

    A command that a signal ended has 128 + its number, as in a shell: 130 for Ctrl-C, 143 for
    SIGTERM, 141 for a closed pipe, as behind `| head -1`.
    """

    OK = 0
    WRONG = 1
    NOT_RUN = 2
    UNKNOWN = 3
    INTERRUPTED = 130
    NOT_READ = 141
