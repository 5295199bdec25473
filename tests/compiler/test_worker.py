"""The process that compiles: kept, ended with its parent, and clear about what went wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import jax
import jax.numpy as jnp
import pytest
from jax import P

import shardwise as sw
from shardwise._analysis.compiler import worker

from ..explain.support import shaped
from ..patience import HANGS


def explained(**more):
    return sw.explain(
        lambda x: jnp.sin(x).sum(), shaped(64), mesh=sw.mesh(data=8), in_specs=P("data"), **more
    )


def process():
    return worker._kept[0].process


def test_it_is_kept_for_the_next_call_whatever_the_mesh():
    explained()
    first = process().pid
    larger = sw.explain(lambda x: x.sum(), shaped(64), mesh=sw.mesh(data=32), in_specs=P("data"))
    assert process().pid == first
    assert larger.collectives[0].group_size == 32


def test_a_process_that_was_killed_is_named_and_replaced(monkeypatch):
    explained()
    first = process()
    monkeypatch.setattr(
        Connection, "send", lambda *_: (os.kill(first.pid, signal.SIGKILL), first.wait())
    )
    with pytest.raises(
        sw.ShardwiseError, match=r"ended for lack of memory, most likely[\s\S]*smaller mesh"
    ):
        explained()
    monkeypatch.undo()
    assert explained().collectives
    assert process().pid != first.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has prlimit")
def test_a_process_without_memory_says_so():
    explained()
    resource.prlimit(process().pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))
    with pytest.raises(sw.ShardwiseError, match=r"lack of memory[\s\S]*smaller mesh"):
        sw.explain(lambda x: x.sum(), shaped(512), mesh=sw.mesh(data=512), in_specs=P("data"))
    assert explained().collectives


def test_time_is_bounded(monkeypatch):
    monkeypatch.setenv(worker.SECONDS, "0.000001")
    with pytest.raises(
        sw.ShardwiseError, match=r"did not finish within 1e-06 seconds[\s\S]*compile=False"
    ):
        explained()
    assert worker._kept == []
    monkeypatch.setenv(worker.SECONDS, "soon")
    with pytest.raises(sw.ShardwiseError, match="it is 'soon'"):
        explained()


CALLER = """
import os, signal, jax.numpy as jnp, numpy as np, shardwise as sw
from jax import P
sw.explain(lambda x: x.sum(), np.zeros(64, np.float32), mesh=sw.mesh(data=8), in_specs=P("data"))
from shardwise._analysis.compiler import worker
print(worker._kept[0].process.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_it_ends_with_the_process_that_started_it(end):
    done = subprocess.run(
        [sys.executable, "-c", CALLER.format(end=end)], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout.strip())
    until = time.monotonic() + HANGS
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_compile_is_one_of_three(given):
    with pytest.raises(sw.ShardwiseError, match='compile is "auto", True or False'):
        explained(compile=given)


def test_a_collective_that_cpus_lack_is_named():
    mesh = sw.mesh(data=4)
    body = lambda x: jax.lax.pbroadcast(x, ("data",), 0)  # noqa: E731
    step = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    with pytest.raises(
        sw.ShardwiseError, match="primitive 'pbroadcast' not found for platform cpu"
    ):
        sw.explain(step, shaped(8), compile=True)
    moved = sw.explain(lambda x: jnp.sin(step(x)).sum(), shaped(8), mesh=mesh)
    assert [use.name for use in moved.collectives] == ["pbroadcast"]
    assert any("it was not compiled" in note for note in moved.notes)
