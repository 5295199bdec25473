"""Judge the whole list as a class would be judged, in every condition, and print a table.

A class folder is made with a hostile file for each attack, and an honest one after every tenth.
Nothing may be right but the honest files, nothing may print ESCAPED, nothing may be written
outside, the listening port hears nobody, no process is left, no run goes on past its limits, and
every file has its row. The conditions are root and an ordinary user; with namespaces made by the
kernel's own calls, with those of bubblewrap, and with Landlock and seccomp alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from shardwise._cli import app, marking
from shardwise._practice.exercise import OWN, find, load_all
from shardwise._practice.sandbox.host import Sandbox

from .attacks import FILES, LIMITS, NETWORK, PROCESSES, WRITES
from .corners import DESCRIPTORS, ENCODINGS, LEFTOVERS, OBJECTS, SCREEN
from .forging import FORGED, SOURCES, TERMINAL
from .inside import MEMORY, PROGRAMS, PYTHON

CLASSES = {
    "files": FILES,
    "writes": WRITES,
    "processes": PROCESSES,
    "network": NETWORK,
    "limits": LIMITS,
    "forging": FORGED,
    "terminal": {**TERMINAL, **SCREEN},
    "sources": {**SOURCES, **ENCODINGS},
    "descriptors": DESCRIPTORS,
    "leftovers": LEFTOVERS,
    "objects": OBJECTS,
    "memory": MEMORY,
    "python": PYTHON,
    "programs": PROGRAMS,
}
KINDS = (*CLASSES, "tricks")
WITHOUT = {
    "namespaces": ("bubblewrap",),
    "bubblewrap": ("unshare",),
    "Landlock": ("unshare", "bubblewrap"),
}
"""The ways to wall a solution off, by what is left out of the walls."""

ORDINARY = 65534
"""The user that root becomes to judge as an ordinary user."""

CANARY = "CANARY-7c1f"
FILE = "01_shard_map_psum.py"


class World:
    """What is outside: a folder, a secret, a classmate, a port that listens."""

    def __init__(self, root: Path):
        self.out, self.room = root / "out", root / "class"
        self.out.mkdir(parents=True)
        self.room.mkdir()
        self.secret = self.out / "secret"
        self.secret.write_text(CANARY)
        self.heard: list[bytes] = []
        self.listening = [socket.socket(), socket.socket(socket.AF_UNIX)]
        self.listening[0].bind(("127.0.0.1", 0))
        self.listening[1].bind(str(self.out / "socket"))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.listening[0].getsockname()[1]))
        for one in self.listening:
            one.listen()
            threading.Thread(target=self._accept, args=(one,), daemon=True).start()
        threading.Thread(target=self._receive, daemon=True).start()
        self.before = self.state()

    def _accept(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                one.accept()
                self.heard.append(b"a connection")

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.heard.append(self.udp.recv(100))

    def state(self) -> list[tuple[str, int, int, int, bytes]]:
        """Return all that could be changed outside."""
        found = []
        for path in sorted(self.out.rglob("*")):
            s = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found.append((str(path), s.st_mode, s.st_uid, s.st_mtime_ns, data))
        return found

    def filled(self, source: str, judge: int) -> str:
        """Return a source with the places that it is after."""
        for name, value in (
            ("@OUT@", self.out),
            ("@SECRET@", self.secret),
            ("@SOL@", OWN / "01_shard_map_psum" / "solution.py"),
            ("@EX@", OWN),
            ("@MATE@", self.room / "honest" / FILE),
            ("@JUDGE@", judge),
            ("@PORT@", self.listening[0].getsockname()[1]),
        ):
            source = source.replace(name, str(value))
        return source

    def close(self) -> None:
        """Stop listening; delete the class, which may have folders too deep for Python."""
        subprocess.run(["rm", "-rf", "--", str(self.room)], check=True)
        for one in (*self.listening, self.udp):
            one.close()


def tricks(room: Path, honest: Path) -> None:
    """Put files that are none into a class folder."""

    def place(name: str) -> Path:
        folder = room / name
        folder.mkdir()
        return folder / FILE

    os.mkfifo(place("tricks: a pipe"))
    place("tricks: a link to a classmate").symlink_to(honest)
    place("tricks: a link to zeros").symlink_to("/dev/zero")
    place("tricks: a link to passwords").symlink_to("/etc/passwd")
    circle = place("tricks: a circle")
    circle.symlink_to(circle)
    place("tricks: a dangling link").symlink_to("nowhere")
    place("tricks: a folder").mkdir()
    with open(place("tricks: a file of a terabyte"), "wb") as file, contextlib.suppress(OSError):
        file.truncate(1 << 40)
    (room / "tricks: a linked folder").symlink_to(honest.parent)
    made = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        made.bind(str(place("tricks: a socket")))
    closed = place("tricks: a closed file")
    closed.write_text("def shard_map_psum(x): return 0\n")
    closed.chmod(0)
    os.link(honest.parent / "linked", place("tricks: a hard link"))
    with contextlib.suppress(PermissionError):
        os.mknod(place("tricks: a device"), stat.S_IFCHR | 0o600, os.makedev(1, 5))
    deep = os.open(place("tricks: a deep folder").parent, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deep)
        above, deep = deep, os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(above)
    os.close(deep)
    for name in (
        "tricks: -rf",
        "tricks: \x1b[2J\x1b[H right",
        "tricks: two\nlines",
        "tricks: \udcff",
        "tricks: =1+1",
    ):
        place(name).write_text("def shard_map_psum(x): return 0\n")


def build(world: World, chosen: list[str], judge: int) -> tuple[int, int]:
    """Write the class; return how many hostile files and how many honest ones there are."""
    solution = find(load_all(), "shard_map_psum").solution
    count = honest = 0
    (world.room / "honest").mkdir()
    (world.room / "honest" / FILE).write_text(solution)
    for kind in chosen:
        for name, source in CLASSES.get(kind, {}).items():
            folder = world.room / f"{kind}: {name}"
            folder.mkdir()
            if isinstance(source, str):
                source = world.filled(source, judge).encode("utf-8", "surrogatepass")
            (folder / FILE).write_bytes(source)
            count += 1
            if count % 10 == 0 or kind == "leftovers":
                honest += 1
                after = world.room / f"{kind}: {name}, then honest"
                after.mkdir()
                (after / FILE).write_text(solution)
    if "tricks" in chosen:
        (world.room / "honest" / "linked").write_text("def shard_map_psum(x): return 0\n")
        tricks(world.room, world.room / "honest" / FILE)
    # A byte-order mark is no mistake.
    (world.room / "honest with a mark").mkdir()
    (world.room / "honest with a mark" / FILE).write_bytes(b"\xef\xbb\xbf" + solution.encode())
    return count, honest + 2


def nurseries(place: str) -> set[str]:
    """Return the processes that run solutions for a judge whose files are in a place."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if place.encode() in path.read_bytes():
                found.add(path.parent.name)
    return found


