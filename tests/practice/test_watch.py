"""Watch mode in a terminal of its own: saved files are judged, keys work, Ctrl-C is polite."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shardwise._practice import compare
from shardwise._practice.exercise import find
from shardwise._practice.folder import Folder
from shardwise._practice.verdict import Judgement, SolutionRun
from shardwise._practice.watch import Screen, Watch
from shardwise._practice.workshop import Workshop

from ..patience import HANGS

START = (
    # A shell's background jobs ignore Ctrl-C, and what they start does too.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from shardwise._cli import main; main()"
)


class Terminal:
    """A command in a terminal of 70 columns."""

    def __init__(self, folder: Path, **environment: str):
        self.master, slave = pty.openpty()
        command = [sys.executable, "-c", START, "practice"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "COLUMNS": "70", "LINES": "40", "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def until(self, words: str) -> str:
        """What has been shown once these words have come."""
        end = time.monotonic() + HANGS
        while words not in self.text:
            assert time.monotonic() < end, self.text
            ready, _, _ = select.select([self.master], [], [], 1.0)
            if ready:
                try:
                    self.text += os.read(self.master, 1 << 16).decode("utf-8", "replace")
                except OSError:
                    break
        assert words in self.text, self.text
        seen, self.text = self.text, ""
        return seen

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def folder(tmp_path):
    made, _ = Folder.start(tmp_path / "here", None)
    return made


@pytest.fixture
def terminal(folder):
    made = Terminal(folder.path, NO_COLOR="1")
    yield made
    made.close()


def test_saving_a_file_shows_the_verdict_and_goes_on(folder, terminal):
    one = find(folder.exercises, "shard_map_psum")
    seen = terminal.until("quit")
    assert "[........................] 0 of 35" in seen
    assert "01 shard_map_psum" in seen
    folder.file(one).write_text(one.wrong["missing-psum"])
    seen = terminal.until("Hint:")
    assert "2 devices  wrong" in seen
    assert "[missing-psum]" in seen
    assert "data 1" in seen
    assert "\x1b[3" not in seen, "no colour was asked for"
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*\w", "", seen).splitlines()) <= 70
    terminal.press("h")
    terminal.until("Hint 1:")
    folder.file(one).write_text(one.solution)
    seen = terminal.until("Next: 02_shard_map_vs_vmap.py")
    assert "8 devices  right" in seen
    terminal.press("l")
    assert "[x] 01 shard_map_psum" in terminal.until("35 bytes_of_a_layer")
    terminal.process.send_signal(signal.SIGINT)
    seen = terminal.until("continues from here.")
    assert "1 of 35 done." in seen
    assert "Traceback" not in seen
    assert terminal.process.wait(HANGS) == 0
    assert Folder.find(folder.path).current.name == "shard_map_vs_vmap"


class Marked:
    """A judge that has its verdicts by heart: what is tested is the watcher."""

    def __init__(self, right: set[str]):
        self.right, self.asked = right, []

    def judge(self, exercise, source, file):
        self.asked.append(exercise.name)
        status = "right" if exercise.name in self.right else "wrong"
        return Judgement(exercise.name, exercise.title, file, status)


def test_work_done_while_nobody_watched_is_judged_first(folder, capsys):
    first, second, third, _, fifth = folder.exercises[:5]
    for one in (first, third, fifth):
        folder.file(one).write_text(one.solution)
    shop = Workshop(folder)
    marked = Marked({first.name, third.name})
    shop.judge = marked
    watch = Watch(shop)
    watch._catch_up()
    assert marked.asked == [first.name, third.name, fifth.name]
    assert set(Folder.find(folder.path).solved) == {first.name, third.name}
    assert watch.at is second
    shown = capsys.readouterr().out
    assert f"Right already: {first.file_name}, {third.file_name}" in shown
    marked.asked.clear()
    watch._catch_up()
    assert marked.asked == [fifth.name]


def test_without_a_terminal_it_prints_one_verdict_after_the_other(folder):
    one = find(folder.exercises, "bytes_of_a_sum")
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", START, "practice"],
        cwd=folder.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "Ctrl-C ends." in line:
                break
        folder.file(one).write_text(one.solution)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C ends." in line:
                break
        assert "bytes_of_a_sum: right\n" in lines
        assert not any("\x1b" in line for line in lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_narrow_screen_breaks_no_line(capsys):
    run = SolutionRun({"data": 8}, "device", False, "[1, 2, 3]" * 9, "[1, 2]" * 9)
    found = Judgement("name", "Title", "f.py", "wrong", (run,), hint="word " * 40)
    screen = Screen(sys.stdout)
    for text, style in found.lines(40):
        screen.line(text, style)
    assert all(len(line) <= 40 for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_numbers_of_a_verdict_are_never_cut(width):
    expected, got = "-0.58393 at [0][0] of shape (16, 3)", "-0.14598 at [0][0] of shape (16, 3)"
    run = SolutionRun({"data": 8}, "devices", False, expected=expected, found=got)
    lines = Judgement("name", "Title", "f.py", "wrong", (run,)).text(width).splitlines()
    assert f"expected {expected}" in " ".join(" ".join(lines).split())
    assert f"found {got}" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width


def test_of_many_parts_the_one_that_differs_is_shown():
    expected = {name: np.arange(3.0) for name in ("first", "second", "third", "fourth")}
    got = expected | {"fourth": np.array([0.0, 1.0, 7.25])}
    assert compare.shown(got, expected) == "{... fourth: [0. , 1. , 7.25]}"
    assert compare.shown(expected, got) == "{... fourth: [0., 1., 2.]}"
    pair = [np.arange(100.0).reshape(50, 2), np.zeros((40, 40))]
    other = [pair[0], pair[1] + np.eye(40)]
    assert compare.shown(other, pair) == "(... 1. at [0][0] of shape (40, 40))"
