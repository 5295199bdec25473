"""Watch mode: each time a file is saved, the judge runs and the screen shows the verdict.

On a terminal it clears the screen for each verdict; elsewhere (a pipe, a log) it prints one verdict
after another, without colour.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console

from .exercise import Exercise, listing
from .folder import about_hints
from .verdict import Judgement
from .workshop import Workshop

BEAT = 0.25
"""Seconds between two scans of the folder."""

STYLES = {
    "right": "green",
    "wrong": "red",
    "warn": "yellow",
    "head": "bold",
    "soft": "dim",
    "hint": "cyan",
}
KEYS = "[h] hint   [n] next   [p] previous   [l] list   [q] quit"


class Screen:
    """Output of lines with styles, which are shown on a terminal that has them."""

    def __init__(self, out: TextIO):
        self.console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)

    @property
    def width(self) -> int:
        """The width of the terminal in characters, within limits."""
        return max(30, min(self.console.width - 1, 100))

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line."""
        self.console.print(text, style=" ".join(STYLES.get(word, "") for word in style.split()))

    def block(self, text: str, style: str) -> None:
        """Write an empty line, and a text in lines that fit."""
        self.line()
        for line in textwrap.wrap(text, self.width) or [""]:
            self.line(line, style)

    def verdict(self, judgement: Judgement) -> None:
        """Write a verdict, line by line."""
        for text, style in judgement.lines(self.width):
            self.line(text, style)


class Watch:
    """The loop of watch mode."""

    def __init__(self, shop: Workshop):
        self.shop = shop
        self.screen = Screen(sys.stdout)
        self.at = shop.folder.current or shop.folder.exercises[-1]
        self.note = ""
        self.hints: list[str] = []
        self.listening = False
        """Whether keys are read."""

    def run(self) -> None:
        """Run until the learner quits."""
        with _keys(sys.stdin) as self.listening:
            try:
                self._catch_up()
                while True:
                    for exercise in self.shop.changed():
                        self.judge(exercise)
                    if not self.listening:
                        time.sleep(BEAT)
                    elif (key := _key(BEAT)) in ("q", "\x03", "\x04"):
                        break
                    else:
                        self._pressed(key)
            except KeyboardInterrupt:
                pass
        self.goodbye()

    def _catch_up(self) -> None:
        """Judge the files edited since the last session, then show the current exercise."""
        right = []
        for exercise in self.shop.folder.unjudged:
            self.at = exercise
            _, first = self._judged(exercise)
            right += [exercise.file_name] * first
        if right:
            self.note = f"Right already: {', '.join(right)}"
        self.at = self.shop.folder.current or self.shop.folder.exercises[-1]
        self.show()

    def judge(self, exercise: Exercise) -> None:
        """Judge a saved file, show the verdict, and move on if it is right."""
        if exercise is not self.at:
            self.at, self.hints = exercise, []
        self.note = ""
        judgement, first = self._judged(exercise)
        if judgement.ok:
            self.note = self.shop.folder.onward(first)
        self.show()
        if judgement.ok and self.shop.folder.current is not None:
            self.at, self.hints = self.shop.folder.current, []

    def _judged(self, exercise: Exercise) -> tuple[Judgement, bool]:
        self._header()
        self.screen.line(f"Judging {exercise.file_name} on {_meshes(exercise)} ...", "soft")
        return self.shop.run(exercise)

    def show(self) -> None:
        """Draw the whole screen."""
        screen, exercise = self.screen, self.at
        self._header()
        judgement = self.shop.verdicts.get(exercise.name)
        if judgement is None:
            screen.line(exercise.title, "head")
            screen.line()
            for text in textwrap.wrap(exercise.statement.split("\n\n")[0], screen.width - 2):
                screen.line(f"  {text}")
            screen.line()
            screen.line(
                f"  Open {exercise.file_name} in your editor, read the text on top, and save."
            )
        else:
            screen.verdict(judgement)
        if self.note:
            screen.block(self.note, "right head")
        if self.hints:
            screen.block(about_hints(self.at), "soft")
        for number, hint in enumerate(self.hints, 1):
            screen.block(f"Hint {number}: {hint}", "hint")
        self._footer()

    def _footer(self) -> None:
        keys = KEYS if len(KEYS) <= self.screen.width else "h hint  n next  l list  q quit"
        self.screen.line()
        self.screen.line(keys if self.listening else "Ctrl-C ends.", "soft")

    def _header(self) -> None:
        screen, folder = self.screen, self.shop.folder
        screen.console.clear()
        done, all_of = len(folder.solved), len(folder.exercises)
        wide = min(24, screen.width - 20)
        filled = round(wide * done / max(1, all_of))
        bar = "#" * filled + "." * (wide - filled)
        screen.line(f"[{bar}] {done} of {all_of}", "soft")
        mark = " (done)" if self.at.name in folder.solved else ""
        screen.line(f"{self.at.number:02} {self.at.name}{mark}", "head")
        screen.line()

    def goodbye(self) -> None:
        """Print the progress on exit."""
        done, all_of = len(self.shop.folder.solved), len(self.shop.folder.exercises)
        self.screen.line()
        self.screen.line(f"{done} of {all_of} done. `shardwise practice` continues from here.")

    def _pressed(self, key: str) -> None:
        exercises = self.shop.folder.exercises
        index = exercises.index(self.at)
        if key == "h":
            self.hints, _ = self.shop.folder.hint(self.at)
        elif key in ("n", "p"):
            step = 1 if key == "n" else -1
            self.at, self.hints = exercises[(index + step) % len(exercises)], []
            self.note = ""
        elif key == "l":
            self._list()
            return
        else:
            return
        self.show()

    def _list(self) -> None:
        self.screen.console.clear()
        for text, style in listing(self.shop.folder.exercises, self.shop.folder.solved, self.at):
            self.screen.line(text[: self.screen.width], style)
        self._footer()


def _meshes(exercise: Exercise) -> str:
    if exercise.form == "answer":
        return "its answer"
    unit = "shards" if exercise.form == "shards" else "devices"
    if any(len(mesh) > 1 for mesh in exercise.meshes):
        return f"{len(exercise.meshes)} meshes"
    return ", ".join(str(next(iter(mesh.values()))) for mesh in exercise.meshes) + f" {unit}"


def _key(seconds: float) -> str:
    """Return the key that is pressed in this time, or nothing."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "ignore") if ready else ""


@contextlib.contextmanager
def _keys(stream: TextIO) -> Iterator[bool]:
    """Read keys one by one, without Enter, and restore the terminal afterwards."""
    if not stream.isatty():
        yield False
        return
    import termios
    import tty

    file = stream.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield True
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
