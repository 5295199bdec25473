"""What is shown while a call takes long: one line on a terminal, gone afterwards."""

from __future__ import annotations

import contextlib
import io
import sys
import time

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._base import doing as _doing
from shardwise._base.doing import doing, showing_progress

from .patience import HANGS


class Terminal(io.StringIO):
    """Keeps all that was written, and knows what one would see."""

    def isatty(self):
        return True

    @property
    def seen(self) -> list[str]:
        """The lines as they stand in the end: a return takes the cursor back to the left."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that is drawn on at once."""
    monkeypatch.setattr(_doing, "PATIENCE", 0.0)
    monkeypatch.setattr(_doing, "BEAT", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@contextlib.contextmanager
def on(terminal, stdout=None):
    """Standard error is that terminal; pytest would take it back before the test begins."""
    with contextlib.redirect_stderr(terminal), contextlib.redirect_stdout(stdout or terminal):
        yield


def until(shown: io.StringIO, text: str) -> None:
    """Wait until the thread has drawn it."""
    end = time.monotonic() + HANGS
    while text not in shown.getvalue():
        assert time.monotonic() < end, shown.getvalue()
        time.sleep(0.001)


def total(x, *, mesh=None):
    def body(part):
        return jax.lax.psum(part.sum(), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


X = np.arange(8, dtype=np.float32)


class TestLine:
    def test_it_says_what_is_done_and_goes_away(self, terminal):
        with on(terminal), showing_progress("checking step"):
            until(terminal, "checking step (")
            doing("running on {data: 4}")
            until(terminal, "checking step: running on {data: 4} (")
        assert terminal.seen == [""]

    def test_a_call_that_is_quick_shows_nothing(self, terminal, monkeypatch):
        monkeypatch.setattr(_doing, "PATIENCE", 600.0)
        with on(terminal), showing_progress("checking step"):
            doing("running on {data: 4}")
        assert terminal.getvalue() == ""

    def test_what_a_program_prints_stands_above_it_whole(self, terminal):
        with on(terminal), showing_progress("checking step"):
            until(terminal, "checking step (")
            print("one")
            print("two", end="")
            time.sleep(0.05)
            print(", three", file=sys.stderr)
        assert terminal.seen == ["one", "two, three", ""]

    def test_streams_of_the_users_stay_the_users(self, terminal):
        out = io.StringIO()
        captured = io.StringIO()
        with on(terminal, stdout=out), showing_progress("checking step"):
            assert sys.stdout is out  # not a terminal: nothing to make room on
            with contextlib.redirect_stdout(captured):
                until(terminal, "checking step (")
                print("mine")
        assert captured.getvalue() == "mine\n"
        assert out.getvalue() == ""

    def test_it_fits_in_a_narrow_terminal(self, terminal, monkeypatch):
        monkeypatch.setattr(_doing, "_columns", lambda stream: 20)
        with on(terminal), showing_progress("checking 日本語/train.py:a_long_name"):
            until(terminal, "…")
        assert "checking 日本語/tr…\r" in terminal.getvalue()
        assert terminal.seen == [""]

    def test_it_is_gone_after_an_error(self, terminal):
        with pytest.raises(KeyboardInterrupt), on(terminal), showing_progress("checking step"):
            until(terminal, "checking step (")
            raise KeyboardInterrupt
        assert terminal.seen == [""]

    def test_one_inside_another_is_shown_once(self, terminal):
        with (
            on(terminal),
            showing_progress("checking train.py:step"),
            showing_progress("checking step"),
        ):
            doing("compiling")
            until(terminal, "checking train.py:step: compiling (")
        assert "checking step" not in terminal.getvalue()

    @pytest.mark.parametrize("term", ["dumb"])
    def test_nothing_where_a_line_cannot_be_taken_back(self, terminal, monkeypatch, term):
        monkeypatch.setenv("TERM", term)
        with on(terminal), showing_progress("checking step"):
            doing("compiling")
        assert terminal.getvalue() == ""


class TestCalls:
    @pytest.mark.parametrize("verb", ["check", "prove", "inspect", "explain"])
    def test_each_says_what_it_does(self, verb):
        told = []
        getattr(sw, verb)(total, X, mesh={"data": 2}, progress=told.append)
        assert any("tracing" in what for what in told)
        if verb in ("check", "prove"):
            assert "following each value on {data: 2}" in told

    def test_check_says_where_it_looks_for_the_mistake(self):
        def wrong(x, *, mesh):
            def body(part):
                return jax.lax.psum(part.mean(), "data")

            return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

        told = []
        assert not sw.check(wrong, X, mesh={"data": [1, 2]}, progress=told.append)
        assert {"compiling on {data: 2}", "running on {data: 2}", "looking for the line"} <= {*told}

    def test_nothing_without_a_terminal(self, capsys):
        sw.check(total, X, mesh={"data": 2})
        assert capsys.readouterr() == ("", "")

    def test_lines_without_a_terminal_if_asked_for(self, capsys):
        sw.explain(total, X, mesh={"data": 2}, progress=True)
        out, err = capsys.readouterr()
        assert (out, err.splitlines()[0]) == ("", "explaining total: tracing")

    def test_nothing_if_not_wanted(self, terminal):
        with on(terminal):
            sw.check(total, X, mesh={"data": 2}, progress=False)
            assert sys.stderr is terminal
        assert terminal.getvalue() == ""

    def test_on_a_terminal_a_line_that_goes_away(self, terminal):
        with on(terminal):
            sw.check(total, X, mesh={"data": [1, 2]})
            assert (sys.stdout, sys.stderr) == (terminal, terminal)
        assert "checking total: " in terminal.getvalue()
        assert terminal.seen == [""]
