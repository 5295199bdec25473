"""Small steps from memory to a CPU device go through no thread, and are what they would be."""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import shardwise as sw
from shardwise._runtime.evaluate.data import stream


def loss(scale, batch):
    return (batch["x"] * scale).sum(-1) + batch["y"]


def make_data(rows):
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return {"x": x / 7, "y": np.arange(rows, dtype=np.int32) % 5}


def meshes():
    return [Mesh(np.array(jax.devices()[:n]), ("data",)) for n in (1, 4)]


@pytest.fixture
def started(monkeypatch):
    """The names of the threads that were started."""
    names = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: (names.append(self.name), start(self))[1]
    )
    return names


@pytest.mark.parametrize("mesh", meshes(), ids=lambda mesh: f"{mesh.size} devices")
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_the_bits_are_those_of_the_threads(mesh, batch, monkeypatch, started):
    data = make_data(100)
    options = {"batch": batch, "mesh": mesh, "progress": False}
    found = sw.evaluate(loss, 1.5, data, **options)
    assert not {"shardwise-reader", "shardwise-transfer"} & {*started}
    monkeypatch.setattr(stream, "SMALL", 0)
    want = sw.evaluate(loss, 1.5, data, **options)
    assert "shardwise-reader" in started
    assert found["mean"] == want["mean"]
    assert found.count == want.count == 100


def test_what_has_to_be_waited_for_is_read_by_a_thread(started, tmp_path):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (40, 3))
    x[:] = 1
    sw.evaluate(lambda s, b: b.sum(-1) * s, 2.0, x, batch=8, progress=False)
    assert "shardwise-reader" in started


def test_a_value_that_does_not_fit_is_refused_with_its_step():
    x = np.zeros((40, 2), np.int64)
    x[33] = 1 << 40
    with pytest.raises(sw.ShardingError, match="does not fit int32") as caught:
        sw.evaluate(lambda s, b: b.sum(-1), None, x, batch=8, progress=False)
    assert "putting step 4 (examples 32 to 39)" in caught.value.__notes__[0]


def test_transfers_may_be_guarded():
    with jax.transfer_guard("disallow"):
        found = sw.evaluate(loss, 1.0, make_data(20), batch=8, progress=False, mesh=meshes()[0])
    assert found.count == 20
