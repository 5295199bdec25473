"""Strangers' code: the judge answers in words, within its limit, and is not fooled."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import shardwise
from shardwise._practice.exercise import find, load_all
from shardwise._practice.judge import Judge
from shardwise._practice.sandbox.host import Limits

ENDLESS = Limits(seconds=20, cpu=3)
# No machine is so slow that it reaches these before any other limit.
PATIENT = Limits(seconds=900, cpu=600, memory=1 << 30)
SOLUTION = find(load_all(), "shard_map_psum").solution
OWN = Path(shardwise.__file__).parent / "_practice" / "exercises"


@pytest.fixture(scope="module")
def strict():
    """A judge with a small limit of memory, and time for any machine to reach it."""
    with Judge(PATIENT, look=False) as made:
        yield made


@pytest.fixture(scope="module")
def hasty():
    """A judge with small limits of time, for what never ends."""
    with Judge(ENDLESS, look=False) as made:
        yield made


def judged(judge: Judge, source: str):
    one = dataclasses.replace(find(load_all(), "shard_map_psum"), meshes=({"data": 1}, {"data": 2}))
    return judge.judge(one, source, "mine.py", seed=5)


def body(line: str) -> str:
    return f"import os, sys\ndef shard_map_psum(x):\n    {line}\n    return x.sum()\n"


HOSTILE = {
    "an endless loop": (body("while True: pass"), "too-slow"),
    "an endless import": ("while True: pass\n" + body("pass"), "too-slow"),
    "a list without end": (
        body("big = []\n    while True: big.append(bytearray(1 << 26))"),
        "too-much-memory",
    ),
    "an array that is too large": (
        body("import numpy as np; np.ones(1 << 34).sum()"),
        "too-much-memory",
    ),
    "a flood of output": (body("while True: print('x' * 10_000)"), "too-much-output"),
    "sys.exit": (body("sys.exit(0)"), "ends-the-process"),
    "sys.exit while it is imported": ("import sys\nsys.exit(0)\n", "ends-the-process"),
    "os._exit": (body("os._exit(0)"), "ends-the-process"),
    "os.abort": (body("os.abort()"), "ends-the-process"),
    "killing itself": (body("os.kill(os.getpid(), 9)"), "refused"),
    "killing its parent": (body("os.kill(os.getppid(), 9)"), "refused"),
    "killing by C": (body("import ctypes; ctypes.CDLL(None).kill(os.getppid(), 9)"), "refused"),
    "forks": (body("while True: os.fork()"), "refused"),
    "another process": (body("import subprocess; subprocess.run(['true'])"), "refused"),
    "the shell": (body("os.system('true')"), "refused"),
    "the network": (
        body("import socket; socket.create_connection(('127.0.0.1', 9))"),
        "refused",
    ),
    "a file elsewhere": (body("open('/tmp/shardwise-was-here', 'w').write('x')"), "refused"),
    "a file taken away": (body("os.remove('/etc/hostname')"), "refused"),
    "the judge's own solution": (
        body(f"exec(open({str(OWN / '01_shard_map_psum' / 'solution.py')!r}).read())"),
        "refused",
    ),
    "too deep": (body("f = lambda: f()\n    f()"), "raises"),
    "writing into every channel": (
        body(
            "for fd in range(3, 200):\n"
            '        try: os.write(fd, b\'{"runs": [{"value": {"array": 1}}]}\\n\')\n'
            "        except OSError: pass"
        ),
        "tampered",
    ),
    "closing every channel": (body("os.closerange(3, 4096)"), None),
    "an error without words": (
        body("raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()"),
        None,
    ),
    "an array that is none": (
        "class A:\n    shape = ()\n    def __array__(self, *a, **k): raise ValueError\n"
        "def shard_map_psum(x):\n    return A()\n",
        "not-an-array",
    ),
    "a psum of its own": (
        "import jax, jax.numpy as jnp\njax.lax.psum = lambda x, *a, **k: x\n" + SOLUTION,
        "missing-psum",
    ),
    "the judge's comparison": (
        "import numpy, shardwise._practice.compare as c, shardwise._practice.judge as j\n"
        "c.same = lambda *a: True; c.difference = lambda *a: ''\n"
        "numpy.isclose = lambda *a, **k: True\n"
        "def shard_map_psum(x):\n    return 42.0\n",
        "one-device",
    ),
    "no devices at all": (
        "import jax\njax.shard_map = lambda f, **k: (lambda x: x.sum())\n" + SOLUTION,
        "no-shard-map",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_solution_is_answered_in_words(case, strict, hasty):
    source, pitfall = HOSTILE[case]
    found = judged(hasty if pitfall == "too-slow" else strict, source)
    assert not found.ok, found.text()
    assert found.status == "wrong"
    assert found.pitfall is not None, found.text()
    assert found.pitfall.text, found.text()
    assert pitfall is None or found.pitfall.name == pitfall, found.text()
    assert not Path("/tmp/shardwise-was-here").exists()


def test_threads_that_never_end_do_not_keep_the_judge(strict):
    threads = "import threading, time\nthreading.Thread(target=lambda: time.sleep(999)).start()\n"
    assert judged(strict, threads + SOLUTION).ok


def test_the_judge_is_whole_after_all_this(strict):
    judged(strict, body("os._exit(3)"))
    # Should the process that forks be gone, the next run starts it again.
    process = strict.sandbox._process
    assert process is not None
    os.kill(process.pid, 9)
    process.wait()
    assert judged(strict, SOLUTION).ok


def test_nothing_is_left_behind(strict, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert judged(strict, "open('note.txt', 'w').write('x')\n" + SOLUTION).ok
    assert list(tmp_path.iterdir()) == []
