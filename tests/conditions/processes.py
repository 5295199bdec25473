"""The processes that a run starts: found, stopped part of the time, ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PERIOD = 0.06
"""Seconds of which a process runs a third."""

STOPPED = "T"


def adopt_orphans() -> None:
    """Become the parent of whatever a child leaves behind, so that it can be found."""
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(root: int) -> dict[int, str]:
    """Return the children of a process, theirs, and so on, each with its state."""
    states, children = {}, {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
                state, parent = text.rpartition(") ")[2].split()[:2]
                states[int(entry.name)] = state
                children.setdefault(int(parent), []).append(int(entry.name))
    found, left = {}, [root]
    while left:
        for pid in children.get(left.pop(), ()):
            found[pid] = states[pid]
            left.append(pid)
    return found


def send(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_all(root: int) -> None:
    """Kill what is left of the descendants of a process."""
    while left := [pid for pid, state in descendants(root).items() if state != "Z"]:
        send(left, signal.SIGKILL)
        time.sleep(0.01)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class DutyCycle:
    """Lets the descendants of a process run a third of the time: all stop, all go on."""

    def __init__(self, root: int):
        self.root, self.stopped = root, ()

    def stop(self) -> None:
        """Stop all that run; those which a test has stopped are not ours to let go on."""
        found = descendants(self.root)
        self.stopped = [pid for pid, state in found.items() if state not in (STOPPED, "Z")]
        send(self.stopped, signal.SIGSTOP)

    def go_on(self) -> None:
        send(self.stopped, signal.SIGCONT)
        self.stopped = ()

    def tick(self) -> None:
        """One period."""
        began = time.monotonic()
        self.stop()
        time.sleep(max(0.0, began + PERIOD * 2 / 3 - time.monotonic()))
        self.go_on()
        time.sleep(PERIOD / 3)


QUOTAS = (
    (Path("/sys/fs/cgroup"), "cpu.max", "{quota} {period}"),
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "{quota}"),
    (Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu.cfs_quota_us", "{quota}"),
)
"""Where a quota of the processor is set, in version 2 of cgroups and in version 1."""


@contextlib.contextmanager
def third_of_the_time(cores: int) -> Iterator[tuple[list[str], Callable[[], None] | None]]:
    """Yield what to put before a command, so that it has a third of the time of these cores.

    A quota, where root can set one. Elsewhere, a function to call again and again, which stops
    the processes two thirds of the time: the same share, in coarser slices.
    """
    period = 100_000
    for folder, file, text in QUOTAS:
        group = folder / f"shardwise-slow-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / "cgroup.procs").exists():  # version 1 has its groups in other folders
                continue
            try:
                (group / file).write_text(text.format(quota=period * cores // 3, period=period))
            except OSError:
                continue
            print(f"A third of the time of {cores} cores: the quota {group / file}.", flush=True)
            yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"], None
            return
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    print(
        "No quota of the processor can be set here (it needs root, and cgroups that can be written "
        "to): all processes of the tests are stopped for two thirds of every "
        f"{PERIOD * 1000:.0f} ms instead.",
        flush=True,
    )
    yield [], DutyCycle(os.getpid()).tick


def run(
    command: Sequence[str], limit: float, tick: Callable[[], None] | None = None, **options
) -> int | None:
    """Run a command; after `limit` seconds interrupt it as Ctrl-C does, and return None."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    ends, interrupted = time.monotonic() + limit, False
    try:
        while process.poll() is None:
            if time.monotonic() > ends:
                if interrupted:
                    break
                # pytest sums up what it did: give it a minute.
                interrupted, ends = True, time.monotonic() + 60
                process.send_signal(signal.SIGINT)
            tick() if tick else time.sleep(0.2)
    finally:
        end_all(os.getpid())
    return None if interrupted else process.wait()
