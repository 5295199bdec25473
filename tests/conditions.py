"""Run the tests as other machines would: busy, with one core, slow, as an ordinary user.

    python -m tests.conditions busy            # beside four processes that compute all the time
    python -m tests.conditions one-core        # on one core
    python -m tests.conditions slow            # at a third of the speed: a quota of the processor
    python -m tests.conditions user            # as an ordinary user
    python -m tests.conditions odd             # a path with spaces, no HOME, a small /tmp, Turkish
    python -m tests.conditions repeat --times 50    # every test that starts a process or a timer
    python -m tests.conditions busy -- tests/hosts -x    # any arguments of pytest after --

Each works in a copy of the checkout and ends with the exit status of pytest. `slow` needs root and
cgroups (it says so where it lacks them); `user` needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "site", "dist", ".fuzz")
MARKS = "not cluster and not second and not rare"

STARTS = re.compile(
    r"subprocess|apart\.|multiprocessing|threading|signal\.|time\.sleep|monotonic|launch\(|"
    r"Judge\(|Limits\(|ThreadPool|forkserver|socket|Workshop|watch"
)
"""What a file has that starts a process, a timer or a limit."""


def starting() -> list[str]:
    """Return the files of tests that start a process, a timer or a limit."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(file.relative_to(ROOT))
        for file in files
        if STARTS.search(file.read_text(encoding="utf-8"))
    ]


def pytest_command(args: list[str], workers: int) -> list[str]:
    """Return the command of `make test`."""
    command = [sys.executable, "-m", "pytest", "-m", MARKS]
    if workers:
        command += ["-n", str(workers), "--dist", "worksteal"]
    return [*command, *args]


@contextlib.contextmanager
def copied(name: str = "checkout", user: str | None = None) -> Iterator[Path]:
    """Make a copy of the checkout, so that nothing is left in this one."""
    with tempfile.TemporaryDirectory(prefix="shardwise-conditions-") as folder:
        copy = Path(folder) / name
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        if user is not None:
            os.chmod(folder, 0o755)
            subprocess.run(["chown", "-R", user, copy], check=True)
        yield copy


def environment(copy: Path, **changed: str | None) -> dict[str, str]:
    """Return the variables of a run in a copy; None takes one away."""
    found = {**os.environ, "PYTHONPATH": str(copy), **changed}
    return {name: value for name, value in found.items() if value is not None}


def busy(args: list[str]) -> int:
    """Run beside four processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with copied() as copy:
            return subprocess.call(pytest_command(args, 3), cwd=copy, env=environment(copy))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def one_core(args: list[str]) -> int:
    """Run on one core."""
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "--cpu-list", str(core), *pytest_command(args, 2)]
    with copied() as copy:
        return subprocess.call(command, cwd=copy, env=environment(copy))


CGROUP = Path("/sys/fs/cgroup/shardwise-slow")


def slow(args: list[str]) -> int:
    """Run with a third of the time of all cores."""
    period = 100_000
    quota = period * len(os.sched_getaffinity(0)) // 3
    try:
        CGROUP.mkdir(exist_ok=True)
        (CGROUP / "cpu.max").write_text(f"{quota} {period}")
    except OSError as error:
        raise SystemExit(
            f"A quota of the processor cannot be set: {error}\n"
            "It needs root and cgroups (version 2) with the controller cpu: "
            "echo +cpu > /sys/fs/cgroup/cgroup.subtree_control"
        ) from None
    enter = f'echo $$ > {CGROUP}/cgroup.procs && exec "$@"'
    try:
        with copied() as copy:
            command = ["sh", "-c", enter, "sh", *pytest_command(args, 3)]
            return subprocess.call(command, cwd=copy, env=environment(copy))
    finally:
        with contextlib.suppress(OSError):
            CGROUP.rmdir()


def user(args: list[str]) -> int:
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
        return subprocess.call(
            pytest_command(args, 3),
            cwd=copy,
            env=environment(copy, HOME=str(home), USER=who.pw_name, LOGNAME=who.pw_name),
            **identity,
        )


def odd(args: list[str]) -> int:
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
        env = environment(copy, LC_ALL="tr_TR.UTF-8", LANG="tr_TR.UTF-8", **changed)
        return subprocess.call(pytest_command(args, 3), cwd=copy, env=env)


def repeat(args: list[str], times: int) -> int:
    """Run every file that starts a process, a timer or a limit many times; report failures."""
    files = args or starting()
    print(f"{len(files)} files, {times} times", flush=True)
    failed: dict[str, int] = {}
    began = time.monotonic()
    with copied() as copy:
        for number in range(times):
            done = subprocess.run(
                pytest_command(["-q", "--tb=short", "-rf", *files], 2),
                cwd=copy,
                env=environment(copy),
                capture_output=True,
                text=True,
            )
            for name in re.findall(r"^FAILED (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE):
                failed[name] = failed.get(name, 0) + 1
            if done.returncode not in (0, 1) or (done.returncode and not failed):
                print(done.stdout[-3000:], done.stderr[-3000:])
                return done.returncode
            last = done.stdout.strip().splitlines()[-1]
            print(f"{number + 1}: {last} ({time.monotonic() - began:.0f} s in all)", flush=True)
    for name, count in sorted(failed.items(), key=lambda each: -each[1]):
        print(f"failed {count} of {times} times: {name}")
    return bool(failed)


CONDITIONS = {"busy": busy, "one-core": one_core, "slow": slow, "user": user, "odd": odd}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("condition", choices=[*CONDITIONS, "repeat"])
    parser.add_argument("--times", type=int, default=50, help="of repeat (50)")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    asked = parser.parse_args()
    if asked.condition == "repeat":
        sys.exit(repeat(asked.pytest, asked.times))
    sys.exit(CONDITIONS[asked.condition](asked.pytest))


if __name__ == "__main__":
    main()
