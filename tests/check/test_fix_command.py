"""Fixes on the command line: patches, files that are fixed, SARIF."""

from __future__ import annotations

import json
import linecache
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from typer.testing import CliRunner

import shardwise as sw
from shardwise._analysis.fixes.source import Source
from shardwise._cli import app

from .test_fixes import PROGRAM


def shardwise(*words):
    return CliRunner().invoke(app, ["check", *words], prog_name="shardwise")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mean.py"
    path.write_text(textwrap.dedent(PROGRAM).lstrip())
    return path


def test_diff_prints_a_patch_and_fix_applies_it(file):
    printed = shardwise("mean.py", "--diff")
    assert printed.exit_code == 1, printed.stderr
    assert printed.stdout.startswith("--- mean.py\n+++ mean.py\n@@ ")
    assert "psum" in file.read_text()
    # What was fixed is checked by another process.
    command = [sys.executable, "-m", "shardwise", "check", "mean.py", "--fix"]
    applied = subprocess.run(command, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert "mean.py: fixed (proved): use pmean instead of psum" in applied.stdout
    assert "1 case, right" in applied.stdout
    assert "pmean(x.mean()" in file.read_text()


FORMS = {
    "windows": lambda text: text.replace(b"\n", b"\r\n"),
    "marked": lambda text: b"\xef\xbb\xbf" + text,
    "unfinished": lambda text: text.rstrip(b"\n"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_patch_applies_and_a_fix_keeps_the_form_of_the_file(form, tmp_path):
    from types import SimpleNamespace

    from shardwise._analysis.fixes.source import unified_diff
    from shardwise._cli.fixing import apply_fixes, patches

    file, text = tmp_path / "mean.py", "a = 1\nold = 2\nc = 3\n"
    wanted = FORMS[form](text.replace("old", "new").encode())
    file.write_bytes(FORMS[form](text.encode()))
    linecache.checkcache(str(file))
    source = Source.read(str(file))
    assert source is not None
    edited = source.text.replace("old", "new")
    diff = unified_diff(str(file), source.text, edited)
    fix = sw.Fix(diff, "a change", "proved", str(file), source.text, edited)
    outcomes: Any = [SimpleNamespace(findings=[SimpleNamespace(fix=fix)])]
    (patch,) = patches(outcomes)
    copy = tmp_path / "copy.py"
    copy.write_bytes(file.read_bytes())
    if shutil.which("patch"):
        command = ["patch", "--fuzz=0", str(copy)]
        done = subprocess.run(
            command, input=f"{patch}\n".encode(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout
        assert copy.read_bytes() == wanted
    assert apply_fixes(outcomes, [str(tmp_path)]) == 1
    assert file.read_bytes() == wanted


def test_sarif_carries_the_fix(file):
    printed = shardwise("mean.py", "--format", "sarif")
    result = json.loads(printed.stdout)["runs"][0]["results"][0]
    (fix,) = result["fixes"]
    assert fix["description"]["text"] == "use pmean instead of psum"
    (change,) = fix["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "mean.py"
    assert any("pmean" in one["insertedContent"]["text"] for one in change["replacements"])


def test_only_files_that_are_named_and_unchanged_are_fixed(tmp_path, capsys):
    from types import SimpleNamespace

    from shardwise._cli.fixing import apply_fixes

    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.py").write_text("old\n")
    (inside / "b.py").write_text("edited meanwhile\n")
    files = [inside / "a.py", inside / "b.py", outside / "a.py"]
    fixes = [sw.Fix("", "a change", "proved", str(file), "old\n", "new\n") for file in files]
    outcomes = [SimpleNamespace(findings=[SimpleNamespace(fix=fix)]) for fix in fixes]
    assert apply_fixes(outcomes, [str(inside)]) == 1  # pyright: ignore
    assert [file.read_text() for file in files] == ["new\n", "edited meanwhile\n", "old\n"]
    messages = capsys.readouterr().err
    assert "b.py: not fixed, it has changed since it was checked" in messages
    assert "not fixed, it is not below" in messages
