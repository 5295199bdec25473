"""The command line, run in this process."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shardwise import ShardingError, __version__, _cli
from shardwise._cli import app
from shardwise._cli.status import ExitCode
from shardwise._engine.lower.cost import Machine


def run(*args: str):
    return CliRunner().invoke(app, args, prog_name="shardwise", env={"COLUMNS": "100"})


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == ExitCode.OK
    assert "Usage: shardwise [OPTIONS] COMMAND" in result.output
    assert "demo" in result.output
    assert "Exit codes: 0 right, 1 wrong, 2 could not be run, 3 unknown." in result.output


def test_no_arguments_show_the_help():
    assert "Usage: shardwise" in run().output


def test_version():
    result = run("--version")
    assert result.exit_code == ExitCode.OK
    assert result.output == f"shardwise {__version__}\n"


def test_an_unknown_command_is_refused():
    result = run("dmo")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "No such command 'dmo'" in result.output


def test_an_error_of_ours_is_a_message_and_code_2(monkeypatch):
    def fail(*_):
        raise ShardingError("argument 'x': 7 rows on 4 shards")

    monkeypatch.setattr(_cli.demo, "_show_gradients", fail)
    result = run("demo")
    assert result.exit_code == ExitCode.NOT_RUN
    assert result.output == "ShardingError: argument 'x': 7 rows on 4 shards\n"


def test_an_error_of_others_is_not_hidden(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(_cli.demo, "_show_gradients", fail)
    assert isinstance(run("demo").exception, ZeroDivisionError)


def test_demo(tmp_path):
    # One run for all that it shows: it takes seconds, and each worker would run it again.
    page = tmp_path / "page.html"
    result = run("demo", "--quick", "--page", str(page))
    assert result.exit_code == ExitCode.OK, result.output
    check_gradients(result.output)
    check_verdicts(result.output)
    check_deadlock(result.output)
    check_traffic(result.output)
    assert "psum" in page.read_text(encoding="utf-8")
    assert "sw.simulate(your_function, mesh=sw.mesh(data=8))(*args)" in result.output
    assert "What 64 virtual devices cost" not in result.output


def test_what_the_demo_proposes_can_be_run():
    shown = (Path(_cli.demo.__file__)).read_text(encoding="utf-8")
    proposed = re.findall(r"^    shardwise (\w+) (\S+)", shown, re.MULTILINE)
    assert len(proposed) == 4
    for command, argument in proposed:
        assert command in run("--help").output
        if "/" in argument:
            assert (Path(__file__).parents[1] / argument).exists()


def test_what_the_demo_says_of_the_cost(monkeypatch):
    monkeypatch.setattr(
        "shardwise._engine.simulate.machine", Machine
    )  # the choice depends on its speed
    out = io.StringIO()
    programs = _cli.demo._load_programs()
    _cli.demo._show_cost(Console(file=out, width=100), programs, batch=4096, width=128)
    check_cost(out.getvalue())


def check_gradients(shown: str) -> None:
    number = r" ([+-][\d.]+) +│"
    rows = re.findall(rf"│ (\d) +│{number * 3} (.*?) +│", shown)
    assert [int(row[0]) for row in rows] == [1, 8]
    for devices, textbook, right, unsharded, verdict in rows:
        assert float(right) == pytest.approx(float(unsharded), abs=2e-5)
        assert float(textbook) == pytest.approx(int(devices) * float(unsharded), rel=1e-3)
        assert verdict == ("right" if devices == "1" else f"{devices}.000 times too large")


def check_verdicts(shown: str) -> None:
    wrong = shown[shown.index("textbook: WRONG on {data: 8}; right on {data: 1}") :]
    assert "SW401: " in wrong
    assert "is 8 times what it is on one device: autodiff sums this gradient over 'data'" in wrong
    assert "--> demo_programs.py:" in wrong
    assert "grads = jax.grad(loss)(params, x, y)" in wrong
    assert "\nright: right on {data: 1}, {data: 8}\n" in wrong


def check_deadlock(shown: str) -> None:
    message = shown[shown.index("DeadlockError: ") :]
    assert "psum over 'data', demo_programs.py:" in message


def check_cost(shown: str) -> None:
    number = r" +([\d.]+)"
    columns = f"{number} ms +│{number} x +│{number} MB +│{number} x"
    rows = {name: map(float, row) for name, *row in re.findall(rf"│ (.+?) +│{columns}", shown)}
    assert list(rows) == ["unsharded", "at_once=1", "at_once='auto'"]
    *_, plain_memory, _ = rows.pop("unsharded")
    for limit, (*_, memory, ratio) in zip((0.1, 0.25), rows.values(), strict=True):
        assert memory / plain_memory == pytest.approx(ratio, abs=0.02)
        assert ratio <= limit


def check_traffic(shown: str) -> None:
    report = shown[shown.index("right on {data: 1024}, 1,024 devices") :]
    assert re.search(r"psum  data +1024  .* backward\n +demo_programs.py:\d+: ", report)
    assert "Cost on h200-node, by a model" in report
