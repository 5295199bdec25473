"""`evaluate` on several processes: the same bits, whole, broken off and resumed."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np

from .launching import launch, script

JOBS = Path(__file__).parent / "jobs"


def alone(job: str, folder: Path, monkeypatch, capsys) -> str:
    """What a job prints in this process."""
    monkeypatch.setattr(sys, "argv", [job, str(folder)])
    capsys.readouterr()
    runpy.run_path(str(JOBS / job), run_name="__main__")
    return capsys.readouterr().out


def test_every_process_has_the_bits_of_one(tmp_path, monkeypatch, capsys):
    whole = tmp_path / "whole"
    whole.mkdir()
    alone("evaluating.py", whole, monkeypatch, capsys)
    code, _, err = launch("-n", 2, "--devices", 2, JOBS / "evaluating.py", tmp_path)
    assert code == 0, err
    wanted = json.loads((whole / "result-1-0.json").read_text())
    for process in (0, 1):
        found = json.loads((tmp_path / f"result-2-{process}.json").read_text())
        assert found == wanted


def test_broken_off_on_two_and_resumed_on_four_and_on_one(tmp_path, monkeypatch, capsys):
    whole = tmp_path / "whole"
    whole.mkdir()
    value, *_ = alone("resuming.py", whole, monkeypatch, capsys).split()
    job = (JOBS / "resuming.py", tmp_path)
    code, _, err = launch("-n", 2, "--devices", 1, *job, BREAK_AT="2200")
    assert code == 1
    last = err.rpartition("shardwise launch: ")[2]
    assert "process 1 on" in last
    assert "example 2200 is gone" in last
    code, out, err = launch("-n", 4, "--devices", 1, *job)
    assert code == 0, err
    rows = [line.partition("] ")[2] for line in out.splitlines() if "0x" in line]
    assert rows == [f"{value} 3000 True 4"] * 4
    again = alone("resuming.py", tmp_path, monkeypatch, capsys)
    assert again.split() == [value, "3000", "True", "1"]


def test_the_command_line_prints_one_result(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.float32))
    script(tmp_path, "def fn(state, batch): return batch * 2", "model.py")
    command = script(tmp_path, "from shardwise._cli import main; main()", "command.py")
    code, out, err = launch(
        "-n", 2, "--devices", 1, command, "evaluate", f"{tmp_path}/model.py:fn",
        "--data", tmp_path / "x.npy", "--batch", 8,
    )  # fmt: skip
    assert code == 0, err
    assert out.count("mean  99") == 1
    assert "on 2 devices of 2 processes" in out
