"""The exit codes of all commands."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The exit codes: 0 and 1 are answers, 2 and 3 mean that there is none.

    A command that was ended by a signal exits with 128 + its number, as in a shell: 130 for
    Ctrl-C, 143 for SIGTERM, 141 for a closed pipe, such as `| head -1`.
    """

    OK = 0
    WRONG = 1
    NOT_RUN = 2
    UNKNOWN = 3
    INTERRUPTED = 130
    NOT_READ = 141
