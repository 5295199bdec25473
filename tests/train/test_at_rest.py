"""`fit` and what it keeps: damaged, locked, gone, interrupted; what it says of losses and rows."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import shardwise as sw
from shardwise._base.durable import Lock
from shardwise._runtime.train.fit.curves import is_wide, running_mean, stretches

from ..optional import needed
from .fitting import Counted, Rows, digest
from .test_fit import fit, rows_of

ROOT = Path(__file__).parents[2]


# --- checkpoints


def test_an_array_that_changed_is_not_trained_on(tmp_path, monkeypatch):
    """Whatever lies between: what comes back is compared with what was stored."""
    import orbax.checkpoint as ocp

    fit(checkpoint=tmp_path, steps=4, every=2)
    restore = ocp.CheckpointManager.restore

    def flipped(self, step, args):
        found = restore(self, step, args=args)
        if step == 4 and "state" in found:
            found["state"]["params.w"].reshape(-1).view(np.uint8)[5] ^= 1
        return found

    monkeypatch.setattr(ocp.CheckpointManager, "restore", flipped)
    with pytest.warns(UserWarning, match=r"damaged \(params.w does not match its checksum"):
        state = fit(checkpoint=tmp_path, steps=6, every=2)
    assert digest("pure", state) == digest("pure", fit(steps=6))


@pytest.mark.filterwarnings("ignore:.*the rows of steps")
def test_a_state_is_stored_as_it_was(tmp_path):
    """The next step takes the memory of the state; what is being written must not follow it."""
    fit(checkpoint=tmp_path, steps=9, every=1, keep=9)
    for steps in (3, 6, 8):
        for later in (p for p in tmp_path.iterdir() if p.name.isdigit() and int(p.name) > steps):
            later.rename(later.with_name(f"not-{later.name}"))
        state = fit(checkpoint=tmp_path, steps=steps)
        assert digest("pure", state) == digest("pure", fit(steps=steps))
        for later in tmp_path.glob("not-*"):
            later.rename(later.with_name(later.name.removeprefix("not-")))


def test_two_trainings_in_one_folder(tmp_path):
    lock = Lock(tmp_path / ".lock", resource="", activity="", remedy="")
    with lock, pytest.raises(sw.ShardwiseError) as error:
        fit(checkpoint=tmp_path, steps=2)
    assert error.match(rf"checkpoints in {tmp_path}: process {os.getpid()} on .* trains there")
    assert error.match("wait for it, stop it, or use another folder")
    fit(checkpoint=tmp_path, steps=2)
    assert not (tmp_path / ".lock").exists()


def test_a_folder_that_goes_away_is_told(tmp_path):
    folder = tmp_path / "run"

    def remove(row):
        if row["step"] == 2:
            folder.rename(tmp_path / "elsewhere")

    # A checkpoint that is being written at that moment makes the folder anew.
    told = "was (deleted or moved|replaced by another) while the training ran"
    with pytest.raises(sw.ShardwiseError, match=told):
        fit(checkpoint=folder, log=tmp_path / "log.jsonl", steps=8, every=2, callbacks=remove)
    assert (tmp_path / "elsewhere").is_dir()


def test_a_folder_that_cannot_be_written():
    with pytest.raises(sw.ShardwiseError, match="nothing can be written there"):
        fit(checkpoint="/proc/run", steps=2)


def test_names_of_folders_may_be_odd(tmp_path):
    folder = tmp_path / "a ü%\n'\"{}|:#"
    fit(checkpoint=folder, steps=4, every=2)
    assert digest("pure", fit(checkpoint=folder, steps=6)) == digest("pure", fit(steps=6))
    with pytest.raises(sw.ShardingError, match=r"has a '\[' in it"):
        fit(checkpoint=tmp_path / "[a]", steps=2)


# --- the log


def test_a_damaged_row_is_told_and_left_out(tmp_path):
    log = tmp_path / "log.jsonl"
    options = {"checkpoint": tmp_path / "run", "log": log, "every": 3}
    fit(steps=6, **options)
    lines = log.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"0.", b"9.", 2)
    log.write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match="rows of step 4 are missing or damaged") as told:
        fit(steps=9, **options)
    assert "kept as log.jsonl.damaged" in str(told[0].message)
    assert (tmp_path / "log.jsonl.damaged").read_bytes() == b"".join(lines)
    assert len(log.read_bytes().splitlines()) == 8


def test_a_log_that_is_gone_is_told(tmp_path):
    fit(checkpoint=tmp_path, steps=4, every=2)
    (tmp_path / "log.jsonl").unlink()
    with pytest.warns(UserWarning, match="rows of steps 1 to 3 are missing"):
        fit(checkpoint=tmp_path, steps=6, every=2)
    (tmp_path / "more.jsonl").mkdir()
    with pytest.raises(sw.ShardingError, match="is a folder"):
        fit(log=tmp_path / "more.jsonl", steps=1)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (".", ". is a folder; log='log.jsonl'"),
        ("..", ".. is a folder; log='../log.jsonl'"),
        ("/", "/ is a folder; log='/log.jsonl'"),
        (".jsonl", "'.jsonl' has nothing before the dot; log='log.jsonl'"),
        ("train", "'train' has no suffix; log='train.jsonl'"),
        ("train.txt", "'train.txt' ends in '.txt'; log='train.jsonl'"),
    ],
)
def test_a_log_that_is_no_file_for_rows(log, words):
    with pytest.raises(sw.ShardingError) as error:
        fit(log=log, steps=1)
    assert all(part in str(error.value) for part in words.split("; "))


def test_a_log_that_goes_away_is_written_anew(tmp_path):
    log = tmp_path / "log.jsonl"

    def remove(row):
        if row["step"] == 4:
            log.unlink()

    with pytest.warns(
        UserWarning, match="was (deleted or moved|replaced by another) while the training ran"
    ):
        fit(log=log, steps=6, every=2, callbacks=remove)
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 7))


def test_runs_that_never_came_to_a_checkpoint_leave_nothing(tmp_path):
    class Stop(Exception):
        pass

    def broken():
        yield from list(Rows())[:2]
        raise Stop

    for _ in range(3):
        with pytest.raises(Stop):
            fit(batches=broken(), checkpoint=tmp_path, every=4)
    fit(checkpoint=tmp_path, steps=4, every=4)
    names = {p.name for p in tmp_path.iterdir()} - {"curves.png"}
    assert names == {"4", "log.jsonl", "run.json"}
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3, 4]


# --- losses and rows


def spoilt(at):
    for number, batch in enumerate(Rows(), 1):
        yield {k: v * np.float32(np.nan) for k, v in batch.items()} if number == at else batch


def test_a_loss_that_is_not_a_number_is_told(tmp_path):
    with pytest.warns(
        UserWarning, match=r"step 5: the loss is nan \(batch 5 of the data\)"
    ) as told:
        fit(batches=spoilt(5), steps=8, every=2)
    assert len(told) == 1


def test_or_stops_the_training_before_it_is_stored(tmp_path):
    with pytest.raises(
        sw.ShardwiseError, match="step 5, batch 5 of the data: the loss is nan"
    ) as e:
        fit(batches=spoilt(5), steps=8, every=2, on_nan="raise", checkpoint=tmp_path)
    assert e.match("The newest checkpoint, of step 4, is from before it")
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [2, 4]
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3, 4, 5]
    with pytest.raises(sw.ShardingError, match="on_nan is 'stop'"):
        fit(on_nan="stop")


def test_callbacks_are_given_every_row(tmp_path):
    seen, more = [], []
    fit(steps=5, every=2, callbacks=[seen.append, more.append], evaluate=lambda s: {"a": 1.0})
    assert [row["step"] for row in seen] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in seen if "eval/a" in row] == [2, 4, 5]
    assert more == seen


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tensorboard_can_follow(tmp_path):
    needed("tensorboard", "that it can follow a run")
    example = load_example("follow_training")
    worst = example.Worst()
    callbacks = [example.to_tensorboard(tmp_path / "events"), worst]
    example.train(tmp_path / "run", 20, callbacks, progress=False)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = (tmp_path / "events").iterdir()
    found = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0]
    rows = {row["step"]: row for row in rows_of(tmp_path / "run")}
    assert found["loss"] == pytest.approx({step: row["loss"] for step, row in rows.items()})
    assert sorted(found["test/mean"]) == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert worst.loss == max(row["loss"] for row in rows.values())


# --- weights


def logits_and_loss(params, batch):
    logits = batch["x"] @ params["w"]
    return logits, (logits**2).sum(-1)


def hits(params, batch):
    logits, loss = logits_and_loss(params, batch)
    return loss, logits.argmax(-1) == batch["y"].argmax(-1)


def carried(params, batch):
    """The weight of a row follows the params through what a scan carries."""

    def body(before, x):
        loss = (x @ params["w"]).sum() ** 2
        return before + loss, (loss, before)

    return lax.scan(body, 0.0, batch["x"])[1]


def masked(params, batch):
    return logits_and_loss(params, batch)[1], batch["y"][:, 0] > 0


def masked_inside(params, batch):
    """Losses and mask come out of one compiled function, one scan, one branch."""

    @jax.jit
    def both(w, x, y):
        def body(_, row):
            loss = lax.cond(row[1][0] > 0, lambda z: z, jnp.square, (row[0] @ w).sum())
            return None, (loss, row[1][0] > 0)

        return lax.scan(body, None, (x, y))[1]

    return both(params["w"], batch["x"], batch["y"])


def meant(params, batch):
    loss = logits_and_loss(params, batch)[1]
    return loss, lax.stop_gradient(loss)


@pytest.mark.parametrize("loss", [hits, carried])
def test_weights_that_depend_on_the_params_are_refused(loss):
    step = sw.data_parallel(loss, optax.sgd(0.1), mesh=sw.mesh(data=2))
    with pytest.raises(sw.ShardingError, match="depends on the params") as error:
        step(step.init({"w": jnp.ones((4, 3))}), next(iter(Rows())))
    assert error.match("has_aux=True and return losses")


@pytest.mark.parametrize("loss", [masked, masked_inside, meant])
def test_weights_that_do_not_are_not(loss):
    step = sw.data_parallel(loss, optax.sgd(0.1), mesh=sw.mesh(data=2))
    _, metrics = step(step.init({"w": jnp.ones((4, 3))}), next(iter(Rows())))
    assert math.isfinite(metrics["loss"])


# --- signals


pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so(tmp_path, capsys, signum):
    def send(row):
        if row["step"] == 4:
            signal.raise_signal(signum)

    options = {"checkpoint": tmp_path, "steps": 12, "every": 4}
    end = KeyboardInterrupt if signum == signal.SIGINT else SystemExit
    with pytest.raises(end):
        fit(callbacks=send, **options)
    said = capsys.readouterr().err
    name = signal.Signals(signum).name
    assert said == (
        f"fit: {name}: saved at step 4 of 12, in {tmp_path}. The same call resumes from there.\n"
    )
    assert not (tmp_path / "curves.png").exists()
    state = fit(progress=None, **options)
    assert f"fit: resumes from step 4 of 12, in {tmp_path}" in capsys.readouterr().err
    assert digest("pure", state) == digest("pure", fit(steps=12))


@pytest.mark.parametrize("kind", ["pure", "nnx"])
def test_between_two_checkpoints_the_step_is_stored(tmp_path, kind, capsys):
    def asked():
        for number, batch in enumerate(Rows()):
            if number == 6:
                signal.raise_signal(signal.SIGTERM)
            yield batch

    options = {"checkpoint": tmp_path, "steps": 12, "every": 4, "kind": kind}
    with pytest.raises(SystemExit):
        fit(batches=asked(), **options)
    assert "saved at step 6 of 12" in capsys.readouterr().err
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 7))
    state = fit(**options)
    assert digest(kind, state) == digest(kind, fit(steps=12, kind=kind))
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 13))


def test_an_iterator_that_remembers_is_not_torn(tmp_path, capsys):
    """It may finish its batch; one that does not come back is left at the checkpoint before."""

    class Slow(Counted):
        def __next__(self):
            if self.place == 6:
                signal.raise_signal(signal.SIGTERM)
            return super().__next__()

    class Stuck(Counted):
        def __next__(self):
            if self.place == 10:
                self.place += 1  # what it says of its place is not to be trusted now
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
                signal.pause()
            return super().__next__()

    options = {"checkpoint": tmp_path, "steps": 12, "every": 4}
    with pytest.raises(SystemExit):
        fit(batches=Slow(), **options)
    assert "saved at step 7 of 12" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fit(batches=Stuck(), **options)
    assert "saved at step 8 of 12" in (said := capsys.readouterr().err)
    assert "2 steps after it are done again" in said
    state = fit(batches=Counted(), **options)
    assert digest("pure", state) == digest("pure", fit(batches=Counted(), steps=12))


def test_without_a_checkpoint_nothing_is_kept_and_it_says_so(capsys):
    def send(row):
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        fit(steps=4, every=2, callbacks=send)
    assert "ended after step 2 of 4. Nothing is stored: checkpoint=" in capsys.readouterr().err


@pytest.mark.parametrize(
    "afterwards", ["pass", "raise ValueError('mine')", "raise KeyboardInterrupt('mine')"]
)
def test_a_script_ends_with_the_signal(tmp_path, afterwards):
    """Its last line is that of `fit`, but an error of its own comes with the traceback."""
    code = (
        "import os, signal; from tests.train.fitting import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "step, state = begin('pure')\n"
        "send = lambda row: os.kill(os.getpid(), signal.SIGINT)\n"
        f"try: sw.fit(step, state, Rows(), steps=9, every=3, checkpoint={str(tmp_path)!r}, "
        "callbacks=send)\n"
        f"finally: {afterwards}"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == (1 if "ValueError" in afterwards else -signal.SIGINT)
    line, *rest = done.stderr.splitlines()
    assert "saved at step 3 of 9" in line
    assert bool(rest) == (afterwards != "pass")
    if rest:
        assert "Traceback" in done.stderr
        assert rest[-1].endswith("mine")
    assert (tmp_path / "3").is_dir()


# --- curves


def test_curves_of_many_steps():
    values = np.concatenate([np.ones(500), 3 * np.ones(500)])
    values[::2] += 1
    values[10] = np.nan
    mean = running_mean(values, 20)
    assert mean[[0, 250, 999]] == pytest.approx([1.5, 1.5, 3.5], abs=0.1)
    at, low, high = stretches(np.arange(100_000), np.tile(values, 100))
    assert len(at) == len(low) == len(high) == 1000
    assert np.isfinite(low).all()
    assert (low <= high).all()
    assert running_mean(np.array([np.nan, np.nan]), 2) == pytest.approx([np.nan] * 2, nan_ok=True)


@pytest.mark.parametrize(
    ("values", "wide"),
    [([1e-3, 1.0], True), ([0.5, 1.0], False), ([-1.0, 100.0], False), ([np.nan], False)],
)
def test_a_logarithmic_scale_where_it_serves(values, wide):
    assert is_wide([np.array(values)]) is wide


def test_a_copy_of_the_log_can_be_read_as_json(tmp_path):
    fit(checkpoint=tmp_path, steps=2)
    shutil.copy(tmp_path / "log.jsonl", tmp_path / "copy")
    rows = [json.loads(line) for line in (tmp_path / "copy").read_text().splitlines()]
    assert set(rows[0]) == {"step", "seconds", "loss", "weight", "updated", "crc"}
