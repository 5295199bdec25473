"""Choosing a batch, and what happens when it does not fit after all."""

from __future__ import annotations

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise import ShardwiseError
from shardwise._jax.failures import is_out_of_memory
from shardwise._runtime.evaluate import Sum
from shardwise._runtime.evaluate.data import stream
from shardwise._runtime.evaluate.data.source import ExampleLeaf
from shardwise._runtime.evaluate.step import memory, rounds

from ..optional import because
from ..patience import HANGS
from ..support import normal
from .helpers import Average, devices, evaluate, exact_mean

FLOAT = np.dtype(np.float32)


class TestChoosing:
    @pytest.mark.parametrize(
        ("width", "length", "want"),
        [
            (1, 10, 10),  # small data is one step
            (1, 1000, 64),
            (1, 1 << 20, 1 << 16),  # sixteen steps
            (1, 1 << 40, 1 << 20),  # a million examples are enough
            (1 << 20, 1 << 40, 16),  # 64 MiB of input
            (1 << 30, 1 << 40, 1),
        ],
    )
    def test_the_largest_of_use(self, width, length, want):
        assert memory.largest_useful([ExampleLeaf("", (width,), FLOAT)], length) == want

    def test_it_does_not_depend_on_the_number_of_devices(self):
        x = normal(5000)
        batches = {evaluate(lambda _, b: b, None, x, mesh=devices(n)).batch for n in (1, 2, 8)}
        assert batches == {256}

    def test_it_follows_the_figures_of_the_compiled_program(self, monkeypatch):
        # A step needs at least 16 KiB per example: 64 of them are more than there is.
        def fn(_, batch):
            return jnp.sort(jnp.tile(batch[:, None], 1 << 12) * batch[:, None])[:, 0]

        monkeypatch.setattr(memory, "free_memory", lambda _: float(1 << 20))
        result = evaluate(fn, None, np.ones(1000, np.float32), mesh=devices(1))
        assert result.batch in (8, 16, 32)
        assert not result.notes


def failing_above(limit, monkeypatch, after=0):
    """Make the device run out of memory for batches above the limit, from some round on."""
    original, calls = rounds.Rounds._start, []

    def start(self, staged):
        calls.append(len(staged))
        if self._batch > limit and len(calls) > after:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 GiB.")
        return original(self, staged)

    monkeypatch.setattr(rounds.Rounds, "_start", start)


class TestHalving:
    def test_until_it_fits(self, monkeypatch):
        x = normal(4000)
        failing_above(60, monkeypatch)
        result = evaluate(lambda _, b: b, None, x, mesh=devices(2))
        assert result["mean"] == exact_mean(x)
        assert result.batch == 32
        assert "halved from 128 to 64 after 0 examples" in result.notes[0]
        assert "halved from 64 to 32" in str(result)

    @pytest.mark.parametrize("iterable", [False, True])
    def test_finished_steps_are_kept(self, monkeypatch, tmp_path, iterable):
        x = normal(4000)
        failing_above(127, monkeypatch, after=6)

        def fn(_, batch, mask):
            return {
                "sum": Sum(batch > 0),
                "object": Average.from_values(batch, mask),
                "mean": batch,
            }

        data = (x[k : k + 128] for k in range(0, 4000, 128)) if iterable else x
        path = tmp_path / "journal.db"
        result = evaluate(fn, None, data, mesh=devices(2), journal=path)
        assert result["sum"] == (x > 0).sum()
        assert result["mean"] == exact_mean(x)
        assert result.count == 4000
        assert "from 128 to 64 after" in result.notes[0]
        assert "after 0 examples" not in result.notes[0]
        again = evaluate(fn, None, iter([x]) if iterable else x, mesh=devices(1), journal=path)
        assert again.metrics == result.metrics
        assert (again.resumed, again.batch) == (4000, 64)

    @pytest.mark.parametrize("iterable", [False, True])
    def test_a_reader_without_memory_is_no_matter_of_the_batch(self, iterable):
        class Examples(list):
            def __getitem__(self, index):
                if index == 50:
                    raise MemoryError("reader")
                return super().__getitem__(index)

        data = Examples(np.ones(100, np.float32).tolist())
        given = (np.float32([data[k]]) for k in range(100)) if iterable else data
        with pytest.raises(MemoryError, match="reader") as error:
            evaluate(lambda _, b: b, None, given, mesh=devices(1))
        assert "while reading step" in error.value.__notes__[0]

    @pytest.mark.parametrize("patience", [HANGS, 0.01])
    def test_what_the_reader_raises_meanwhile_is_raised(self, monkeypatch, patience):
        monkeypatch.setattr(stream, "_JOIN_SECONDS", patience)
        failing_above(6, monkeypatch)

        def batches():
            for number in range(10):
                if number == 3:
                    time.sleep(0.3)
                    raise OSError("disk gone")
                yield np.full(8, number, np.float32)

        with pytest.raises(OSError, match="disk gone"):
            evaluate(lambda _, b: b, None, batches(), mesh=devices(1))

    def test_a_slow_reader_is_waited_for(self, monkeypatch):
        monkeypatch.setattr(stream, "_JOIN_SECONDS", 0.01)
        failing_above(60, monkeypatch, after=2)

        class Batches:
            number = 0

            def __iter__(self):
                return self

            def __next__(self):
                number, self.number = self.number, self.number + 1
                if number == 20:
                    raise StopIteration
                time.sleep(0.03)
                return np.arange(number * 100, (number + 1) * 100, dtype=np.float32)

        result = evaluate(lambda _, b: b, None, Batches(), mesh=devices(2))
        assert (result.count, result["mean"]) == (2000, 999.5)
        assert "halved from 100 to 50" in result.notes[0]

    def test_a_given_batch_is_not_changed(self, monkeypatch):
        failing_above(10, monkeypatch)
        with pytest.raises(ShardwiseError, match=r"(?s)a step of 64 examples .*batch=32, or batch"):
            evaluate(lambda _, b: b, None, normal(100), batch=64)

    def test_a_step_of_one_that_does_not_fit(self, monkeypatch):
        failing_above(0, monkeypatch)
        with pytest.raises(ShardwiseError, match=r"(?s)a step of 1 example does not.*model axis"):
            evaluate(lambda _, b: b, None, normal(3))

    def test_a_real_one(self):
        """More memory than the machine has, for all but small batches."""

        def fn(_, batch):
            wide = jnp.broadcast_to(batch[:, None], (len(batch), 1 << 28))
            return jnp.where(batch < 2, batch, jnp.sort(wide * batch[:, None], axis=0)[:, -1])

        overcommit = Path("/proc/sys/vm/overcommit_memory")
        if memory._host_memory() > 64 << 30 or not overcommit.exists():
            pytest.skip(because("Memory never runs out here", "use a machine with less than 64 GB"))
        if overcommit.read_text().strip() == "1":
            pytest.skip(because("Memory never runs out here", "sysctl vm.overcommit_memory=0"))
        with pytest.raises(ShardwiseError, match="a step of 256 examples does not fit"):
            evaluate(fn, None, np.ones(256, np.float32), batch=256, mesh=devices(1))


def test_what_is_out_of_memory():
    oom = jax.errors.JaxRuntimeError
    assert is_out_of_memory(oom("RESOURCE_EXHAUSTED: ..."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(oom("INTERNAL: ..."))
    assert not is_out_of_memory(ValueError("out of memory"))
