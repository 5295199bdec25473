"""The compiling process, from the caller's side: started once, kept, ended with the caller."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from ..._base.errors import ShardwiseError
from ..._jax import failures

SECONDS = "SHARDWISE_COMPILE_SECONDS"
"""The environment variable with the time limit of one compilation."""

DEFAULT_SECONDS = 900.0

LONGEST = 1e6
"""The most seconds that one wait can take: a system call counts milliseconds in 32 bits."""

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)
"""How native code ends, among other reasons, where an allocation that it does not test fails."""

WIDTH = 300
"""The number of characters of a log line that an error shows."""


class CompileError(ShardwiseError):
    """XLA did not compile a program: it failed, took too long, or ran out of memory."""


class Worker:
    """A compiling process and the connection to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.connection, other = multiprocessing.Pipe()
        # -P: do not import a file of the working directory that has the name of a package.
        command = [
            sys.executable,
            "-P",
            "-c",
            "from shardwise._analysis.compiler.child import main; main()",
            str(other.fileno()),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.errors,
            stderr=self.errors,
            pass_fds=[other.fileno()],
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the caller to handle
        )
        other.close()

    @property
    def alive(self) -> bool:
        """Whether this process can send it a request."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, folder: str, lowered: Any, seconds: float) -> str:
        """Compile a module into a folder, and return the compiler's error, or an empty string."""
        try:
            self.connection.send((folder, lowered))
            if not self.connection.poll(min(LONGEST, seconds)):
                raise _too_slow(seconds)
            return self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._ended(Path(folder, "log")) from None

    def end(self) -> None:
        """End the process and wait for it, so that no process is left behind."""
        if self.owner != os.getpid():
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.connection.close()
        self.errors.close()

    def _ended(self, log: Path) -> CompileError:
        """Return the error for a process that ended, with the last lines of its log."""
        code = self.process.wait()
        self.errors.seek(0)
        text = self.errors.read() + (log.read_bytes() if log.exists() else b"")
        lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
        last_lines = [line[:WIDTH] for line in lines if line and line[0] != "@"][-3:]  # no stack
        if code == -signal.SIGKILL or failures.logs_no_memory("".join(lines)):
            reason = "ended for lack of memory, most likely"
        else:
            crashed = ", perhaps for lack of memory" if -code in CRASHES else ""
            reason = f"ended with {_how(code)}{crashed}"
        return CompileError(
            "\n".join([f"the process that compiles {reason}", *last_lines]),
            where="sw.explain(compile=...)",
            rule="The program is compiled for every device of the mesh in one process.",
            remedy="explain it on a smaller mesh with the same axes, or with compile=False.",
        )


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _too_slow(seconds: float) -> CompileError:
    return CompileError(
        f"the compiler did not finish within {seconds:g} seconds",
        where="sw.explain(compile=...)",
        rule=f"{SECONDS} bounds it; the default is {DEFAULT_SECONDS:g}.",
        remedy="a smaller mesh with the same axes, fewer layers (or a scan over them), "
        f"compile=False, or {SECONDS}={2 * seconds:g}.",
    )


def _environment() -> dict[str, str]:
    """Return the environment for a process without accelerators that can import this package."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept_flags = [flag for flag in flags if not flag.startswith(("--xla_force_host", "--xla_dump"))]
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join([package, *filter(None, sys.path)])
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(kept_flags),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": path,
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }


_lock = threading.Lock()
_kept: list[Worker] = []


@dataclasses.dataclass(frozen=True)
class Files:
    """The output files of the compiler, as text."""

    optimized: str
    """The optimised HLO."""
    propagated: str
    """The HLO of the whole program before partitioning, with the sharding of each operation."""
    memory: str
    """The report of the buffer assignment."""
    log: str
    kind: str = "cpu"
    """The kind of device: `NVIDIA H200`."""


NO_GPU = {
    failures.NO_CUDA_PLUGIN: (
        "JAX has no CUDA plugin here",
        'pip install "jax[cuda13]"; platform="cpu" compiles for virtual CPU devices.',
    ),
    failures.NO_VISIBLE_GPU: (
        "no GPU is visible to this process",
        'a machine with a GPU; platform="h100" compiles for H100s without one.',
    ),
}
"""What a compile for `cuda` fails with where there is no GPU: the reason and the remedy."""


def start() -> None:
    """Start the process if there is none, without waiting until it is ready."""
    with _lock:
        _worker()


def compiled(lowered: Any) -> Files:
    """Compile a module in the process; raise `CompileError` if that fails."""
    seconds = _seconds()
    with _lock, tempfile.TemporaryDirectory(prefix="shardwise-") as folder:
        worker = _worker()
        try:
            error = worker.ask(folder, lowered, seconds)
        except BaseException:  # Ctrl-C too: otherwise the next request would get this answer
            stop()
            raise
        files = _files(Path(folder))
    if not files.optimized:
        raise failed(error, lowered.platform)
    return files


def failed(error: str, platform: str) -> CompileError:
    """Return the error for a program that JAX does not lower, or XLA does not compile."""
    for text, (reason, remedy) in NO_GPU.items():
        if text in error:
            rule = "XLA compiles for the GPU of this machine, or for H100s, with JAX's CUDA plugin."
            where = f'sw.explain(platform="{platform}")'
            return CompileError(reason, where=where, rule=rule, remedy=remedy)
    return CompileError(
        f"XLA does not compile this program: {error}",
        where="sw.explain(compile=...)",
        remedy="compile=False explains it from the trace alone.",
    )


def _files(folder: Path) -> Files:
    return Files(
        _text(folder, "*pu_after_optimizations.txt"),
        _text(folder, "*.before_spmd-partitioning.txt"),
        _text(folder, "*pu_after_optimizations-memory-usage-report.txt"),
        (folder / "log").read_text(errors="replace"),
        _text(folder, "kind"),
    )


def _text(folder: Path, pattern: str) -> str:
    """Return the largest matching file: folded constants produce modules too."""
    files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_size)
    return files[-1].read_text() if files else ""


def _seconds() -> float:
    text = os.environ.get(SECONDS, "")
    try:
        return float(text) if text else DEFAULT_SECONDS
    except ValueError:
        raise CompileError(
            f"it is {text!r}",
            where=SECONDS,
            rule="It is a number of seconds.",
            remedy=f"{SECONDS}=900",
        ) from None


def _worker() -> Worker:
    if _kept and not _kept[0].alive:
        _kept.pop().end()
    if not _kept:
        _end_with_this_process()
        _kept.append(Worker())
    return _kept[0]


@functools.cache
def _end_with_this_process() -> None:
    atexit.register(stop)


def stop() -> None:
    """End the process, if there is one."""
    while _kept:
        _kept.pop().end()
