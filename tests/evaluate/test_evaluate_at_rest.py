"""Journals that are damaged or gone, signals, and what is said of data that does not fit."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise import ShardingError, ShardwiseError
from shardwise._runtime import evaluate as _evaluate

from ..optional import because
from ..patience import HANGS
from .helpers import Lazy, devices, evaluate

ROOT = Path(__file__).parents[2]


def identity(_, batch):
    return batch


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "journal.db"


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("rows = -5", "it is of -5 examples"),
            ("rows = 9", "checksum does not match"),
            ("rows = 'x'", "values of other types"),
            ("batch = 0", "at a batch of 0"),
            ("payload = zeroblob(length(payload))", "checksum does not match"),
            ("payload = 3", "values of other types"),
            ("start = 5", "checksum does not match"),
            ("start = 995", "it ends at 1005 of 1000 examples"),
            ("crc = 0", "checksum does not match"),
        ],
    )
    def test_a_damaged_row_is_told_and_computed_again(self, path, change, words):
        data = np.arange(1000, dtype=np.float32)
        want = evaluate(identity, None, data, batch=10, journal=path)
        with sqlite3.connect(path) as database:
            database.execute(f"UPDATE steps SET {change} WHERE start = 500")
        database.close()
        with pytest.warns(UserWarning, match="a row is damaged") as told:
            got = evaluate(identity, None, data, batch=10, journal=path)
        assert words in str(told[0].message)
        assert got.metrics == want.metrics
        assert (got.count, got.resumed) == (1000, 990)
        assert got.notes == ("1 damaged rows of the journal were computed again",)
        again = evaluate(identity, None, data, batch=10, journal=path)
        assert again.resumed == 1000

    @pytest.mark.parametrize(
        "change",
        [
            "DELETE FROM meta WHERE key = 'fingerprint'",
            "UPDATE meta SET value = '{' WHERE key = 'fingerprint'",
            "UPDATE meta SET value = '[]'",
            "UPDATE meta SET key = 'fingerprinu' WHERE key = 'fingerprint'",
            "UPDATE meta SET value = '\"shardwise evaluate 9\"' WHERE key = 'format'",
            "DROP TABLE steps",
            "ALTER TABLE steps RENAME COLUMN payload TO paylobd",
            "ALTER TABLE meta ADD COLUMN more",
        ],
    )
    def test_other_damage_is_named(self, path, change):
        evaluate(identity, None, np.ones(100, np.float32), batch=10, journal=path)
        with sqlite3.connect(path) as database:
            database.execute(change)
        database.close()
        with pytest.raises(ShardwiseError, match=r"journal '.*': (it|the file) (is|has|belongs)"):
            evaluate(identity, None, np.ones(100, np.float32), batch=10, journal=path)

    def test_a_row_of_another_run_does_not_fit(self, path, tmp_path):
        """Two runs of alike rows: the checksum begins with the fingerprint of the run."""
        other = tmp_path / "other.db"
        evaluate(identity, None, np.zeros(100, np.float32), batch=10, journal=other)
        evaluate(identity, None, np.ones(100, np.float32), batch=10, journal=path)
        with sqlite3.connect(path) as database:
            database.execute("ATTACH ? AS other", [str(other)])
            database.execute("DELETE FROM steps WHERE start = 50")
            database.execute("INSERT INTO steps SELECT * FROM other.steps WHERE start = 50")
        database.close()
        with pytest.warns(UserWarning, match="from example 50 on: its checksum does not match"):
            got = evaluate(identity, None, np.ones(100, np.float32), batch=10, journal=path)
        assert got["mean"] == 1.0

    def test_a_journal_that_goes_away_is_told(self, path, monkeypatch):
        from shardwise._base import progress as _progress
        from shardwise._runtime.evaluate.journal import journal

        monkeypatch.setattr(_progress.CallbackView, "every", 0.0)
        monkeypatch.setattr(journal, "_GROUP_SECONDS", 0.0)

        def remove(snapshot):
            path.unlink(missing_ok=True)

        with pytest.raises(ShardwiseError, match="was deleted or moved while the run wrote it"):
            _evaluate.evaluate(identity, None, Lazy(1000), batch=10, journal=path, progress=remove)


@pytest.mark.usefixtures("interruptible")
class TestSignals:
    def interrupted(self, data, path, signum, capsys, monkeypatch):
        from shardwise._base import progress as _progress

        monkeypatch.setattr(_progress.CallbackView, "every", 0.0)
        end = KeyboardInterrupt if signum == signal.SIGINT else SystemExit
        sent = []

        def send(snapshot):
            if snapshot.done >= 300 and not sent:
                sent.append(snapshot.done)
                signal.raise_signal(signum)

        with pytest.raises(end):
            _evaluate.evaluate(
                identity, None, data, batch=10, mesh=devices(2), journal=path, progress=send
            )
        return capsys.readouterr().err

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_what_is_finished_is_recorded_and_told(self, path, signum, capsys, monkeypatch):
        said = self.interrupted(Lazy(1000), path, signum, capsys, monkeypatch)
        name = signal.Signals(signum).name
        assert said.startswith(f"evaluate: {name}: ")
        assert "of 1000 examples are in the journal" in said
        assert "The same call resumes from there." in said
        result = sw.evaluate(identity, None, Lazy(1000), batch=10, journal=path)
        assert result.resumed == int(said.split()[2])
        assert result["mean"] == 499.5
        assert "evaluate: resumes: " in capsys.readouterr().err

    def test_without_a_journal_nothing_is_kept(self, capsys, monkeypatch):
        said = self.interrupted(Lazy(1000), None, signal.SIGTERM, capsys, monkeypatch)
        assert "Nothing was recorded: journal=PATH (--journal PATH) records finished steps." in said

    def test_a_signal_during_the_compilation_waits_for_it(self, tmp_path):
        """JAX leaves the wait for its compiler, which dies if the process ends meanwhile."""
        code = """
