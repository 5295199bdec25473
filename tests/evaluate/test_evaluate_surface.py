"""What people see: the result, the progress, the command line."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import shardwise as sw
from shardwise._base import progress as progress
from shardwise._base.progress import Snapshot
from shardwise._cli import app
from shardwise._cli.evaluate import evaluate as command
from shardwise._runtime import evaluate as _evaluate
from shardwise._runtime.evaluate import Evaluation, Max, Sum

from ..support import normal
from .helpers import devices, evaluate, linear_data


def two(_, batch):
    return {"loss": batch, "most": Max(batch)}


@pytest.fixture(scope="module")
def result() -> Evaluation:
    x = np.arange(10, dtype=np.float32)
    x[3] = np.nan
    return evaluate(lambda _, b: {"loss": b, "n": Sum(b > 5)}, None, x, batch=4)


class TestEvaluation:
    def test_it_is_a_mapping(self, result):
        assert list(result) == ["loss", "n"]
        assert len(result) == 2
        assert result["n"] == 4
        assert dict(result)["n"] == 4
        with pytest.raises(KeyError, match="no metric 'los'\n  There are 'loss', 'n'") as error:
            result["los"]
        assert error.match("Remedy: did you mean 'loss'")
        with pytest.raises(KeyError, match=r"Remedy: result\['loss'\]"):
            result[3]

    def test_state_and_data_that_are_swapped(self):
        params, data = {"w": np.ones(2, np.float32)}, {"x": np.ones((4, 2), np.float32)}
        with pytest.raises(KeyError) as error:
            evaluate(lambda p, b: b["x"] @ p["w"], data, params, batch=2)
        assert "the state has 'x': are the two swapped" in error.value.__notes__[-1]

    def test_a_single_metric_is_a_number(self, result):
        assert float(evaluate(lambda _, b: b, None, np.float32([1, 2]))) == 1.5
        with pytest.raises(TypeError, match="there are 2 metrics; select one"):
            float(result)

    def test_text(self, result):
        lines = str(result).splitlines()
        assert lines[:2] == ["loss  nan", "n     4"]
        assert lines[2].startswith("10 examples, ")
        assert lines[2].endswith("batch 4 on 8 devices")
        assert lines[3] == "loss: 1 example is not finite, number 3"
        assert repr(result) == "Evaluation(loss=nan, n=4, count=10)"

    def test_dictionary(self, result):
        found = result.to_dict()
        assert json.loads(json.dumps(found)) is not None
        assert found["nonfinite"] == {"loss": {"count": 1, "first": 3}}
        assert found["weight"] == {"loss": 10, "n": 10}
        assert math.isnan(found["metrics"]["loss"])
        assert {"seconds", "examples_per_second", "batch", "devices", "resumed"} <= set(found)

    def test_html(self, result):
        text = result._repr_html_()
        assert text.startswith("<table><tr>")
        assert "<td>4</td>" in text
        assert "1 example is not finite, number 3" in text

    def test_names_are_escaped_in_html(self):
        made = evaluate(lambda _, b: {"<b>": b}, None, np.float32([1]))
        assert "<th style='text-align:left'>&lt;b&gt;</th>" in made._repr_html_()


SNAPSHOT = Snapshot(done=250, total=1000, seconds=5, rate=50.0, metrics={"a": [1], "loss": 0.5})


class TestProgress:
    def test_a_snapshot_in_words(self):
        assert str(SNAPSHOT) == "250 of 1,000 (25.0%) examples, 50/s, 0:15 left, loss 0.5"
        unknown = Snapshot(done=7, total=None, seconds=1, rate=7.0, metrics={})
        assert str(unknown) == "7 examples, 7/s"
        assert progress.clock(3723) == "1:02:03"

    def test_a_function_is_given_snapshots(self, monkeypatch):
        monkeypatch.setattr(progress.CallbackView, "every", 0.0)
        seen = []
        _evaluate.evaluate(two, None, normal(100), batch=10, mesh=devices(1), progress=seen.append)
        assert [s.done for s in seen] == [*range(10, 101, 10), 100]
        assert seen[-1].total == 100
        assert set(seen[-1].metrics) == {"loss", "most"}

    def test_lines_in_a_log(self, monkeypatch, capsys):
        monkeypatch.setattr(progress.Lines, "every", 0.0)
        _evaluate.evaluate(two, None, normal(30), batch=10, mesh=devices(1), progress=True)
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("evaluate: 10 of 30 (33.3%) examples, ")
        assert "loss" in lines[0]

    def test_a_short_run_says_nothing_in_a_log(self, capsys):
        _evaluate.evaluate(two, None, normal(30), batch=10)
        assert capsys.readouterr() == ("", "")

    def test_nothing(self, monkeypatch, capsys):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        evaluate(two, None, normal(30), batch=10)
        assert capsys.readouterr().err == ""

    def test_a_bar_on_a_terminal(self):
        out = io.StringIO()
        bar = progress.Bar("evaluate", Console(file=out, force_terminal=True, width=120))
        bar.show(SNAPSHOT)
        bar._bar.refresh()
        bar.close(True)
        assert "250 of 1,000 examples, 50/s, 0:15 left, loss 0.5" in out.getvalue()

    def test_a_bar_leaves_out_the_metrics_that_do_not_fit(self):
        out = io.StringIO()
        bar = progress.Bar("evaluate", Console(file=out, force_terminal=True, width=80))
        bar.show(dataclasses.replace(SNAPSHOT, metrics={"loss": 0.5, "a" * 20: 0.25}))
        bar._bar.refresh()
        bar.close(True)
        assert "0:15 left, loss 0.5" in out.getvalue()
        assert not set("…a") & set(out.getvalue().partition("loss 0.5")[2].partition("\r")[0])

    def test_a_terminal_gets_the_bar(self, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        view = progress.choose_view(None, "evaluate")
        assert isinstance(view, progress.Bar)
        view.close(False)


MODULE = """
import numpy as np

