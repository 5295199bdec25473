"""Runs in processes of their own, forked from one that has imported everything.

Forking is safe as long as no device of JAX has been started: until then there are no threads. So
the campaign itself computes nothing, and a child costs a start of the devices and a compilation
instead of seconds of imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from . import work


@dataclass
class Child:
    """A run under way, and where it says what it does."""

    number: int
    said: Path
    result: Path
    notices: int
    begun: float

    def await_notice(self, phase: str, seconds: float = 60.0) -> bool:
        """Wait until it says that it is in a phase; False if it ended before."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self.notices], [], [], left):
            found = os.read(self.notices, 4096)
            if phase.encode() in found:
                return True
            if not found:
                break
        return False

    def kill(self, signum: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.number, signum)

    def wait(self, seconds: float = 300.0) -> int:
        """Its return code, negative for the signal that killed it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found, status = os.waitpid(self.number, os.WNOHANG)
            if found:
                os.close(self.notices)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        self.kill()
        os.waitpid(self.number, 0)
        raise TimeoutError(f"no end after {seconds} s:\n{self.said.read_text()}")

    def bits(self) -> str | None:
        """What it came to, or None if it did not get there."""
        return json.loads(self.result.read_text())["bits"] if self.result.exists() else None


def keep_no_more() -> None:
    """From here on what is kept is read only: a kill must not leave half a file there."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)


def start(kind: str, folder: Path, devices: int, pause: float, **options: Any) -> Child:
    """Fork a run of a kind."""
    said, result = folder.with_suffix(".said"), folder.with_suffix(".result")
    result.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    number = os.fork()
    if number:
        os.close(writing)
        return Child(number, said, result, reading, time.monotonic())
    code = 1
    try:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        os.environ["JAX_PLATFORMS"] = "cpu"
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(reading)
        # A campaign in the background of a shell ignores SIGINT, and so would its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work.notice = lambda phase: os.write(writing, f"{phase}\n".encode()) and None
        found = work.run(kind, folder, pause, **options)
        result.write_text(json.dumps(found))
        code = 0
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
