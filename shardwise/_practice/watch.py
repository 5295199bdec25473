"""Watch mode: each time a file is saved, the judge runs and the screen shows the verdict.

On a terminal it clears the screen for each verdict; elsewhere (a pipe, a log) it prints one verdict
after another, without colour.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from .exercise import Exercise, listing
from .folder import about_hints
from .verdict import Judgement
from .workshop import Workshop

BEAT = 0.25
"""Seconds between two scans of the folder."""

CODES = {"right": "32", "wrong": "31", "warn": "33", "head": "1", "soft": "2", "hint": "36"}
KEYS = "[h] hint   [n] next   [p] previous   [l] list   [q] quit"


class Screen:
    """Output to a terminal, with optional colour."""

    def __init__(self, out: TextIO, colour: bool | None = None):
        self.out = out
        self.terminal = out.isatty()
        in_colour = (
            self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        self.colour = in_colour if colour is None else colour

    @property
    def width(self) -> int:
        """The width of the terminal in characters, within limits."""
        return max(30, min(shutil.get_terminal_size((80, 24)).columns - 1, 100))

    def clear(self) -> None:
        """Clear the screen of a terminal, but not its scrollback."""
        if self.terminal and os.environ.get("TERM") != "dumb":
            self.out.write("\x1b[H\x1b[2J")

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line."""
        codes = ";".join(CODES[word] for word in style.split() if word in CODES)
        painted = f"\x1b[{codes}m{text}\x1b[0m" if codes and self.colour and text else text
        self.out.write(painted + "\n")

    def verdict(self, judgement: Judgement) -> None:
        """Write a verdict, line by line."""
        for text, style in judgement.lines(self.width):
            self.line(text, style)

    def flush(self) -> None:
        """Flush the output, ignoring a closed pipe."""
        with contextlib.suppress(BrokenPipeError):
            self.out.flush()


class Watch:
    """The loop of watch mode."""

    def __init__(self, shop: Workshop, out: TextIO | None = None, keys: TextIO | None = None):
        self.shop = shop
        self.screen = Screen(out or sys.stdout)
        self.keys = keys if keys is not None else sys.stdin
        self.at = shop.folder.current or shop.folder.exercises[-1]
        self.note = ""
        self.hints: list[str] = []

    def run(self) -> None:
        """Run until the learner quits."""
        with _keys(self.keys) as listening:
            try:
                self._catch_up()
                while True:
                    for exercise in self.shop.changed():
                        self.judge(exercise)
                    if listening and (key := self._key(BEAT)):
                        if key in ("q", "\x03", "\x04"):
                            break
                        self._pressed(key)
                    elif not listening:
                        time.sleep(BEAT)
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
        self.screen.flush()
        return self._patiently(exercise)

    def _patiently(self, exercise: Exercise) -> tuple[Judgement, bool]:
        """Judge in a thread, so that Ctrl-C takes effect at once."""
        answer: list[Any] = []

        def work() -> None:
            try:
                answer.append(self.shop.run(exercise))
            except BaseException as error:  # passed to the main thread
                answer.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return answer[0]

    def show(self) -> None:
        """Draw the whole screen."""
        screen, exercise = self.screen, self.at
        self._header()
        judgement = self.shop.verdicts.get(exercise.name)
        if judgement is None:
            screen.line(exercise.title, "head")
            screen.line()
            for text in _wrap(exercise.statement.split("\n\n")[0], screen.width - 2):
                screen.line(f"  {text}")
            screen.line()
            screen.line(
                f"  Open {exercise.file_name} in your editor, read the text on top, and save."
            )
        else:
            screen.verdict(judgement)
        if self.note:
            screen.line()
            for text in _wrap(self.note, screen.width):
                screen.line(text, "right head")
        if self.hints:
            screen.line()
            for text in _wrap(about_hints(self.at), screen.width):
                screen.line(text, "soft")
        for number, hint in enumerate(self.hints, 1):
            screen.line()
            for text in _wrap(f"Hint {number}: {hint}", screen.width):
                screen.line(text, "hint")
        screen.line()
        screen.line(_fit(KEYS, screen.width) if self._listens() else "Ctrl-C ends.", "soft")
        screen.flush()

    def _header(self) -> None:
        screen, folder = self.screen, self.shop.folder
        screen.clear()
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
        self.screen.flush()

    # --- keys

    def _listens(self) -> bool:
        return self.keys.isatty()

    def _key(self, seconds: float) -> str:
        ready, _, _ = select.select([self.keys], [], [], seconds)
        return os.read(self.keys.fileno(), 1).decode("ascii", "ignore") if ready else ""

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
        self.screen.clear()
        for text, style in listing(self.shop.folder.exercises, self.shop.folder.solved, self.at):
            self.screen.line(text[: self.screen.width], style)
        self.screen.line()
        self.screen.line(_fit(KEYS, self.screen.width), "soft")
        self.screen.flush()


def _meshes(exercise: Exercise) -> str:
    if exercise.form == "answer":
        return "its answer"
    unit = "shards" if exercise.form == "shards" else "devices"
    if any(len(mesh) > 1 for mesh in exercise.meshes):
        return f"{len(exercise.meshes)} meshes"
    return ", ".join(str(next(iter(mesh.values()))) for mesh in exercise.meshes) + f" {unit}"


def _wrap(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width) or [""]


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else "h hint  n next  l list  q quit"


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
