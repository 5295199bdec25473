"""What a command prints and writes where few signs can be shown, or where there is no room."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rich
import typer
from typer.testing import CliRunner

from shardwise._cli import app, main, output
from shardwise._cli.report import last_line
from shardwise._cli.status import ExitCode

from ..optional import because

FULL = Path("/dev/full")
CASE = """\
import jax
from jax import P
import jax.numpy as jnp
import shardwise as sw

def mean(x, *, mesh):
    body = lambda x: jax.lax.pmean(x.mean(), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

@sw.case(mesh={"data": [1, 2]})
def rows():
    return mean, (jnp.arange(8.0),)
"""

needs_full = pytest.mark.skipif(
    not FULL.exists(), reason=because("There is no /dev/full", "use Linux")
)


def run(*args):
    return CliRunner().invoke(app, args, prog_name="shardwise", env={"COLUMNS": "100"})


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_a_sign_that_cannot_be_shown_is_a_question_mark(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    output.in_any_encoding()
    print("data → \udcff", flush=True)
    sign = "→" if encoding == "utf-8" else "?"
    assert raw.getvalue().decode(encoding) == f"data {sign} ?\n"


def test_what_was_asked_for_stays(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="xmlcharrefreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    output.in_any_encoding()
    assert stream.errors == "xmlcharrefreplace"


def test_the_command_prints_in_any_encoding(monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(CASE)
    monkeypatch.chdir(tmp_path)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["shardwise", "explain", "train.py"])
    with pytest.raises(SystemExit) as ended:
        main()  # it leaves nothing behind that is not printed yet
    assert ended.value.code == ExitCode.OK
    assert b"data ?  0  1\n" in raw.getvalue()


@needs_full
@pytest.mark.parametrize("args", [["--help"], ["rule"]])
def test_no_room_to_print_is_one_line_and_code_2(args):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shardwise", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == ExitCode.NOT_RUN
    assert done.stderr.splitlines() == [
        "ShardwiseError: standard output: it cannot be written to (No space left on device)",
        "  Remedy: make room, or print to another place.",
    ]


@pytest.mark.parametrize("args", [["practice", "list"], ["check", "train.py"]])
def test_nobody_who_reads_is_no_verdict(tmp_path, args):
    (tmp_path / "train.py").write_text(CASE)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", *args],
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (ExitCode.NOT_READ, "")


@pytest.mark.parametrize("name", [None, "data.npy"])
def test_an_error_of_a_file_is_not_taken_for_that(name):
    with pytest.raises(OSError, match="broken") as raised, output.printing():
        raise OSError(errno.EIO, "broken", name)  # as file.read() says it, which names no file
    assert raised.value.filename == name


@needs_full
@pytest.mark.parametrize(
    ("write", "buffered"),
    [(typer.echo, False), (rich.get_console().print, False), (typer.echo, True), (print, True)],
)
def test_and_one_of_printing_is(monkeypatch, capsys, write, buffered):
    raw = FULL.open("wb", buffering=-1 if buffered else 0)
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=not buffered)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended, output.printing():
            write("text")
    stream.close()
    assert ended.value.code == ExitCode.NOT_RUN
    assert "standard output: it cannot be written to (No space" in capsys.readouterr().err


@needs_full
@pytest.mark.parametrize(
    ("verb", "option"), [("explain", "--html"), ("explain", "--trace"), ("inspect", "--html")]
)
def test_no_room_for_a_file_is_told(monkeypatch, tmp_path, verb, option):
    (tmp_path / "train.py").write_text(CASE)
    (tmp_path / "page.html").symlink_to(FULL)
    monkeypatch.chdir(tmp_path)
    result = run(verb, "train.py", option, "page.html")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "page.html: it cannot be written (No space left on device)" in result.output
    assert not (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("verb", "option"), [("explain", "--html"), ("explain", "--trace"), ("inspect", "--html")]
)
def test_a_write_that_fails_leaves_the_old_page(monkeypatch, tmp_path, verb, option):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "train.py").write_text(CASE)
    page = tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fchmod", full)
    result = run(verb, "train.py", option, "page.html")
    assert result.exit_code == ExitCode.NOT_RUN
    assert page.read_text() == "old"
    assert not list(tmp_path.glob(".page*"))


def test_of_an_error_in_a_library_the_users_line_is_shown():
    try:
        json.loads("{")
    except ValueError as error:
        told = last_line(error)
    assert told.splitlines()[1] == '  json.loads("{")'
    assert Path(__file__).name in told.splitlines()[0]