def marks(room: Path, without: tuple[str, ...], seconds: float) -> list[dict[str, Any]]:
    """Return the rows of the command that a teacher types."""
    marking.walls = lambda unsafe: without
    words = ["practice", "judge", "--all", str(room), "--format", "json"]
    found = CliRunner().invoke(app, [*words, "--seconds", str(seconds)])
    if found.exit_code > 1 or not isinstance(found.exception, SystemExit | type(None)):
        traceback.print_exception(found.exception)
        sys.exit(f"the judge ended with {found.exit_code}: {found.stderr}")
    return json.loads(found.stdout)


def texts(data: Any) -> Iterator[str]:
    """Yield every text in a row."""
    if isinstance(data, dict):
        yield from (text for pair in data.items() for one in pair for text in texts(one))
    elif isinstance(data, list):
        yield from (text for one in data for text in texts(one))
    elif isinstance(data, str):
        yield data


def faults(row: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the row of a hostile file."""
    reason = row["reason"] or row["pitfall"]
    if row["status"] == "right":
        yield "passed"
    if not reason:
        yield "no reason"
    if "judge failed" in row["reason"]:
        yield row["reason"]
    if "ESCAPED" in row["printed"]:
        yield f"escaped: {row['printed'][:300]}"
    for text in texts(row):
        if not all(c.isprintable() or c in "\n\t" for c in text):
            yield f"control characters: {text!r}"
        if CANARY in text:
            yield "a secret"


def judge_class(
    world: World, chosen: list[str], without: tuple[str, ...], seconds: float
) -> tuple[Counter[str], list[str]]:
    """Judge a class by the command that a teacher types.

    Returns how many hostile files of each kind there were, and what went wrong.
    """
    _, honest = build(world, chosen, os.getpid())
    folders = [one.path for one in os.scandir(world.room) if one.is_dir(follow_symlinks=False)]
    files = sum(FILE in os.listdir(one) for one in folders)
    tempfile.tempdir = str(world.out.parent / "temporary")
    os.mkdir(tempfile.tempdir)
    rows = marks(world.room, without, seconds)
    time.sleep(0.5)
    hostile = [row for row in rows if "honest" not in row["who"]]
    right = [row for row in rows if "honest" in row["who"] and row["status"] == "right"]
    failures = [f"{row['who']}: {one}" for row in hostile for one in faults(row)]
    failures += [
        f"{row['who']}: took {row['seconds']:.0f} s"
        for row in hostile
        if row["seconds"] > PATIENCE * seconds
    ]
    if len(right) != honest:
        wrong = {row["who"] for row in rows if "honest" in row["who"]} - {r["who"] for r in right}
        failures.append(f"{len(right)} of {honest} honest files are right, not {sorted(wrong)}")
    if len(rows) != files:
        failures.append(f"{len(rows)} rows for {files} files")
    if world.state() != world.before:
        failures.append(f"changed outside: {set(world.state()) ^ set(world.before)}")
    failures += [f"heard: {one!r}" for one in world.heard]
    failures += [f"left behind: process {pid}" for pid in nurseries(tempfile.tempdir)]
    return Counter(row["who"].split(":")[0] for row in hostile), failures


PATIENCE = 8
"""A file is run at most in four processes after one another, looked at, and confirmed."""


def judge_here(chosen: list[str], way: str, seconds: float) -> dict[str, Any]:
    """Judge in this process and this condition; return what the table needs."""
    os.environ["CANARY_SECRET"] = CANARY
    with Sandbox(without=WITHOUT[way]) as sandbox:
        warning = sandbox.warning()
        if warning or (sandbox.walls.namespaces or "Landlock") not in (way, "unshare"):
            return {"skipped": f"not possible here: {warning or sandbox.walls}"}
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as place,
        contextlib.closing(World(Path(place))) as world,
    ):
        counts, failures = judge_class(world, chosen, WITHOUT[way], seconds)
    return {"counts": counts, "failures": failures, "seconds": time.monotonic() - began}


def judge_as(user: str, way: str, chosen: list[str], seconds: float) -> dict[str, Any]:
    """Judge in a process of its own, as root or as an ordinary user."""
    command = [sys.executable, "-m", "tests.practice.hostile", *chosen]
    command += ["--here", way, "--seconds", str(seconds)]
    options: dict[str, Any] = {}
    if user == "root" and os.getuid():
        return {"skipped": "run the command as root for this one"}
    if user != "root" and not os.getuid():
        options = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        environment = {**os.environ, "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, **options
            )
        except PermissionError as error:
            return {"skipped": f"an ordinary user cannot run this Python: {error}"}
    if done.returncode:
        return {"skipped": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, dict[str, Any]], chosen: list[str]) -> str:
    """Return how many attacks of each class were stopped in each condition."""
    there = {name: one for name, one in found.items() if "counts" in one}
    lines = [["class", *there], ["---", *("---:" for _ in there)]]
    for kind in chosen:
        cells = []
        for one in there.values():
            through = {text.split(": ")[1] for text in one["failures"] if text.startswith(kind)}
            count = one["counts"].get(kind, 0)
            cells.append(f"{count - len(through)} of {count}")
        lines.append([kind, *cells])
    lines.append(["seconds", *(f"{one['seconds']:.0f}" for one in there.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Judge all classes in all conditions, or those named."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.practice.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("classes", nargs="*", help=f"by default all: {', '.join(KINDS)}")
    parser.add_argument("--users", nargs="+", default=["root", "user"], choices=["root", "user"])
    parser.add_argument("--walls", nargs="+", default=list(WITHOUT), choices=list(WITHOUT))
    parser.add_argument("--seconds", type=float, default=15, help="for one run of a solution")
    parser.add_argument("--jobs", type=int, default=1, help="conditions at a time")
    parser.add_argument("--here", choices=list(WITHOUT), help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = options.classes or list(KINDS)
    if options.here:
        print(json.dumps(judge_here(chosen, options.here, options.seconds)))
        return
    asked = [(user, way) for user in options.users for way in options.walls]
    found: dict[str, dict[str, Any]] = {}

    def judge(condition: tuple[str, str]) -> None:
        one = judge_as(*condition, chosen, options.seconds)
        found[", ".join(condition)] = one
        print(table({", ".join(condition): one}, chosen), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(judge, asked))
    found = {", ".join(condition): found[", ".join(condition)] for condition in asked}
    print(table(found, chosen))
    for name, one in found.items():
        for text in one.get("failures", [one.get("skipped")]):
            print(f"{name}: {text}")
    through = [text for one in found.values() for text in one.get("failures", ())]
    ran = sum("counts" in one for one in found.values())
    print(f"{len(through)} things got through; {ran} of {len(found)} conditions were possible here")
    sys.exit(bool(through) or ran < len(found))


if __name__ == "__main__":
    main()
