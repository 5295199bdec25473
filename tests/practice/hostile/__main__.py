"""Judge the whole list as a class would be judged, and say what got through.

A class folder is made with a hostile file for each attack, and an honest one after every tenth.
Nothing may be right but the honest files, nothing may print ESCAPED, nothing may be written
outside, the listening port hears nobody, no process is left, and every file has its row.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from shardwise._cli import app, marking
from shardwise._practice.exercise import OWN, find, load_all
from shardwise._practice.sandbox.walls import ALL

from .attacks import FILES, LIMITS, NETWORK, PROCESSES, WRITES
from .forging import FORGED, SOURCES, TERMINAL
from .inside import MEMORY, PROGRAMS, PYTHON

CLASSES = {
    "files": FILES,
    "writes": WRITES,
    "processes": PROCESSES,
    "network": NETWORK,
    "limits": LIMITS,
    "forging": FORGED,
    "terminal": TERMINAL,
    "sources": SOURCES,
    "memory": MEMORY,
    "python": PYTHON,
    "programs": PROGRAMS,
}
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
            if count % 10 == 0:
                honest += 1
                (world.room / f"{kind}: honest {honest}").mkdir()
                (world.room / f"{kind}: honest {honest}" / FILE).write_text(solution)
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


def marks(room: Path, without: list[str], seconds: float) -> list[dict[str, Any]]:
    """Return the rows of the command that a teacher types."""
    marking.walls = lambda unsafe: tuple(without)
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
    world: World, chosen: list[str], without: list[str], seconds: float
) -> tuple[str, list[str]]:
    """Judge a class by the command that a teacher types; return a summary and what went wrong."""
    count, honest = build(world, chosen, os.getpid())
    files = [
        one for _, below, names in os.walk(world.room) for one in (*below, *names) if one == FILE
    ]
    tempfile.tempdir = str(world.out.parent / "temporary")
    os.mkdir(tempfile.tempdir)
    began = time.monotonic()
    rows = marks(world.room, without, seconds)
    time.sleep(0.5)
    right = [row for row in rows if "honest" in row["who"] and row["status"] == "right"]
    failures = [
        f"{row['who']}: {one}" for row in rows if "honest" not in row["who"] for one in faults(row)
    ]
    if len(right) != honest:
        failures.append(f"{len(right)} of {honest} honest files are right")
    if len(rows) != len(files):
        failures.append(f"{len(rows)} rows for {len(files)} files")
    if world.state() != world.before:
        failures.append(f"changed outside: {set(world.state()) ^ set(world.before)}")
    failures += [f"heard: {one!r}" for one in world.heard]
    failures += [f"left behind: process {pid}" for pid in nurseries(tempfile.tempdir)]
    summary = (
        f"{len(rows) - honest} hostile and {honest} honest files, {count} of them attacks; "
        f"without {', '.join(without) or 'nothing'}, as uid {os.getuid()}; "
        f"{time.monotonic() - began:.0f} s"
    )
    return summary, failures


def main() -> None:
    """Run it all, or the classes named."""
    known = [*CLASSES, "tricks"]
    parser = argparse.ArgumentParser(prog="python -m tests.practice.hostile", description=__doc__)
    parser.add_argument("classes", nargs="*", help=f"by default all: {', '.join(known)}")
    parser.add_argument("--without", default="", help=f"walls to leave out: {', '.join(ALL)}")
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    os.environ["CANARY_SECRET"] = CANARY
    with tempfile.TemporaryDirectory() as place:
        world = World(Path(place))
        without = [one for one in options.without.split(",") if one]
        summary, failures = judge_class(world, options.classes or known, without, options.seconds)
        world.close()
    print(summary)
    print("\n".join(failures) or "nothing got through")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
