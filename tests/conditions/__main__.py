"""Run the tests as other machines would: busy, with one core, slow, as an ordinary user.

    python -m tests.conditions busy            # beside four processes that compute all the time
    python -m tests.conditions one-core        # on one core
    python -m tests.conditions slow            # at a third of the speed
    python -m tests.conditions user            # as an ordinary user (needs root)
    python -m tests.conditions odd             # a path with spaces, no HOME, a small /tmp, Turkish
    python -m tests.conditions busy --part 1/2 --minutes 8    # the first half, for 8 minutes
    python -m tests.conditions busy -- tests/hosts -x         # any arguments of pytest after --
    python -m tests.conditions repeat --times 50 --jobs 8     # all that starts a process or a timer

Each works in a copy of the checkout, on the cores that it may use (`taskset` gives it some), and
several can run at once. It ends with the exit status of pytest, and 3 if the time was up: then the
last line says how many tests were not reached. `--record` names a file with a line for every test.
`slow` sets a quota of the processor where root can, and stops the processes two thirds of the time
elsewhere. `repeat` appends to a record, and goes on from it where it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.copies import copy_to, environment

from . import record
from .processes import adopt_orphans, run, third_of_the_time
from .repeat import MARKS, all_files, repeat

TIME_WAS_UP = 3


class Run:
    """One run of the tests in a copy of the checkout."""

    def __init__(self, asked: argparse.Namespace):
        self.args, self.limit, self.part = asked.pytest, 60 * asked.minutes, asked.part
        self.record: Path = asked.record
        self.cores = len(os.sched_getaffinity(0))

    def command(self, workers: int | None = None) -> list[str]:
        """Return the command of `make test`, with a worker for each core."""
        command = [sys.executable, "-m", "pytest", "-m", MARKS, "-p", "tests.conditions.record"]
        command += ["-p", "no:cacheprovider", "--dist", "worksteal"]
        return [*command, "-n", str(workers or max(3, self.cores)), *self.args]

    def tests(self, command: list[str], copy: Path, tick=None, **options) -> int:
        """Run them and report what was not reached; return the exit status."""
        chosen = {record.FILE: str(self.record), record.PART: self.part}
        env = environment(copy, **chosen, **options.pop("changed", {}))
        began = time.monotonic()
        status = run(command, self.limit, tick, cwd=copy, env=env, **options)
        wall, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = list(record.read(self.record))
        outcomes = Counter(line["outcome"] for line in lines if "test" in line)
        selected = max((line.get("selected", 0) for line in lines), default=0)
        summary = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        missing = selected - outcomes.total()
        print(f"{summary}; {missing} of {selected} not reached; part {self.part}", flush=True)
        print(f"{wall:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of the processor", flush=True)
        for name in record.failures(lines):
            print(f"failed: {name}", flush=True)
        return TIME_WAS_UP if status is None else status


@contextlib.contextmanager
def copied(name: str = "checkout", user: str | None = None) -> Iterator[Path]:
    """Make a copy of the checkout, so that nothing is left in this one."""
    with tempfile.TemporaryDirectory(prefix="shardwise-conditions-") as folder:
        copy = copy_to(Path(folder) / name)
        if user is not None:
            os.chmod(folder, 0o755)
            subprocess.run(["chown", "-R", user, copy], check=True)
        yield copy


def busy(asked: Run) -> int:
    """Run beside four processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with copied() as copy:
            return asked.tests(asked.command(), copy)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def one_core(asked: Run) -> int:
    """Run on one core."""
    core = min(os.sched_getaffinity(0))
    with copied() as copy:
        command = ["taskset", "--cpu-list", str(core), *asked.command(workers=2)]
        return asked.tests(command, copy)


def slow(asked: Run) -> int:
    """Run with a third of the time of all cores."""
    with copied() as copy, third_of_the_time(asked.cores) as (prefix, tick):
        return asked.tests([*prefix, *asked.command()], copy, tick)


def user(asked: Run) -> int:
    """Run as an ordinary user."""
    if os.getuid() != 0:
        raise SystemExit("This is an ordinary user already: make test.")
    who = pwd.getpwnam("nobody")
    identity = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import jax"], check=True, cwd="/", **identity)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"{sys.executable} cannot be run by {who.pw_name}: {error}\n"
            "Run this with an environment, and a Python, that every user may read."
        ) from None
    with copied(user=who.pw_name) as copy:
        home = copy / ".home"
        home.mkdir()
        os.chown(home, who.pw_uid, who.pw_gid)
        asked.record.touch()
        os.chown(asked.record, who.pw_uid, who.pw_gid)
        changed = {name: None for name in os.environ if name.startswith("XDG_")}
        changed |= {"HOME": str(home), "USER": who.pw_name, "LOGNAME": who.pw_name}
        return asked.tests(asked.command(), copy, changed=changed, **identity)


def odd(asked: Run) -> int:
    """Run in a path with spaces, with another locale and time zone, no HOME, and a small /tmp."""
    with copied("a check out ü") as copy, contextlib.ExitStack() as stack:
        small = copy / "small tmp"
        small.mkdir()
        if os.getuid() == 0:
            mount = ["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(small)]
            if subprocess.call(mount) == 0:
                stack.callback(subprocess.call, ["umount", "--lazy", str(small)])
        else:
            print("Only root can make a small /tmp: it has the size of the disk.", flush=True)
        changed = {"HOME": None, "TMPDIR": str(small), "TZ": "Asia/Kathmandu"}
        changed |= {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}
        return asked.tests(asked.command(), copy, changed=changed)


CONDITIONS: dict[str, Callable[[Run], int]] = {
    "busy": busy,
    "one-core": one_core,
    "slow": slow,
    "user": user,
    "odd": odd,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("condition", choices=[*CONDITIONS, "repeat"])
    parser.add_argument("--minutes", type=float, default=240, help="then it is interrupted (240)")
    parser.add_argument("--part", default="1/1", help="2/3: the second of three parts")
    parser.add_argument("--record", type=Path, help="a line for every test that ran")
    parser.add_argument("--times", type=int, default=50, help="of repeat (50)")
    parser.add_argument("--jobs", type=int, default=2, help="of repeat: processes at once (2)")
    args = sys.argv[1:]
    end = args.index("--") if "--" in args else len(args)
    asked = parser.parse_args(args[:end])
    asked.pytest = args[end + 1 :]
    if asked.condition == "repeat":
        journal = asked.record or Path("repeated.jsonl")
        files = asked.pytest or all_files()
        sys.exit(not repeat(files, asked.times, asked.jobs, 60 * asked.minutes, journal))
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        asked.record = (asked.record or Path(folder) / "record.jsonl").absolute()
        asked.record.unlink(missing_ok=True)
        sys.exit(CONDITIONS[asked.condition](Run(asked)))


if __name__ == "__main__":
    main()
