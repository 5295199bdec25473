"""A training over three hosts, and what is done to it: kill, stop, cut, slow down, fill up.

    python -m tests.clusters.faults --faults 100        as root: namespaces stand for hosts
    python -m tests.clusters.faults --local --jobs 5    three launchers on this machine; without
                                                        root; kills and stops only

After every fault: how long until it was noticed, how long until the training was running again. At
the end of every training: the bits of one without faults, and a log without a gap. Network
namespaces stand for hosts (`network.py`); a small file system of its own is the shared folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .jobs import JOBS, environment
from .network import Network

PORT = 9400
HOSTS = 3
HEARTBEAT = 10.0
AGAIN = r"^\[0\] (fit: resumes from step|final)"
SURVIVED = {"link down 2 s", "slow link 50 ms for 8 s", "stopped 3 s"}


class Local:
    """This machine in place of the hosts."""

    def address(self, k: int) -> str:
        return "127.0.0.1"

    def command(self, k: int, *command: str) -> list[str]:
        return [*command]


class Training:
    """One training on all hosts: a launcher on each, their output as lines with a time."""

    def __init__(self, network: Any, folder: Path, steps: int, port: int) -> None:
        self._network, self._folder, self._steps, self._port = network, folder, steps, port
        self.lines: list[tuple[float, str]] = []
        self.launchers: list[subprocess.Popen[str]] = []
        for k in range(HOSTS):
            self.launchers.append(self._start(k))

    def _start(self, k: int) -> subprocess.Popen[str]:
        where = f"{self._network.address(0)}:{self._port}"
        launch = [sys.executable, "-c", "from shardwise._cli import main; main()", "launch",
                  "--nodes", str(HOSTS), "--node", str(k), "--coordinator", where,
                  "--devices", "1", "--restarts", "1000", "--timeout", "120",
                  str(JOBS / "fitting.py"), str(self._folder), str(self._steps)]  # fmt: skip
        process = subprocess.Popen(
            self._network.command(k, *launch), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=environment(PAUSE="0.05", EVERY="20"),
        )  # fmt: skip
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append((time.monotonic(), line))

    def restart(self, k: int) -> None:
        """Start a launcher again, as a supervisor of the host would."""
        self.launchers[k].wait()
        self.launchers[k] = self._start(k)

    def worker(self, k: int) -> int | None:
        """The process of a host, if it runs."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (entry / "cmdline").read_bytes()
                except (OSError, ValueError):
                    continue
                if parent == self.launchers[k].pid and b"shardwise._runtime.launch" in command:
                    return int(entry.name)
        return None

    def seen(self, pattern: str, since: float) -> float | None:
        """When a line with this pattern came, after a moment."""
        for when, line in list(self.lines):
            if when >= since and re.search(pattern, line):
                return when
        return None

    def rows(self) -> int:
        """Rows in the log so far."""
        try:
            return len((self._folder / "checkpoints" / "log.jsonl").read_bytes().splitlines())
        except OSError:
            return 0

    @property
    def finished(self) -> bool:
        return all(process.poll() is not None for process in self.launchers)

    def end(self) -> None:
        for process in self.launchers:
            if process.poll() is None:
                process.kill()
            process.wait()


def inflict(kind: str, training: Training, network: Any, disk: Path, dice: random.Random) -> bool:
    """Do one fault; False if there was nothing to do it to."""
    k = 0 if "first" in kind else dice.randrange(HOSTS)
    if "process" in kind or kind.startswith("stopped"):
        worker = training.worker(k)
        if worker is None:
            return False
        if kind.startswith("kill"):
            os.kill(worker, signal.SIGKILL)
        else:
            os.kill(worker, signal.SIGSTOP)
            seconds = 3 if "3 s" in kind else HEARTBEAT + 5
            threading.Timer(seconds, _go_on, [worker]).start()
    elif "launcher" in kind:
        k = 0 if "first" in kind else dice.randrange(1, HOSTS)
        training.launchers[k].kill()
        training.restart(k)
    elif kind.startswith("link down"):
        k = dice.randrange(1, HOSTS)
        network.link(k, up=False)
        threading.Timer(2 if "2 s" in kind else 15, network.link, [k, True]).start()
    elif kind.startswith("slow link"):
        network.slow(0.05)
        threading.Timer(8, network.slow, [0.0]).start()
    else:
        assert kind.startswith("full disk")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:  # nothing left to be written when it closes
            try:
                while True:
                    file.write(b"\0" * (1 << 16))
            except OSError:
                pass
        threading.Timer(8, filler.unlink).start()
    return True


def _go_on(worker: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)


KINDS = [
    "kill -9 of a process",
    "kill -9 of the first process (coordinator)",
    "kill -9 of a launcher",
    "kill -9 of the first launcher",
    "stopped for longer than the heartbeat",
    "stopped 3 s",
    "link down 15 s",
    "link down 2 s",
    "slow link 50 ms for 8 s",
    "full disk for 8 s",
]
WEIGHTS = [6, 4, 3, 2, 1, 1, 1, 2, 1, 1]


