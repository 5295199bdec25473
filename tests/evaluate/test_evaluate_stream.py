"""How it runs: one compile, the same bits, back-pressure, errors that surface, threads end."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from shardwise._runtime import evaluate as _evaluate
from shardwise._runtime.evaluate.lanes import find_lanes

from ..patience import HANGS
from ..support import normal, real_mesh
from .helpers import Lazy, devices, evaluate, linear_data

COMPILED = "/jax/core/compile/backend_compile_duration"
W = normal(3)


@pytest.fixture
def compiles():
    """Counts every program that XLA compiles."""
    jax.jit(lambda: 0).lower().compile()  # the first one of a process compiles more (compiled.py)
    counted = []

    def listen(event, duration, **_):
        if event == COMPILED:
            counted.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counted
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("shardwise")]


class TestOneCompile:
    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_whatever_the_tail_and_the_devices(self, compiles, count):
        evaluate(lambda w, b: b * w, 2.0, normal(1003), batch=16, mesh=devices(count))
        assert len(compiles) == 1

    def test_an_iterable_of_ragged_batches(self, compiles):
        data = iter([normal(5), normal(17), normal(1), normal(30)])
        evaluate(lambda w, b: b * w, 2.0, data, batch=16, mesh=devices(2))
        assert len(compiles) == 1

    def test_a_chosen_batch_that_fits(self, compiles):
        evaluate(lambda w, b: b * w, 2.0, normal(10_000), mesh=devices(2))
        assert len(compiles) == 1

    def test_the_next_call_neither_traces_nor_compiles(self, compiles):
        traces = []

        def fn(w, batch):
            traces.append(batch)
            return batch * w

        evaluate(fn, 1.0, normal(100), batch=16)
        traced = len(traces)
        evaluate(fn, 2.0, normal(100), batch=16)
        assert (len(traces), len(compiles)) == (traced, 1)

    def test_the_next_call_with_a_module(self, compiles):
        model = nnx.Sequential(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Dropout(0.5))
        compiles.clear()

        def fn(model, batch):
            return model(batch)[:, 0]

        for _ in range(2):
            evaluate(fn, model, normal(100, 3), batch=16)
        assert len(compiles) == 1

    def test_a_program_goes_with_its_function(self):
        def fn(w, batch):
            return batch * w

        evaluate(fn, 1.0, normal(10))
        gone = weakref.ref(fn)
        del fn
        jax.clear_caches()
        gc.collect()
        assert gone() is None


def mlp(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["a"])
    return jnp.square(jnp.exp(-hidden) @ params["b"] - batch["y"])


def recurrent(params, batch):
    def cell(carry, x):
        return jnp.tanh(carry @ params["r"] + x[:, None]), None

    carry, _ = jax.lax.scan(cell, jnp.zeros((len(batch["x"]), 32)), batch["x"].T)
    return carry.sum(-1)


def normalised(params, batch):
    h = batch["x"] @ params["a"]
    h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-6)
    return {"nll": -jax.nn.log_softmax(h)[:, 0], "gated": (jax.nn.gelu(h), h > 0)}


def gradient_norm(params, batch):
    def one(x):
        return jnp.sum(jnp.tanh(x @ params["a"]) ** 3)

    return jnp.linalg.norm(jax.vmap(jax.grad(one))(batch["x"]), axis=-1)


PARAMS = {"a": normal(40, 32), "b": normal(32), "r": normal(32, 32) / 6}


class TestTheSameBits:
    @pytest.mark.parametrize(
        ("fn", "counts"),
        [
            (mlp, (1, 2, 3, 4, 8)),
            (recurrent, (1, 4)),
            (normalised, (1, 3)),
            (gradient_norm, (1, 8)),
        ],
    )
    def test_on_any_number_of_devices(self, fn, counts):
        data = linear_data(1003, width=40)
        results = [evaluate(fn, PARAMS, data, batch=64, mesh=devices(count)) for count in counts]
        assert len({tuple(r.metrics.items()) for r in results}) == 1

    def test_in_processes_with_one_and_with_eight_devices(self):
        code = (
            "import jax; from tests.evaluate.helpers import *;"
            "from tests.evaluate.test_evaluate_stream import *;"
            "r = evaluate(mlp, PARAMS, linear_data(1003, width=40), batch=64);"
            "import json; print(json.dumps([r.devices, r['mean'].hex()]))"
        )
        found = [json.loads(_python(code, devices=count)) for count in (1, 8)]
        assert [count for count, _ in found] == [1, 8]
        assert found[0][1] == found[1][1]

    def test_under_another_ambient_mesh(self):
        data = linear_data(100, width=40)
        want = evaluate(mlp, PARAMS, data, batch=16, mesh=devices(2))["mean"]
        with jax.set_mesh(real_mesh(other=4)):
            assert evaluate(mlp, PARAMS, data, batch=16, mesh=devices(2))["mean"] == want

    def test_under_a_transfer_guard(self):
        with jax.transfer_guard("disallow"):
            assert evaluate(lambda w, b: b * w, 2.0, np.float32([1, 2, 3]))["mean"] == 4

    def test_explicit_axes(self):
        data = linear_data(100, width=40)
        explicit = (jax.sharding.AxisType.Explicit,)
        mesh = jax.make_mesh((2,), ("data",), axis_types=explicit)
        want = evaluate(mlp, PARAMS, data, batch=16, mesh=devices(2))["mean"]
        assert evaluate(mlp, PARAMS, data, batch=16, mesh=mesh)["mean"] == want

    def test_another_batch_is_another_rounding(self):
        data = linear_data(1003, width=40)
        means = [evaluate(mlp, PARAMS, data, batch=batch)["mean"] for batch in (17, 64, 1003)]
        assert max(means) - min(means) <= 1e-6 * means[0]


def _python(code: str, devices: int) -> str:
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


class TestBackPressure:
    def test_a_slow_device_stops_the_reader(self):
        data, ahead = Lazy(2000), []

        def slow(x):
            ahead.append(len(data.reads))
            time.sleep(0.01)
            return x

        def fn(_, batch):
            return jax.pure_callback(slow, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch)

        evaluate(fn, None, data, batch=50, mesh=devices(1))
        assert len(ahead) == 40
        assert max(read - done for done, read in enumerate(ahead)) <= find_lanes().depth(50 * 4) + 1


class Failing(Lazy):
    def __getitem__(self, rows):
        if rows.start >= 96:
            raise OSError("the disk is on fire")
        return super().__getitem__(rows)


class TestErrors:
    def test_in_the_reader(self):
        with pytest.raises(OSError, match="on fire") as caught:
            evaluate(lambda _, b: b, None, Failing(200), batch=32, mesh=devices(2))
        (note,) = caught.value.__notes__
        assert "while reading step 3 (examples 96 to 127) from 200 examples of data: float" in note

    def test_in_an_iterable(self):
        def stream():
            yield normal(8)
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more") as caught:
            evaluate(lambda _, b: b, None, stream(), batch=8)
        assert "step 1 (examples 8 to 15) from batches of generator" in caught.value.__notes__[0]

    def test_in_fn_while_it_is_traced(self):
        def fn(w, batch):
            return batch["x"] @ jnp.ones(7)

        with pytest.raises(TypeError) as caught:
            evaluate(fn, None, linear_data(20), batch=8)
        assert any(
            "while tracing fn on a batch of 8 (data['x']: float32[8, 3]" in note
            for note in caught.value.__notes__
        )

    def test_in_fn_while_it_runs(self):
        def check(x):
            if x[0] >= 64:
                raise ValueError("bad row")
            return x

        def fn(_, batch):
            return jax.pure_callback(check, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch)

        with pytest.raises(jax.errors.JaxRuntimeError, match="bad row") as caught:
            evaluate(fn, None, np.arange(100, dtype=np.float32), batch=16, mesh=devices(1))
        assert any(
            "while computing step 4 (examples 64 to 79)" in n for n in caught.value.__notes__
        )

    def test_an_endless_source_is_let_go_of(self):
        closed = []

        def endless():
            try:
                while True:
                    yield normal(8)
            finally:
                closed.append(True)

        seen = []

        def stop(snapshot):
            seen.append(snapshot)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _evaluate.evaluate(lambda _, b: b, None, endless(), batch=8, progress=stop)
        assert closed == [True]
        assert seen[0].total is None

    def test_an_interrupt_while_waiting(self):
        code = (
            "import os, signal, threading, time, numpy as np\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may ignore it
            "from shardwise._runtime.evaluate import evaluate\n"
            "from tests.evaluate.helpers import Lazy\n"
            "class Slow(Lazy):\n"
            "    def __getitem__(self, rows):\n"
            "        if rows.start == 10: time.sleep(0.5); os.kill(os.getpid(), signal.SIGINT)\n"
            "        if rows.start > 10: time.sleep(0.5)\n"
            "        return super().__getitem__(rows)\n"
            "try: evaluate(lambda _, b: b, None, Slow(10**6), batch=10)\n"
            "except KeyboardInterrupt: print('ended', len(threading.enumerate()))\n"
        )
        assert _python(code, devices=2) == "ended 1"
