"""What a project sets in its pyproject.toml, the pages of codes, files that cannot be written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from shardwise._analysis.faults import FAULTS, OLD
from shardwise._cli import app, config
from shardwise._cli.status import ExitCode

CASE = """\
import jax
from jax import P
import jax.numpy as jnp
import shardwise as sw

def mean(x, *, mesh):
    body = lambda x: jax.lax.psum(x.mean(), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

@sw.case(mesh={"data": [1, 2]})
def rows():
    return mean, (jnp.arange(8.0),)
"""


def run(*args):
    env = {"COLUMNS": "100", "NO_COLOR": "1"}
    return CliRunner().invoke(app, args, prog_name="shardwise", env=env)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(CASE)
    return tmp_path


def settings(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.shardwise]\n{text}\n")


class TestSettings:
    def test_paths_and_codes(self, project):
        settings(project, 'paths = ["steps.py"]\nignore = ["SW401"]')
        result = run("check")
        assert result.exit_code == ExitCode.OK, result.output
        assert "1 case, right, 1 silenced" in result.stdout
        (one,) = json.loads(run("check", "--format", "sarif").stdout)["runs"][0]["results"]
        assert one["suppressions"] == [{"kind": "external"}]

    def test_the_nearest_file_counts_and_paths_are_its_own(self, project, monkeypatch):
        settings(project, 'paths = ["steps.py"]')
        (project / "inner").mkdir()
        monkeypatch.chdir(project / "inner")
        assert config.load().paths == ("../steps.py",)
        (project / "inner" / "pyproject.toml").write_text('[project]\nname = "x"\n')
        assert config.load() == config.Settings()

    def test_an_option_goes_before_it(self, project):
        settings(project, 'hardware = "tpu-v5e"')
        assert "tpu-v5e" in run("explain", "steps.py").stdout
        assert "tpu-v5e" not in run("explain", "steps.py", "--hardware", "h200-node").stdout

    def test_without_paths_it_says_what_to_name(self, project):
        result = run("check")
        assert result.exit_code == ExitCode.NOT_RUN
        assert "no file or folder is named" in result.stderr
        assert 'paths = ["src"] in pyproject.toml' in result.stderr

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("ignor = []", "there is no setting 'ignor'.\n  Remedy: did you mean 'ignore'?"),
            ("colour = 1", "there are paths, ignore, devices, hardware, all_meshes, expect."),
            ('paths = "src"', "paths is 'src'."),
            ("paths = [1]", "paths is [1]."),
            ('ignore = ["W1"]', "ignore has 'W1', which is no code."),
            ('ignore = ["SW999"]', "ignore has 'SW999', which is no code."),
            ('ignore = ["sw203"]', "which is no code.\n  Remedy: did you mean 'SW203'?"),
            ("devices = 0", "devices is 0."),
            ("devices = true", "devices is True."),
            ("hardware = 3", "hardware is 3."),
            ('hardware = "h300"', "there is no profile 'h300'"),
            ("paths = [", "it cannot be read"),
        ],
    )
    def test_what_is_wrong_is_told_before_anything_runs(self, project, text, says):
        settings(project, text)
        result = run("check", "steps.py")
        assert result.exit_code == ExitCode.NOT_RUN
        assert "ShardwiseError: pyproject.toml, [tool.shardwise]: " in result.stderr
        assert says in result.stderr
        assert not result.stdout


class TestRule:
    def test_every_code_in_the_source_is_a_fault(self):
        source = Path(config.__file__).parents[1]
        written = {
            code
            for folder in ("_analysis", "_runtime")
            for file in (source / folder).rglob("*.py")
            for code in re.findall(r'"(SW\d{3})"', file.read_text(encoding="utf-8"))
        }
        assert written == {*FAULTS, *OLD}
        assert all(fault.title and fault.explanation for fault in FAULTS.values())

    def test_an_old_code_is_that_of_one_fault(self):
        assert not {*OLD} & {*FAULTS}
        assert all(OLD[code] == fault.code for fault in FAULTS.values() for code in fault.old)

    def test_a_page(self):
        shown = run("rule", "sw108")
        assert shown.exit_code == ExitCode.OK
        assert shown.stdout.startswith("# SW108: a different shape, dtype or structure\n\n**")
        assert "```python" in shown.stdout
        assert "## SW106" not in shown.stdout

    @pytest.mark.parametrize(("old", "new"), sorted(OLD.items()))
    def test_a_code_of_an_earlier_version(self, old, new):
        shown = run("rule", old)
        assert shown.stdout == run("rule", new).stdout
        assert f"Formerly {old}." in shown.stdout

    def test_a_page_reads_alone(self):
        shown = run("rule", "SW401").stdout
        assert "](" not in shown
        gradients = "My gradients are n times too large (in the documentation: how-to/gradients)"
        assert gradients in shown
        assert "def prove(body, out_specs=P()):" in shown, "what the example calls"
        root = Path(config.__file__).parents[2]
        for fault in FAULTS.values():
            for _, page in fault.see:
                assert (root / "docs" / f"{page}.md").is_file(), (fault.code, page)

    def test_it_needs_no_jax(self):
        code = "import sys, shardwise._cli.rule; assert 'jax' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_all_of_them(self):
        shown = run("rule").stdout
        assert "SW401  n times what it should be" in shown
        assert len(re.findall(r"^SW\d{3}  \w", shown, re.MULTILINE)) == len(FAULTS)

    def test_an_unknown_code(self):
        shown = run("rule", "SW4O1")
        assert shown.exit_code == ExitCode.NOT_RUN
        assert "SW4O1: there is no such code." in shown.stderr
        assert "did you mean SW4" in shown.stderr


class TestFiles:
    @pytest.mark.parametrize(
        "args",
        [
            ["explain", "steps.py", "--html"],
            ["explain", "steps.py", "--trace"],
            ["inspect", "steps.py", "--html"],
            ["evaluate", "m.py:f", "--data", "x.npy", "--journal"],
        ],
    )
    def test_a_file_that_cannot_be_written_is_told_before_the_work(self, project, args):
        np.save("x.npy", np.ones(4, np.float32))
        (project / "steps.py").write_text("raise AssertionError('imported')")
        result = run(*args, "nowhere/out.html")
        assert result.exit_code == ExitCode.NOT_RUN
        assert f"{args[-1]} nowhere/out.html: there is no folder 'nowhere'." in result.stderr
        assert "imported" not in result.output
        assert "this is a folder" in run(*args, ".").stderr

    def test_what_was_written_is_said(self, project):
        result = run("explain", "steps.py", "--html", "a.html", "--trace", "a.json")
        assert result.exit_code == ExitCode.OK, result.output
        assert result.stderr == "written: a.html\nwritten: a.json\n"
        assert Path("a.html").stat().st_size
        assert Path("a.json").stat().st_size


def test_sarif_is_whole(project):
    (project / "broken.py").write_text(CASE.replace("return mean,", "return 1 / 0,"))
    log = json.loads(run("check", ".", "--format", "sarif").stdout)
    assert log["version"] == "2.1.0"
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert {rule["id"] for rule in driver["rules"]} == set(FAULTS)
    (found,) = one["results"]
    assert driver["rules"][found["ruleIndex"]]["id"] == found["ruleId"] == "SW401"
    assert (found["level"], found["suppressions"]) == ("error", [])
    assert found["properties"] == {
        "case": "steps.py:rows",
        "leaf": "result",
        "wrong_on": ["{data: 2}"],
        "right_on": ["{data: 1}"],
    }
    place = found["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "steps.py"},
        "region": {"startLine": 7, "startColumn": 22},
    }
    (ran,) = one["invocations"]
    assert ran["executionSuccessful"] is False
    (note,) = ran["toolExecutionNotifications"]
    assert "broken.py:rows could not be run: ZeroDivisionError" in note["message"]["text"]


def test_sarif_of_proofs_names_the_meshes(project):
    log = json.loads(run("prove", ".", "--format", "sarif").stdout)
    (found,) = log["runs"][0]["results"]
    assert found["properties"] == {
        "case": "steps.py:rows",
        "leaf": "result",
        "refuted_on": ["{data: 2}"],
        "unknown_on": [],
        "proved_on": ["{data: 1}"],
    }


STANDARD = {
    "log": {"$schema": str, "version": str, "runs": ["run"]},
    "run": {
        "tool": "tool",
        "invocations": ["invocation"],
        "results": ["result"],
        "columnKind": str,
    },
    "tool": {"driver": "driver"},
    "driver": {"name": str, "semanticVersion": str, "rules": ["rule"]},
    "rule": {
        "id": str,
        "deprecatedIds": list,
        "shortDescription": "text",
        "fullDescription": "text",
        "help": "text",
    },
    "text": {"text": str, "markdown": str},
    "invocation": {"executionSuccessful": bool, "toolExecutionNotifications": ["notification"]},
    "notification": {"level": str, "message": "text", "locations": ["location"]},
    "result": {
        "ruleId": str,
        "ruleIndex": int,
        "level": str,
        "message": "text",
        "locations": ["location"],
        "suppressions": ["suppression"],
        "properties": "meshes",
    },
    "meshes": {"case": str, "leaf": str, "wrong_on": list, "right_on": list},
    "suppression": {"kind": str},
    "location": {"physicalLocation": "place"},
    "place": {"artifactLocation": "file", "region": "region"},
    "file": {"uri": str},
    "region": {"startLine": int, "startColumn": int},
}
"""The part of the SARIF 2.1.0 schema that is used: objects, their fields, and what those hold."""

ALLOWED = {
    "version": {"2.1.0"},
    "columnKind": {"unicodeCodePoints"},
    "level": {"none", "note", "warning", "error"},
    "kind": {"inSource", "external"},
}


def assert_standard(value, kind="log"):
    if isinstance(kind, list):
        for one in value:
            assert_standard(one, kind[0])
    elif isinstance(kind, str):
        assert set(value) <= set(STANDARD[kind]), kind
        assert kind != "text" or "text" in value
        for name, one in value.items():
            assert_standard(one, STANDARD[kind][name])
            assert name not in ALLOWED or one in ALLOWED[name]
    else:
        assert type(value) is kind
        assert kind is not int or value >= 0


def test_sarif_keeps_to_the_standard(project):
    (project / "broken.py").write_text(CASE.replace("return mean,", "return 1 / 0,"))
    (project / "my steps.py").write_text(CASE)
    (project / "unused.py").write_text("# shardwise: ignore[SW101]\n" + CASE)
    settings(project, 'ignore = ["SW401"]')
    log = json.loads(run("check", ".", "--format", "sarif").stdout)
    assert_standard(log)
    (one,) = log["runs"]
    places = [found["locations"][0]["physicalLocation"] for found in one["results"]]
    assert "my%20steps.py" in {place["artifactLocation"]["uri"] for place in places}
    # Links between our pages lead nowhere in somebody else's.
    assert not any("](../" in rule["help"]["markdown"] for rule in one["tool"]["driver"]["rules"])


@pytest.mark.parametrize("command", ["check", "prove", "explain", "inspect"])
def test_an_interrupt_in_the_program_is_one_line_and_130(project, command):
    (project / "steps.py").write_text(CASE.replace("return mean,", "raise KeyboardInterrupt  #"))
    result = run(command, "steps.py")
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr == "interrupted\n"


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        ('paths = ["no.py"]', ("check",), "paths has 'no.py', and there is no such file"),
        ('paths = ["no.py:rows"]', ("check",), "paths has 'no.py:rows', and there is no such"),
        ('hardware = "h200"', ("explain", "steps.py"), "there is no profile 'h200'"),
    ],
)
def test_a_value_that_is_wrong_is_said_to_be_a_setting(project, text, args, says):
    settings(project, text)
    result = run(*args)
    assert result.exit_code == ExitCode.NOT_RUN
    assert "pyproject.toml, [tool.shardwise]: " in result.stderr
    assert says in result.stderr
    assert "Remedy: " in result.stderr


def test_paths_that_are_not_used_may_be_missing(project):
    settings(project, 'paths = ["no.py"]\nignore = ["SW401"]')
    assert run("check", "steps.py").exit_code == ExitCode.OK


COMPILING = """
import sys
import jax, jax.numpy as jnp
import shardwise as sw

def long(x):
    for k in range(150):
        x = jnp.sort(jnp.sin(x) + k)
    return x

@sw.case(mesh={"data": 2})
def rows():
    lowered = jax.jit(long).lower(jax.ShapeDtypeStruct((64,), "float32"))
    sys.modules["__main__"].watch.start()
    lowered.compile()
    print("compiled", file=sys.stderr)
    while True:
        pass
"""
INTERRUPTING = """
import os, signal, sys, threading, time
from shardwise._cli import main

ours = threading.main_thread().ident

def place():
    frame = sys._current_frames()[ours]
    return frame.f_globals["__name__"], frame.f_lineno

def send():
    # JAX's own lines around the compiler take no time: where it stays is inside.
    last, stayed = place(), 0
    while stayed < 10:
        time.sleep(0.02)
        now = place()
        stayed = stayed + 1 if now == last and now[0] == "jax._src.compiler" else 0
        last = now
    os.kill(os.getpid(), signal.SIGINT)

watch = threading.Thread(target=send, daemon=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["shardwise", "check", "steps.py"]
main()
"""


def test_an_interrupt_waits_for_the_compiler(project):
    """JAX leaves the wait for its compiler, which dies if the process ends meanwhile."""
    (project / "steps.py").write_text(COMPILING)
    told: list[list[str]] = []
    # The answer may come just when the compiler is done, before the next line: not three times.
    while ["compiled", "interrupted"] not in told and len(told) < 3:
        done = subprocess.run([sys.executable, "-c", INTERRUPTING], capture_output=True, text=True)
        assert done.returncode == ExitCode.INTERRUPTED
        told.append(done.stderr.splitlines())
    assert ["compiled", "interrupted"] in told


def test_python_m_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", "rule", "SW301"], capture_output=True, text=True
    )
    assert done.stdout.startswith("# SW301: a deadlock")


LARGE = """\
import jax, jax.numpy as jnp
import shardwise as sw
from jax import P

def total(x, *, mesh):
    body = lambda x: jax.lax.psum(x.sum(), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

def large():
    return total, (jax.ShapeDtypeStruct((4096, 8), jnp.float32),)

@sw.case(mesh={"data": [1, 2]}, explain=large, explain_mesh={"data": 64})
def sums():
    return total, (jnp.ones(32),)
"""


def test_prove_on_a_mesh_takes_the_arguments_to_explain(project):
    (project / "large.py").write_text(LARGE)
    small = run("prove", "large.py")
    assert "sums: proved on 2 meshes" in small.stdout
    assert "explain" not in small.stdout
    found = run("prove", "large.py", "--mesh", "data=64")
    assert found.exit_code == ExitCode.OK, found.output
    assert "(with the arguments of explain=large)" in found.stdout
    data = json.loads(run("prove", "large.py", "--mesh", "data=64", "--format", "json").stdout)
    assert data["cases"][0]["arguments"] == "explain=large"
