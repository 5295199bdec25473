"""The journal: resuming, refusing, and disks that are full, locked or read-only."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise import ShardwiseError
from shardwise._runtime import evaluate as _evaluate
from shardwise._runtime.evaluate import Max, Sum
from shardwise._runtime.evaluate.journal.journal import Journal

from ..optional import because
from ..support import normal
from .helpers import Average, Lazy, devices, evaluate, linear_data, squared_error

W = normal(3)
DATA = linear_data(1003)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "journal.db"


def everything(w, batch, mask):
    loss = squared_error(w, batch)
    return {
        "loss": loss,
        "count": Sum(jnp.ones(loss.shape, jnp.int32)),
        "worst": Max(loss),
        "object": Average.from_values(loss, mask),
    }


def squares(_, batch):
    return batch**2


class Stop(Exception):
    pass


def broken(fn, state, data, path, after, **options):
    """Run until at least so many examples are finished, then break off."""

    def stop(snapshot):
        if snapshot.done >= after:
            raise Stop

    with pytest.raises(Stop):
        _evaluate.evaluate(fn, state, data, journal=path, progress=stop, **options)


@pytest.fixture
def eager(monkeypatch):
    """Snapshots and transactions after every step."""
    from shardwise._base import progress as progress
    from shardwise._runtime.evaluate.journal import journal

    monkeypatch.setattr(progress.CallbackView, "every", 0.0)
    monkeypatch.setattr(journal, "_GROUP_SECONDS", 0.0)


class TestResuming:
    @pytest.mark.parametrize(("before", "after"), [(1, 1), (8, 3), (3, 8)])
    def test_the_same_bits_on_other_devices(self, path, eager, before, after):
        want = evaluate(everything, W, DATA, batch=16, mesh=devices(1))
        broken(everything, W, DATA, path, 400, batch=16, mesh=devices(before))
        got = evaluate(everything, W, DATA, batch=16, mesh=devices(after), journal=path)
        assert got.metrics == want.metrics
        assert 400 <= got.resumed < 1003
        assert got.resumed % 16 == 0

    def test_nothing_finished_is_read_again(self, path, eager):
        broken(lambda _, b: b, None, Lazy(1000), path, 500, batch=10, mesh=devices(1))
        data = Lazy(1000)
        result = evaluate(lambda _, b: b, None, data, batch=10, mesh=devices(1), journal=path)
        steps = [start for start, stop in data.reads if stop - start == 10]
        assert min(steps) == result.resumed
        assert result["mean"] == 499.5

    def test_a_finished_run_computes_nothing(self, path):
        first = evaluate(everything, W, DATA, batch=64, journal=path)
        again = evaluate(everything, W, DATA, batch=64, journal=path)
        assert again.metrics == first.metrics
        assert (again.resumed, again.examples_per_second) == (1003, 0)

    def test_an_iterable_is_drawn_again_and_what_is_finished_is_skipped(self, path, eager):
        def batches():
            for start in range(0, 1003, 30):
                yield {name: array[start : start + 30] for name, array in DATA.items()}

        want = evaluate(everything, W, DATA, batch=16)
        broken(everything, W, batches(), path, 300, batch=16)
        got = evaluate(everything, W, batches(), batch=16, journal=path)
        assert got.metrics == want.metrics
        assert got.resumed >= 300

    def test_an_iterable_of_another_length_is_refused_and_the_journal_stays_whole(self, path):
        x = normal(100)
        want = evaluate(squares, None, iter([x, x]), batch=32, journal=path)
        with pytest.raises(ShardwiseError, match="steps of 200 examples, the data of this run has"):
            evaluate(squares, None, iter([x, x, x]), batch=32, journal=path)
        with pytest.raises(ShardwiseError, match="steps of 200 examples, the data of this run has"):
            evaluate(squares, None, iter([x]), batch=32, journal=path)
        again = evaluate(squares, None, iter([x, x]), batch=32, journal=path)
        assert (again.metrics, again.resumed) == (want.metrics, 200)

    def test_a_chosen_batch_is_taken_from_the_journal(self, path):
        evaluate(everything, W, DATA, batch=48, journal=path)
        assert evaluate(everything, W, DATA, journal=path).batch == 48

    def test_holes_are_filled(self, path):
        want = evaluate(everything, W, DATA, batch=16, journal=path)
        with sqlite3.connect(path) as database:
            database.execute("DELETE FROM steps WHERE start % 48 = 0")
        database.close()
        got = evaluate(everything, W, DATA, batch=16, journal=path)
        assert got.metrics == want.metrics
        assert 0 < got.resumed < 1003


class TestRefusing:
    def refused(self, path, *lines, fn=everything, state=W, data=DATA, batch=16):
        evaluate(everything, W, DATA, batch=16, journal=path)
        with pytest.raises(ShardwiseError, match="it belongs to another run") as caught:
            evaluate(fn, state, data, batch=batch, journal=path)
        message = str(caught.value)
        differing = [line for line in message.splitlines() if line.startswith("    - ")]
        assert len(differing) == len(lines), message
        for line in lines:
            assert f"    - {line}" in message
        assert "delete the file to start over" in message

    def test_another_length(self, path):
        shorter = {name: np.concatenate([a[:500], a[-1:]]) for name, a in DATA.items()}
        evaluate(everything, W, DATA, batch=16, journal=path)
        with pytest.raises(
            ShardwiseError, match=r"length of the data differs: the journal has 1003, this .*501"
        ):
            evaluate(everything, W, shorter, batch=16, journal=path)

    def test_another_content(self, path):
        changed = {"x": DATA["x"], "y": DATA["y"] + 1}
        self.refused(path, "the content of data['y'] differs", data=changed)

    def test_another_batch(self, path):
        evaluate(everything, W, DATA, batch=16, journal=path)
        with pytest.raises(ShardwiseError, match="batch differs: the journal has 16, this run 32"):
            evaluate(everything, W, DATA, batch=32, journal=path)

    def test_another_state(self, path):
        changed = W.copy()
        changed[1] = np.nextafter(changed[1], np.float32(9))
        self.refused(path, "the content of the state differs", state=changed)

    def test_another_shape_of_the_state(self, path):
        evaluate(lambda w, b: b * w.sum(), np.ones(3), np.ones(4), journal=path)
        with pytest.raises(ShardwiseError, match="the shapes of the state differ: the journal has"):
            evaluate(lambda w, b: b * w.sum(), np.ones(4), np.ones(4), journal=path)

    def test_another_function(self, path):
        def other(w, batch, mask):
            return everything(w * 2, batch, mask)

        self.refused(path, "the program of fn differs", fn=other)

    def test_another_set_of_metrics(self, path):
        def other(w, batch, mask):
            found = everything(w, batch, mask)
            return {"loss": found["loss"]}

        self.refused(
            path, "the program of fn differs", "the metrics differ: the journal has", fn=other
        )

    def test_a_constant_that_fn_captured(self, path):
        def fn(scale):
            table = jnp.asarray(np.arange(16, dtype=np.float32) * scale)
            return lambda _, b: b + table

        x = normal(64)
        evaluate(fn(1), None, x, batch=16, journal=path)
        evaluate(fn(1), None, x, batch=16, journal=path)
        with pytest.raises(ShardwiseError, match="the program of fn differs"):
            evaluate(fn(2), None, x, batch=16, journal=path)

    def test_the_fingerprint_does_not_depend_on_the_process(self, path):
        evaluate(everything, W, DATA, batch=16, journal=path)
        code = (
            "from tests.evaluate.test_evaluate_journal import *\n"
            f"r = evaluate(everything, W, DATA, batch=16, journal={str(path)!r})\n"
            "print(r.resumed)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": "7"},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == "1003", done.stderr

    def test_a_journal_of_another_format(self, path):
        with Journal(path) as journal:
            journal.note(format="shardwise evaluate 99")
        with pytest.raises(ShardwiseError, match="its format is 'shardwise evaluate 99'"):
            evaluate(everything, W, DATA, batch=16, journal=path)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (normal(64), -normal(64)),
            (np.array([5], np.int64), np.array([5 + 2**40], np.int64)),
            (np.arange(4, dtype=np.uint8), np.arange(4, dtype=np.uint8)[::-1].copy()),
        ],
    )
    def test_a_state_of_other_signs_upper_bits_or_order(self, path, one, other):
        fn = lambda s, b: b * s[0]  # noqa: E731
        with jax.enable_x64(True):
            evaluate(fn, one, np.ones(8), batch=4, journal=path)
            with pytest.raises(ShardwiseError, match="content of the state differs"):
                evaluate(fn, other, np.ones(8), batch=4, journal=path)

    @pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.jit(f))])
    def test_a_constant_inside_an_inner_function(self, path, wrap):
        def fn(table):
            return lambda _, b: b + wrap(lambda i: table[i])(jnp.int32(1))

        evaluate(fn(jnp.arange(4.0)), None, np.ones(8), batch=4, journal=path)
        with pytest.raises(ShardwiseError, match="program of fn differs"):
            evaluate(fn(jnp.arange(4.0) * 2), None, np.ones(8), batch=4, journal=path)

    @pytest.mark.parametrize("tables", [["users"], ["meta"], ["steps", "meta", "users"]])
    def test_a_database_of_something_else_is_left_alone(self, path, tables):
        with sqlite3.connect(path) as database:
            for table in tables:
                database.execute(f"CREATE TABLE {table} (name TEXT)")
        before = path.read_bytes()
        with pytest.raises(ShardwiseError, match="not a journal"):
            evaluate(squares, None, normal(10), journal=path)
        assert path.read_bytes() == before

    def test_a_damaged_journal(self, path):
        evaluate(squares, None, normal(4000), batch=1, journal=path)
        content = bytearray(path.read_bytes())
        content[8192:] = b"x" * (len(content) - 8192)
        path.write_bytes(bytes(content))
        with pytest.raises(ShardwiseError, match=r"(?s)damaged.*delete the file"):
            evaluate(squares, None, normal(4000), batch=1, journal=path)


class TestDisks:
    def untouched(self, path, message):
        data = Lazy(100)
        with pytest.raises(ShardwiseError, match=message):
            evaluate(lambda _, b: b, None, data, batch=10, journal=path)
        assert not [read for read in data.reads if read[1] - read[0] == 10]

    def test_a_folder_that_is_not_there(self, tmp_path):
        self.untouched(tmp_path / "no" / "journal.db", r"journal '.*': there is no folder '.*no'")

    @pytest.mark.parametrize("folder", [".", "/"])
    def test_a_folder(self, folder):
        self.untouched(folder, f"journal '{folder}': this is a folder")

    def test_a_file_that_is_something_else(self, path):
        path.write_bytes(b"not a database at all" * 100)
        self.untouched(path, "the file is not a journal")

    @pytest.mark.skipif(
        not Path("/sys/kernel").exists(),
        reason=because(
            "A journal on a read-only file system is not tried without /sys", "use Linux"
        ),
    )
    def test_a_read_only_file_system(self):
        self.untouched(Path("/sys/kernel/journal.db"), "cannot be written")

    def test_one_process_at_a_time(self, path):
        with Journal(path):
            self.untouched(path, rf"process {os.getpid()} \(.*python.*\) is writing it")

    def test_a_disk_that_fills_up_on_the_way(self, path, eager, monkeypatch):
        """What was written stays whole, and the next run goes on from there."""
        want = evaluate(everything, W, DATA, batch=8, mesh=devices(1))
        original = Journal._open

        def small(self):
            database = original(self)
            database.execute("PRAGMA max_page_count = 6")
            return database

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_open", small)
            with pytest.raises(ShardwiseError, match=r"(?s)writing failed: .*full.*make room"):
                evaluate(everything, W, DATA, batch=8, mesh=devices(1), journal=path)
        got = evaluate(everything, W, DATA, batch=8, mesh=devices(2), journal=path)
        assert got.metrics == want.metrics
        assert 0 < got.resumed < 1003