def one_training(
    network: Any, disk: Path, number: int, faults: int, steps: int, dice: random.Random,
    table: list[dict], kinds: list[str],
) -> str:  # fmt: skip
    """Train to the end through faults; gives the final bits."""
    folder = disk / f"training-{number}"
    training = Training(network, folder, steps, PORT + number)
    done = 0
    try:
        begun = time.monotonic()
        _until(lambda: training.rows() > 0 or training.finished, 240)
        while not training.finished and time.monotonic() - begun < 1500:
            if done >= faults:
                time.sleep(0.2)
                continue
            time.sleep(dice.uniform(0.5, 3.0))
            kind = dice.choices(kinds, [WEIGHTS[KINDS.index(one)] for one in kinds])[0]
            since, before = time.monotonic(), training.rows()
            if training.finished or not inflict(kind, training, network, disk, dice):
                continue
            done += 1
            table.append(_followed(kind, training, since, before))
            print(json.dumps(table[-1]), flush=True)
        assert training.finished, "it did not end in time"
        text = "".join(line for _, line in training.lines)
        bits = {*re.findall(rf"final \d (\w+) {steps}", text)}
        assert len(bits) == 1, text[-6000:]
        log = (folder / "checkpoints" / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in log] == [*range(1, steps + 1)], "a gap"
        return bits.pop()
    finally:
        training.end()


def _followed(kind: str, training: Training, since: float, before: int) -> dict:
    """Wait until the training has gone on after a fault; how long that took."""
    limit = since + 240
    quick = kind in SURVIVED
    noticed = again = None
    while time.monotonic() < limit and not training.finished:
        if noticed is None:
            noticed = training.seen("failed first|lost machine 0|waiting for machine", since)
        if noticed is not None and again is None:
            again = training.seen(AGAIN, noticed)
        if again is not None and training.rows() > 0:
            break
        if noticed is None and training.rows() > before + 20 and time.monotonic() - since > 10:
            break  # it went on as if nothing had happened
        time.sleep(0.05)
    noticed = noticed or training.seen("failed first|lost machine 0|waiting for machine", since)
    if noticed is not None and again is None:
        again = training.seen(AGAIN, noticed)
    row = {"fault": kind, "noticed": None, "again": None}
    if noticed is not None:
        row["noticed"] = round(noticed - since, 2)
    if again is not None:
        row["again"] = round(again - since, 2)
    row["survived"] = noticed is None
    row["expected"] = not quick or noticed is None
    return row


def _until(true, limit: float) -> None:
    until = time.monotonic() + limit
    while not true():
        assert time.monotonic() < until, "it did not begin in time"
        time.sleep(0.1)


def report(table: list[dict], bits: list[str], wanted: str) -> None:
    """The table, as Markdown."""
    print("\n| fault | times | went on without a restart | noticed, s: median (worst) | "
          "running again, s: median (worst) |\n|---|---|---|---|---|")  # fmt: skip
    for kind in KINDS:
        rows = [row for row in table if row["fault"] == kind]
        if rows:
            survived = sum(row["survived"] for row in rows)
            print(f"| {kind} | {len(rows)} | {survived} | {_spread(rows, 'noticed')} | "
                  f"{_spread(rows, 'again')} |")  # fmt: skip
    same = sum(one == wanted for one in bits)
    print(f"\n{len(table)} faults in {len(bits)} trainings; {same} ended with the bits of the one "
          "without faults, every log without a gap.")  # fmt: skip


def _spread(rows: list[dict], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{statistics.median(values):.1f} ({max(values):.1f})" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--each", type=int, default=10, help="faults in one training")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="begin no training after this")
    parser.add_argument("--only", default="", help="faults with this word in their name")
    parser.add_argument("--local", action="store_true", help="no namespaces")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, with --local")
    given = parser.parse_args()
    known = [kind for kind in KINDS if not given.local or kind.startswith(("kill", "stopped"))]
    kinds = [kind for kind in known if given.only in kind]
    table, bits = [], []
    until = time.monotonic() + 60 * given.minutes
    count = -(-given.faults // given.each)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        network: Any = Local() if given.local else stack.enter_context(Network(HOSTS))
        if not given.local:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], check=True)
            stack.callback(subprocess.run, ["umount", "-l", folder], check=False)
            stack.callback(time.sleep, 16)  # the last timers

        def train(number: int) -> str:
            faults = min(given.each, given.faults - (number - 1) * given.each) if number else 0
            dice = random.Random(f"{given.seed} {number}")
            if number and time.monotonic() > until:
                return ""
            found = one_training(
                network, Path(folder), number, faults, given.steps, dice, table, kinds
            )
            print(f"training {number}:", found, flush=True)
            return found

        wanted = train(0)
        with ThreadPoolExecutor(given.jobs if given.local else 1) as pool:
            done = [pool.submit(train, number) for number in range(1, count + 1)]
        failed = [one.exception() for one in done if one.exception()]
        bits = [one.result() for one in done if not one.exception() and one.result()]
        report(table, bits, wanted)
    for error in failed:
        print("BAD", error)
    if failed or any(one != wanted for one in bits):
        raise SystemExit("other bits, or a training that failed")


if __name__ == "__main__":
    main()