def loss(state, batch):
    w = 1.0 if state is None else state["w"]
    return (batch["x"].sum(-1) * w - batch["y"]) ** 2

def plain(state, batch):
    return batch

def pair(state, batch):
    return batch

STATE = {"w": np.float32(0.5)}

def make_state():
    return STATE

NOT_A_FUNCTION = 3
"""


class TestCommand:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        data = linear_data(100)
        np.save(tmp_path / "x.npy", data["x"])
        np.save(tmp_path / "y.npy", data["y"])
        np.save(tmp_path / "w.npy", np.abs(data["y"]))
        (tmp_path / "my_model.py").write_text(MODULE)
        monkeypatch.chdir(tmp_path)
        yield tmp_path
        sys.modules.pop("my_model", None)

    def run(self, *args):
        app = typer.Typer()
        app.command()(command)
        return CliRunner().invoke(app, args)

    def whole(self, *args):
        """Through the whole command line, which words errors and interrupts."""
        return CliRunner().invoke(app, ["evaluate", *args])

    @pytest.mark.parametrize(
        ("module", "state"),
        [("my_model", None), ("my_model.py", "STATE"), ("my_model", "make_state")],
    )
    def test_named_arrays_as_json(self, folder, module, state):
        more = [] if state is None else ["--state", f"{module}:{state}"]
        args = [f"{module}:loss", "--data", "x=x.npy", "--data", "y=y.npy", "--batch", "16"]
        done = self.run(*args, *more, "--json", "--journal", "j.db")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        x, y = np.load("x.npy").astype(np.float64), np.load("y.npy")
        scale = 1.0 if state is None else 0.5
        want = np.mean((x.sum(-1) * scale - y) ** 2)
        assert found["metrics"]["mean"] == pytest.approx(want, rel=1e-6)
        assert (folder / "j.db").exists()

    def test_one_array_as_text(self, folder):
        done = self.run("my_model:plain", "--data", "y.npy")
        assert done.stdout.startswith("mean  ")
        assert "100 examples" in done.stdout

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            ([], "interrupted: nothing was kept; --journal FILE keeps what is finished\n"),
            (
                ["--journal", "j.db"],
                "interrupted: 'j.db' has what is finished, and the same command resumes from "
                "there\n",
            ),
        ],
    )
    def test_an_interrupt_says_what_was_kept(self, folder, more, says):
        (folder / "my_model.py").write_text("def stop(_, b):\n    raise KeyboardInterrupt\n")
        done = self.whole("my_model:stop", "--data", "y.npy", *more)
        assert done.exit_code == 130
        assert done.stderr.endswith(says)
        assert "Traceback" not in done.output

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (["my_model:raises"], "my_model:raises: evaluating it raised KeyError: 'k'\n"),
            (["my_model:plain", "--state", "my_model:make"], "my_model:make: making the state"),
            (["broken.py:f"], "broken.py:f: importing it raised ZeroDivisionError: "),
        ],
    )
    def test_a_function_that_raises_is_told_with_its_line(self, folder, args, says):
        lines = [
            "def raises(_, b):",
            "    return b * {}['k']",
            "def plain(_, b):",
            "    return b",
            "def make():",
            "    return {}['k']",
        ]
        (folder / "my_model.py").write_text("\n".join(lines))
        (folder / "broken.py").write_text("1 / 0")
        done = self.whole(*args, "--data", "y.npy")
        assert done.exit_code == 2
        assert done.stderr.startswith(f"ShardwiseError: {says}")
        assert re.search(r"\n  --> (my_model|broken).py:\d\n", done.stderr)
        raw = self.whole(*args, "--data", "y.npy", "-v").exception
        assert isinstance(raw, KeyError | ZeroDivisionError)

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (["my_model:named", "--data", "y.npy"], "is one array. Named arrays make it a dict"),
            (["my_model:named", "--data", "y.npy"], "on the command line --data x=x.npy\n"),
            (["my_model:named", *["--data", "y.npy"] * 2], "which is a tuple"),
            (["my_model:named", "--data", "y=y.npy"], "which is a dict of 'y'. To add it: data="),
            (["my_model:named", "--data", "y=y.npy"], "on the command line --data x=FILE.npy\n"),
            (["my_model:stated", "--data", "y.npy"], "the state is None"),
            (["my_model:held", "--data", "y.npy"], "on the command line --state MODULE:NAME"),
            (["my_model:alone", "--data", "y.npy"], "alone(): it is called with (state, batch)"),
            (["my_model:name", "--data", "y.npy"], "did you mean my_model:named?"),
        ],
    )
    def test_what_the_function_takes_the_data_for(self, folder, args, says):
        lines = [
            "def named(_, batch): return batch['x']",
            "def stated(state, batch): return batch * state['w']",
            "def held(state, batch): return batch * state.w",
            "def alone(batch): return batch",
        ]
        (folder / "my_model.py").write_text("\n".join(lines))
        done = self.whole(*args)
        assert done.exit_code == 2
        assert says in done.stderr

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            (["my_model:nope"], "shardwise evaluate my_model:loss --data x.npy"),
            (["my_model:param"], "shardwise evaluate my_model:loss --data x.npy"),
            (["my_model:map_off"], "did you mean my_model:map_of?"),
            (
                ["my_model:map_of", "--state", "my_model:param"],
                "did you mean --state my_model:params?",
            ),
            (["my_model:map_of", "--state", "my_model:nope"], "--state model.py:params"),
        ],
    )
    def test_only_what_may_be_meant_is_suggested(self, folder, args, says):
        lines = ["import numpy as np", "params = 1", "def map_of(_, batch): return batch"]
        (folder / "my_model.py").write_text("\n".join(lines))
        done = self.whole(*args, "--data", "y.npy")
        assert done.exit_code == 2
        assert f"Remedy: {says}" in done.stderr

    def test_what_is_not_finite_is_null_in_json(self, folder):
        np.save("y.npy", np.float32([1, np.nan]))
        found = json.loads(self.run("my_model:plain", "--data", "y.npy", "--json").stdout)
        assert found["metrics"] == {"mean": None}
        assert found["nonfinite"] == {"mean": {"count": 1, "first": 1}}

    def test_a_pair_of_arrays(self, folder):
        done = self.run("my_model:pair", "--data", "y.npy", "--data", "w.npy", "--json")
        assert json.loads(done.stdout)["weight"]["mean"] > 0

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["my_model:loss", "--data", "z.npy"], "--data z.npy: there is no such file"),
            (["my_model:loss", "--data", "z.npy"], "Remedy: there are w.npy, x.npy, y.npy."),
            (["my_model:loss", "--data", "xx.npy"], "Remedy: did you mean x.npy?"),
            (["my_model:loss", "--data", "no/x.npy"], "name a .npy file that is there"),
            (
                ["my_model:loss", "--data", "my_model.py"],
                "cannot be read as an array: it does not begin as a .npy file does\n",
            ),
            (
                ["my_model:loss", "--data", "y.npy", "--state", "my_model:nosuch"],
                "--state my_model:nosuch: my_model has no 'nosuch'.\n  The state is named",
            ),
            (["my_model:los", "--data", "y.npy"], "my_model has no 'los'"),
            (["my_model", "--data", "y.npy"], "not of the form MODULE:NAME"),
            (["nowhere.at_all:fn", "--data", "y.npy"], "there is no module 'nowhere.at_all' here"),
            (["nowhere.py:fn", "--data", "y.npy"], "there is no file 'nowhere.py'"),
            (["my_model:NOT_A_FUNCTION", "--data", "y.npy"], "int is not a function"),
            (["my_model:loss", "--data", "x=x.npy", "--data", "y.npy"], "some are named and some"),
            (["my_model:loss", "--data", "x=x.npy", "--data", "x=y.npy"], "a name is given twice"),
        ],
    )
    def test_refusals(self, folder, args, message):
        assert message in str(self.run(*args).exception)

    def test_the_help_does_not_wait_for_jax(self):
        code = "import sys; import shardwise._cli.evaluate; print('jax' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "False\n"


def test_the_example(monkeypatch, capsys):
    path = Path(__file__).parents[2] / "examples" / "evaluate_npy.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--rows", "1000", "--batch", "64"])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.startswith("accuracy  0.")


def test_a_state_that_could_be_the_data_is_asked_about():
    weights = {"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}
    with pytest.raises(sw.ShardingError, match="has 100 rows, like data: are the two swapped"):
        evaluate(lambda state, batch: batch["x"], linear_data(100), weights)
    with pytest.raises(sw.ShardingError) as caught:
        evaluate(lambda state, batch: batch["x"], weights, weights)
    assert "swapped" not in str(caught.value)
