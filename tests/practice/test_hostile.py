"""Strangers' code: the judge answers with a reason, within its limits, and is not fooled.

A few attacks of each class are judged here; `python -m tests.practice.hostile` judges them all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shardwise import ShardwiseError
from shardwise._cli import marking
from shardwise._practice import compare, diagnose, looking
from shardwise._practice.exercise import find, load_all
from shardwise._practice.judge import Judge, read
from shardwise._practice.sandbox import host, program, wire
from shardwise._practice.sandbox.hooks import Observations
from shardwise._practice.sandbox.host import Limits, Sandbox
from shardwise._practice.sandbox.walls import ALL, Walls, landlock, seccomp
from shardwise._practice.sandbox.walls.view import ReadablePaths
from shardwise._practice.text import visible

from ..patience import HANGS
from .hostile import attacks, forging, inside
from .hostile.__main__ import KINDS, World, faults, judge_class

ENDLESS = Limits(seconds=20, cpu=3, memory=1 << 30)
PATIENT = Limits(seconds=900, cpu=600, memory=1 << 30)
SOLUTION = find(load_all(), "shard_map_psum").solution
LINUX = pytest.mark.skipif(
    not Walls(landlock=landlock.version(), seccomp=seccomp.supported()).closed,
    reason="the walls are Linux's: seccomp and Landlock",
)
STOPPED = {"too-slow", "too-much-memory", "too-much-output", "ends-the-process", "raises"}
"""Which limit is met first depends on the machine: each of them is an answer."""


@pytest.fixture(scope="module")
def strict():
    """A judge with a small limit of memory, and time for any machine."""
    with Judge(PATIENT, look=False, confirming=True) as made:
        yield made


@pytest.fixture(scope="module")
def hasty():
    """A judge with small limits of time, for what may never end."""
    with Judge(ENDLESS, look=False) as made:
        yield made


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """What the attacks are after."""
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


def judged(judge: Judge, source: str, file: str = "mine.py"):
    one = dataclasses.replace(find(load_all(), "shard_map_psum"), meshes=({"data": 1}, {"data": 2}))
    return judge.judge(one, source, file, seed=5)


ATTACKS = {
    **{name: attacks.FILES[name] for name in ("read the solution", "solution in any file")},
    **{name: attacks.FILES[name] for name in ("solution compiled", "a secret", "environment")},
    **{name: attacks.WRITES[name] for name in ("a file by rename", "a secret made unreadable")},
    **{name: attacks.WRITES[name] for name in ("the disk filled", "the judge poisoned")},
    **{name: attacks.PROCESSES[name] for name in ("a private fork exec", "clone3 by number")},
    **{name: attacks.PROCESSES[name] for name in ("kill by owning a pipe", "kill the judge")},
    **{name: attacks.PROCESSES[name] for name in ("limits of the parent", "python anew")},
    **{name: attacks.NETWORK[name] for name in ("tcp", "from a callback")},
    **{
        name: forging.FORGED[name]
        for name in ("right numbers and forged facts", "the notes filled")
    },
    **{name: forging.FORGED[name] for name in ("a shape without end", "facts that are numbers")},
    **{
        name: forging.FORGED[name]
        for name in ("an answer that is deep", "a list that holds itself")
    },
    **{name: forging.TERMINAL[name] for name in ("escapes printed", "escapes in an error")},
    **{
        name: inside.PROGRAMS[name]
        for name in ("collectives whose result is not used", "scopes named after collectives")
    },
    **{name: inside.PYTHON[name] for name in ("deep folders", "every call traced")},
}


@LINUX
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nowhere(name, strict, world):
    found = judged(strict, world.filled(ATTACKS[name], os.getpid()))
    assert list(faults(found.to_dict())) == [], found.text()
    assert world.state() == world.before
    assert world.heard == []


@pytest.mark.parametrize(
    "name", ["an endless loop", "a list without end", "a flood", "an exit", "a crash", "too deep"]
)
def test_a_run_that_is_stopped_says_so(name, hasty):
    found = judged(hasty, attacks.LIMITS[name])
    assert found.pitfall is not None, found.text()
    assert found.pitfall.name in STOPPED, found.text()
    assert found.pitfall.text


@pytest.mark.parametrize("name", forging.SOURCES)
def test_a_file_that_is_hard_to_read_has_a_verdict(name, hasty, tmp_path):
    file = tmp_path / "mine.py"
    file.write_bytes(forging.SOURCES[name])
    try:
        text = read(file)
    except ShardwiseError:
        return  # as the test of what is no file has it
    found = judged(hasty, text)
    assert not found.ok
    assert found.reason or found.pitfall


@LINUX
@pytest.mark.parametrize(
    "without",
    [(), ("unshare",), ("unshare", "bubblewrap"), ("landlock",), ("unshare", "landlock")],
    ids=["all", "bubblewrap", "Landlock and seccomp", "no Landlock", "bubblewrap, no Landlock"],
)
def test_each_set_of_walls_is_enough(without, world):
    with Judge(PATIENT, look=False, without=without) as made:
        if made.sandbox.warning():
            pytest.skip("namespaces are not allowed here")
        if without[:1] == ("unshare",) and shutil.which("bwrap") and len(without) == 1:
            assert made.sandbox.walls.namespaces == "bubblewrap"
        for name in ("read the solution", "a classmate by cwd of the judge"):
            found = judged(made, world.filled(attacks.FILES[name], os.getpid()))
            assert list(faults(found.to_dict())) == [], found.text()
        found = judged(made, world.filled(attacks.WRITES["a file outside"], os.getpid()))
        assert world.state() == world.before
        found = judged(made, attacks.PROCESSES["memory of the parent"])
        assert list(faults(found.to_dict())) == [], found.text()
        found = judged(made, SOLUTION)
        assert found.ok, found.text()


def test_a_class_is_not_judged_without_walls():
    with Sandbox(without=("bubblewrap", "unshare", "landlock")) as sandbox:
        with pytest.raises(ShardwiseError, match=r"cannot wall off.*\n.*\n.*--unsafe"):
            sandbox.require_walls()
        assert "judge only your own" in sandbox.warning()
    with Sandbox(without=ALL) as sandbox:
        sandbox.require_walls()
        assert "without walls" in sandbox.warning()


def test_the_exercises_are_out_of_sight():
    view = ReadablePaths.of_this_python()
    read, around = view.parts()
    for exercise in load_all():
        assert not view.covers(str(exercise.folder / "solution.py"))
        assert not any(str(exercise.folder).startswith(path + os.sep) for path in read)
    assert view.covers(json.__file__)
    assert view.covers(sys.modules["numpy"].__file__ or "")
    assert all(Path(path).is_dir() for path in around)


def test_threads_that_never_end_do_not_keep_the_judge(strict):
    threads = "import threading, time\nthreading.Thread(target=lambda: time.sleep(999)).start()\n"
    assert judged(strict, threads + SOLUTION).ok


ADDRESSES = """
import resource, threading
threading.stack_size(1 << 20)
def addresses():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before, together = addresses(), threading.Barrier(17)
def work():
    block = bytes(10_000)
    together.wait()
