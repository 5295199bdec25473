"""`data_parallel` and `fit` on several processes, through signals, kills and bad input."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import numpy as np

from .launching import KILL, LIMIT, launch, launched, wait_for
from .test_hosts_evaluate import JOBS, alone

TWO = ("-n", 2, "--devices", 1)


def test_rows_of_their_own_are_one_batch(tmp_path, monkeypatch, capsys):
    alone("stepping.py", tmp_path, monkeypatch, capsys)
    code, _, err = launch(*TWO, JOBS / "stepping.py", tmp_path)
    assert code == 0, err
    wanted = json.loads((tmp_path / "steps-1-0.json").read_text())
    for process in (0, 1):
        found = json.loads((tmp_path / f"steps-2-{process}.json").read_text())
        assert found.keys() == wanted.keys()
        for name, value in found.items():
            for got, want in zip(value, wanted[name], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)


def processes_of(launcher: int) -> list[int]:
    """The processes of a launcher, in their order."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except (OSError, ValueError):
                continue
            if parent == launcher and b"shardwise._runtime.launch" in command:
                found.append(int(entry.name))
    return sorted(found)


def logged(folder: Path) -> list[int]:
    """The steps in the log of a training."""
    lines = (folder / "checkpoints" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def finals(out: str) -> list[str]:
    return re.findall(r"final \d (\w+) (?:\d+)", out)


def test_terminated_killed_and_resumed_with_the_same_bits(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    job = JOBS / "fitting.py"
    code, out, err = launch(*TWO, job, whole, 40)
    assert code == 0, err
    wanted = set(finals(out))
    assert len(finals(out)) == 2
    assert len(wanted) == 1
    assert logged(whole) == [*range(1, 41)]

    stored = broken / "checkpoints"
    with launched(*TWO, job, broken, 40, PAUSE="0.1") as process:
        wait_for(lambda: (stored / "5").exists())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 143
    assert err.count("fit: SIGTERM: saved at step") == 1
    saved = int(re.findall(r"saved at step (\d+) of 40", err)[0])
    assert (stored / str(saved)).exists()

    with launched(*TWO, "--restarts", 1, job, broken, 40, PAUSE="0.1") as process:
        wait_for(lambda: (stored / str(saved // 5 * 5 + 10)).exists())
        victim = processes_of(process.pid)[1]
        os.kill(victim, KILL)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert "killed by SIGKILL" in err
    assert "resumes from step" in err
    assert set(finals(out)) == wanted
    assert logged(broken) == [*range(1, 41)]


def test_bad_input_reaches_every_process(tmp_path):
    code, out, err = launch(*TWO, JOBS / "misfits.py", tmp_path)
    assert code == 1
    for process in (0, 1):
        head = rf"^\[{process}\] {process} "
        assert re.search(head + r".*process 1 on .* cannot see what process 0", out, re.M), out
        assert re.search(head + r".*steps is 3 in process 0 and 4 in process 1", out, re.M), out
        assert re.search(head + "begun 3$", out, re.M), out
    assert err.count("an epoch ends after 4 on all") == 1, err
    last = err.rpartition("shardwise launch: ")[2]
    assert "process 1 on" in last
    assert "they ended after 7" in err


def test_the_example(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "many_hosts.py"
    code, out, err = launch(*TWO, example, tmp_path / "run")
    assert code == 0, err
    assert re.findall(r"^\[0\] 0\.\d+ after 60 steps, on 2 devices$", out, re.M), out
    assert out.count("after 60 steps") == 1