import os, signal, sys, threading
import jax.numpy as jnp, numpy as np, shardwise as sw

main = threading.main_thread().ident

def send():
    while sys._current_frames()[main].f_globals["__name__"] != "jax._src.compiler":
        pass
    os.kill(os.getpid(), signal.SIGINT)

def long(_, x):
    if not watch.is_alive():
        watch.start()
    for k in range(150):
        x = jnp.sort(jnp.sin(x) + k)
    return x

watch = threading.Thread(target=send)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    sw.evaluate(long, None, np.ones(64, np.float32), batch=64, journal=sys.argv[1])
except KeyboardInterrupt as error:
    trace = error.__context__.__traceback__
    while trace:
        assert trace.tb_frame.f_globals["__name__"] != "jax._src.compiler"
        trace = trace.tb_next
    raise
"""
        run = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "journal.db")],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert "evaluate: SIGINT: 0 of 64 examples are in the journal" in run.stderr
        assert "AssertionError" not in run.stderr
        assert run.returncode == -signal.SIGINT, run.stderr

    def test_data_that_does_not_answer_is_not_waited_for(self, path, capsys, monkeypatch):
        class Stuck(Lazy):
            def __getitem__(self, rows):
                if rows.start == 500 and rows.stop == 510:
                    os.kill(os.getpid(), signal.SIGTERM)
                    answers.wait(HANGS)
                return super().__getitem__(rows)

        answers = threading.Event()
        with pytest.raises(SystemExit):
            evaluate(identity, None, Stuck(1000), batch=10, mesh=devices(1), journal=path)
        assert not answers.is_set()
        answers.set()
        said = capsys.readouterr().err
        assert "of 1000 examples are in the journal" in said
        kept = int(said.split()[2])
        assert 0 < kept <= 500  # steps that were read and not begun are not begun any more
        result = sw.evaluate(identity, None, Lazy(1000), batch=10, journal=path)
        assert result.resumed == kept
        assert result["mean"] == 499.5

    def test_the_command_line_ends_with_128_and_the_signal(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros(100, np.float32))
        (tmp_path / "model.py").write_text(
            "import os, signal\n"
            "def fn(state, x):\n"
            "    os.kill(os.getpid(), signal.SIGNAL)\n"
            "    return x\n"
        )
        for name, code in (("SIGINT", 130), ("SIGTERM", 143)):
            source = (tmp_path / "model.py").read_text()
            file = tmp_path / f"{name.lower()}.py"
            file.write_text(source.replace("SIGNAL", name))
            command = "import signal; signal.signal(2, signal.default_int_handler)\n"
            command += "from shardwise._cli import main; main()"
            words = ["evaluate", f"{file}:fn", "--data", str(tmp_path / "x.npy"), "--no-progress"]
            done = subprocess.run(
                [sys.executable, "-c", command, *words],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == code, done.stderr
            assert f"evaluate: {name}: " in done.stderr
            assert "Traceback" not in done.stderr


class TestData:
    def test_an_array_that_says_one_dtype_and_gives_another(self):
        class Liar(Lazy):
            def __getitem__(self, rows):
                return super().__getitem__(rows).astype(np.float64) + 0.5

        with pytest.raises(ShardingError, match="its dtype is int32, but a slice of it is float64"):
            evaluate(identity, None, Liar(100, dtype=np.dtype(np.int32)), batch=10)

    def test_a_narrower_dtype_than_it_says_is_no_harm(self):
        class Narrow(Lazy):
            def __getitem__(self, rows):
                return super().__getitem__(rows).astype(np.float16)

        assert evaluate(identity, None, Narrow(100), batch=10)["mean"] == 49.5

    def test_digits_that_are_lost_are_told(self):
        result = evaluate(identity, None, {"x": np.full(100, 0.1)}["x"], batch=10)
        assert result.notes[0].startswith("data: values of float64 lose digits as float32")
        assert evaluate(identity, None, np.full(100, 0.5), batch=10).notes == ()

    def test_a_number_that_does_not_fit(self):
        data = np.full(100, 0.1)
        data[77] = 1e300
        with pytest.raises(ShardingError, match=r"1e\+300 does not fit float32"):
            evaluate(identity, None, data, batch=10)
        data[77] = np.inf
        assert evaluate(identity, None, data, batch=10).nonfinite["mean"].first == 77

    def test_weights_that_are_all_zero(self):
        def fn(_, batch):
            none = jnp.zeros(batch.shape)
            return {"mean": (batch, none), "max": sw.Max(batch, none), "sum": sw.Sum(batch, none)}

        result = evaluate(fn, None, np.ones(100, np.float32), batch=10)
        assert set(result.notes) == {
            "mean: every weight is zero, so it has no value",
            "max: every weight is zero, so it has no value",
        }
        assert result["sum"] == 0

    def test_a_mapped_file_that_shrinks(self, tmp_path):
        path = tmp_path / "x.npy"
        np.save(path, np.zeros((1000, 1000), np.float32))
        data = np.load(path, mmap_mode="r")

        def fn(_, batch):
            return batch.sum(-1)

        assert evaluate(fn, None, data[5:], batch=10)["mean"] == 0
        with path.open("r+b") as file:
            file.truncate(2_000_000)
        with pytest.raises(ShardwiseError, match=r"x.npy: it has 2000000 bytes, and had 4000128"):
            evaluate(fn, None, data, batch=10)
        with pytest.raises(ShardwiseError, match="must not become shorter"):
            evaluate(fn, None, np.asarray(data)[100:], batch=10)


MEMORY = """
import sys, threading, time
import numpy as np
import jax
import shardwise as sw

rows, width = 256, 40960  # 40 MiB: what is smaller the C library may keep for later

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def watch():
    while True:
        peak[0] = max(peak[0], resident())
        time.sleep(0.002)

def batches(count, size):
    for k in range(count):
        yield np.full((size, width), k, np.float32)

def run(data):
    mesh = jax.make_mesh((1,), ("data",))
    sw.evaluate(mean, None, data, batch=rows, mesh=mesh, progress=False)

mean = lambda _, batch: batch.mean(-1)
run(batches(1, rows))
base, peak = resident(), [0]
threading.Thread(target=watch, daemon=True).start()
run(batches(int(sys.argv[1]), int(sys.argv[2])))
print((peak[0] - base) / (rows * width * 4))
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason=because("There is no /proc: the memory of an iterable is not measured", "use Linux"),
)
@pytest.mark.parametrize(("count", "size"), [(16, 256), (6, 768)])
def test_the_memory_of_an_iterable(count, size):
    """Six steps and three batches at most, as the documentation says."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(count), str(size)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 6 + 3 * size / 256