for _ in range(16):
    threading.Thread(target=work, daemon=True).start()
print(addresses() - before)
"""


@LINUX
def test_threads_reserve_no_addresses_but_their_stacks():
    """The limit of memory counts addresses, and XLA starts more threads on more cores."""
    ran = subprocess.run(
        [sys.executable, "-c", ADDRESSES],
        env=host._environment(),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=True,
    )
    assert int(ran.stdout) < 16 * (16 << 20)


def test_the_judge_is_whole_after_all_this(strict):
    judged(strict, attacks.LIMITS["an exit"])
    # Should the process that forks be gone, the next run starts it again.
    process = strict.sandbox._process
    assert process is not None
    os.killpg(process.pid, 9)
    process.wait()
    assert judged(strict, SOLUTION).ok


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Judge(PATIENT, look=False) as made:
        found = judged(made, SOLUTION)
        assert found.ok, found.text()
        assert [list(folder.iterdir()) for folder in tmp_path.iterdir()] == [[]]
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_mark_or_an_encoding_is_read_as_python_reads_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read(file) == "x = 1\n"
    file.write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    assert read(file).endswith("x = 'é'\n")


@pytest.mark.parametrize("encoding", [b"punycode", b"idna", b"unicode_escape", b"bz2"])
def test_an_encoding_that_is_slow_or_no_text_is_not_decoded(tmp_path, encoding):
    """Half a million letters of punycode take minutes."""
    file = tmp_path / "mine.py"
    file.write_bytes(b"# coding: " + encoding + b"\n# x-99999a" + b"a" * (1 << 19))
    with pytest.raises(ShardwiseError, match=r"it cannot be read .*encoding"):
        read(file)


@pytest.mark.parametrize("kind", ["pipe", "folder", "zeros", "large"])
def test_what_is_no_file_is_not_waited_for(tmp_path, kind):
    place = tmp_path / "mine.py"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "zeros":
        place.symlink_to("/dev/zero")
    else:
        place.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ShardwiseError, match="it cannot be read"):
        read(place)


def test_control_characters_are_shown():
    assert visible("a\x1b[2Jb\r\x9b\u202e\ud800\0\tc\n") == (
        "a\\x1b[2Jb\\r\\x9b\\u202e\\ud800\\x00\tc\n"
    )
    assert visible("Größe 数 ✓") == "Größe 数 ✓"


KEYS = ["runs", "error", "value", "facts", "program", "mesh", "array", "dtype", "shape", "list"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_no_answer_raises_in_the_judge(data):
    found = wire.read(json.dumps(data).encode(), 1)
    assert found is None or isinstance(found[0], dict)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), JSON)
def test_no_part_of_an_answer_raises_in_the_judge(raw, part):
    assert wire.read(raw, 1) is None or raw.strip().startswith(b"{")
    for key in ("value", "error", "facts", "program", "findings", "inspection"):
        run = {"value": {"none": True}, "facts": Observations().facts(), key: part}
        found = wire.read(json.dumps({"runs": [run]}).encode(), 1)
        assert found is None or "facts" in found[0]


def test_an_answer_of_our_own_is_read():
    run = {"value": wire.pack({"a": [1.5, None]}), "facts": Observations().facts()}
    found = wire.read(json.dumps({"runs": [run]}).encode(), 1)
    assert found is not None
    assert found[0]["value"]["a"][0] == 1.5
    assert wire.read(json.dumps({"runs": [run]}).encode(), 2) is None


ANSWER = {
    "value": {"dict": {"a": wire.pack([1.5, None, "x"])}},
    "error": {"type": "E", "message": "m", "kinds": ["E"], "line": 3},
    "facts": {
        "shard_maps": [
            {
                "mesh": {"data": 2},
                "split": ["data"],
                "checked": True,
                "rows": [{"shape": [4], "axes": ["data"]}],
                "collectives": [
                    {
                        "name": "psum",
                        "axes": ["data"],
                        "line": 3,
                        "backward": False,
                        "differs": ["data"],
                        "shape": [],
                    }
                ],
            }
        ],
        "inits": [{"module": "Dense", "shape": [4, 3], "line": 3}],
        "calls": [{"module": "Dense", "shape": [4, 3], "line": 3}],
        "optimizers": [{"line": 3}],
        "updates": [{"line": 3, "grads": [[1.0, 2.0], [3.0]]}],
        "vmaps": 1,
    },
    "findings": [{"certain": True, "where": {"line": 3}, "fix": {"description": "insert a psum"}}],
    "inspection": {
        "mesh": {"data": 2},
        "steps": [
            {
                "kind": "value",
                "where": {"line": 3},
                "name": "y",
                "operation": "add",
                "differs_over": ["data"],
                "backward": False,
                "held": [
                    {"devices": [{"data": 0}], "values": [1.0, 2.0]},
                    {"devices": [{"data": 1}], "first": [1.0], "min": 0.0, "max": 9.0},
                ],
            }
        ],
    },
}
ODD = (
    [],
    {},
    None,
    True,
    -1,
    1e308,
    math.nan,
    math.inf,
    "",
    "\x1b[2J",
    [[]],
    [{}],
    {"a": []},
    10**30,
)


def mutations(data):
    """Yield copies of an answer with each of its parts removed, or replaced by something odd."""
    parts = data.items() if isinstance(data, dict) else enumerate(data)
    for key, part in parts:
        for odd in ODD:
            changed = data.copy()
            changed[key] = odd
            yield changed
        without = data.copy()
        del without[key]
        yield without
        if isinstance(part, dict | list):
            for inner in mutations(part):
                changed = data.copy()
                changed[key] = inner
                yield changed


def test_no_mutation_of_an_answer_raises_in_the_judge():
    """Each answer is rejected, or everything that the judge does with one can be done with it."""
    exercises = [(one, one.task) for one in load_all()]
    notices = [(one, task) for one, task in exercises if hasattr(task, "notice")]
    assert wire.read(json.dumps({"runs": [ANSWER]}).encode(), 1) is not None
    accepted = 0
    for answer in mutations(ANSWER):
        read_ = wire.read(json.dumps({"runs": [answer]}).encode(), 1)
        if read_ is None:
            continue
        (found,) = read_
        accepted += 1
        looking.seen_at(found, 0)
        looking.fix_in(found)
        looking.seen_in_loop(found["facts"], {"data": 2})
        for expected in ({"a": np.ones(2)}, np.ones(3), {"a": [1.5, None]}):
            if "value" in found and compare.difference(found["value"], expected):
                compare.shapes(found["value"], expected)
                compare.shown(found["value"], expected)
                compare.factor(found["value"], expected)
        if "error" in found:
            diagnose.of_error(found["error"], "f")
        facts = {**found["facts"], "finished": True, "source": ""}
        for exercise, task in notices:
            sizes = exercise.meshes[-1]
            task.notice(facts, dict(sizes), *task.inputs(np.random.default_rng(0), dict(sizes)))
        for exercise, _ in exercises:
            diagnose.of_requirements(exercise, facts, exercise.meshes[-1])
    assert accepted > 100


def exported(function):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharded = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("data"))
    made = jax.export.export(jax.jit(lambda x: function(sharded, x), keep_unused=True))
    return made(jnp.ones(4)).mlir_module()


def used_in(text):
    return [
        (one["split"], {each["name"] for each in one["collectives"]})
        for one in program.facts(text)["shard_maps"]
    ]


def test_only_what_the_result_depends_on_counts_as_used():
    def total(y):
        return jax.lax.psum(y.sum(), "data")

    def in_a_loop(y):
        return jax.lax.fori_loop(0, 3, lambda _, c: jax.lax.psum(c, "data") / 2, total(y))

    assert used_in(exported(lambda sharded, x: sharded(total, out_specs=P())(x))) == [
        (["data"], {"psum"})
    ]
    assert used_in(exported(lambda sharded, x: sharded(in_a_loop, out_specs=P())(x))) == [
        (["data"], {"psum"})
    ]

    def not_used(sharded, x):
        sharded(total, out_specs=P())(x)
        return x.sum()

    assert used_in(exported(not_used)) == []

    def named_so(sharded, x):
        with jax.named_scope("stablehlo.all_reduce"):
            return sharded(lambda y: y * 2, out_specs=P("data"))(x)

    assert used_in(exported(named_so)) == [(["data"], set())]


def test_a_program_that_calls_native_code_is_not_run():
    text = exported(lambda sharded, x: x.sum())
    call = "stablehlo.custom_call @xla_ffi_python_cpu_callback() : () -> ()\n    return"
    with pytest.raises(ValueError, match="native code: xla_ffi_python_cpu_callback"):
        program.facts(text.replace("return", call, 1))


def test_a_class_is_marked_whatever_its_folders_are(tmp_path, capsys):
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deep)
        above, deep = deep, os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(above)
    os.close(deep)
    (tmp_path / "someone").mkdir()
    (tmp_path / "someone" / "shard_map_psum.py").write_text("")
    found = [(who, one.name) for who, one, _ in marking._solutions(tmp_path, load_all())]
    assert found == [("someone", "shard_map_psum")]
    assert "cannot be listed" in capsys.readouterr().err
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_a_spreadsheet_takes_no_cell_for_a_formula():
    text = marking.as_csv({"who": "=1+1", "why": "@x", "line": -3, "file": "a-b"})
    assert text.splitlines()[1] == "'=1+1,'@x,-3,a-b"


@LINUX
@pytest.mark.rare
@pytest.mark.skipif(
    not os.environ.get("SHARDWISE_HOSTILE"),
    reason="takes ten minutes: SHARDWISE_HOSTILE=1, or python -m tests.practice.hostile",
)
def test_the_whole_list_gets_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_SECRET", "CANARY-7c1f")
    world = World(tmp_path / "world")
    counts, failures = judge_class(world, list(KINDS), (), 30)
    world.close()
    assert failures == []
    assert counts.total() > 300
