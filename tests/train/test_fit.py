"""`fit`: to the end, through kills, with a log that tells the whole story."""

import collections
import json
import re
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import shardwise as sw
from shardwise._runtime.train.fit.loop import TrainingLoop

from .. import apart
from ..optional import needed
from . import fitting
from .fitting import EVERY, STEPS, Counted, Rows, begin, digest

ROOT = Path(__file__).parents[2]


def fit(state=None, batches=None, *, steps=STEPS, kind="pure", **options):
    step, fresh = begin(kind)
    batches = Rows() if batches is None else batches
    state = fresh if state is None else state
    return sw.fit(step, state, batches, steps=steps, **{"progress": False, **options})


def rows_of(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def run_and_die(kind, folder, die_at, devices=8, steps=STEPS):
    """Run the training in another process, which may be killed on the way."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return apart.run(fitting.main, kind, str(folder), die_at, steps, XLA_FLAGS=flags)


@pytest.mark.parametrize("kind", ["pure", "nnx"])
def test_killed_twice_it_ends_with_the_same_bits(kind, tmp_path):
    for die_at in (8, 16):
        done = run_and_die(kind, tmp_path, die_at)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = run_and_die(kind, tmp_path, 10**9)
    assert done.returncode == 0, done.stderr
    unbroken = fit(kind=kind)
    assert done.stdout.strip() == digest(kind, unbroken)
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert sorted(row["seconds"] for row in rows) == [row["seconds"] for row in rows]


def test_interrupted_in_python_it_goes_on(tmp_path):
    class Stop(Exception):
        pass

    def stopping():
        for number, batch in enumerate(Rows()):
            if number == 7:
                raise Stop
            yield batch

    with pytest.raises(Stop):
        fit(batches=stopping(), every=EVERY, checkpoint=tmp_path)
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 8))
    state = fit(every=EVERY, checkpoint=tmp_path)
    assert digest("pure", state) == digest("pure", fit())


@pytest.mark.parametrize("as_bytes", [False, True])
def test_an_iterator_that_remembers_is_not_drained(tmp_path, as_bytes):
    whole = fit(batches=Counted())
    fit(batches=Counted(as_bytes), steps=10, every=5, checkpoint=tmp_path)
    again = Counted(as_bytes)
    state = fit(batches=again, every=5, checkpoint=tmp_path)
    assert again.asked == STEPS - 10
    assert digest("pure", state) == digest("pure", whole)
    with pytest.raises(sw.ShardingError, match="no set_state"):
        fit(batches=Rows(), steps=STEPS + 1, checkpoint=tmp_path)


def test_a_grain_iterator_goes_on_where_it_was(tmp_path):
    grain = needed("grain.python", "that its iterators are resumed")

    def batches():
        x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
        data = [{"x": row, "y": row[:3]} for row in x]
        return grain.MapDataset.source(data).shuffle(seed=0).repeat().batch(10).to_iter_dataset()

    fit(batches=batches(), steps=7, every=7, checkpoint=tmp_path)
    state = fit(batches=batches(), steps=15, every=7, checkpoint=tmp_path)
    assert digest("pure", state) == digest("pure", fit(batches=batches(), steps=15))


def test_data_that_is_shuffled_anew_each_time(tmp_path):
    class Epochs:
        number = 0

        def __iter__(self):
            self.number += 1
            return Short(self.number)

    class Short(Counted):
        """Four batches, other ones in every epoch."""

        def __init__(self, epoch):
            super().__init__()
            self.epoch = epoch

        def __next__(self):
            if self.place == 4:
                raise StopIteration
            batch = super().__next__()
            return {name: array * self.epoch for name, array in batch.items()}

    fit(batches=Epochs(), steps=6, every=6, checkpoint=tmp_path)
    state = fit(batches=Epochs(), steps=11, every=6, checkpoint=tmp_path)
    assert digest("pure", state) == digest("pure", fit(batches=Epochs(), steps=11))


@pytest.mark.parametrize("steps", [10, 20])
def test_interrupted_in_an_evaluation_it_evaluates_again(tmp_path, steps):
    calls = []

    def evaluate(state):
        calls.append(int(state.step))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"calls": len(calls)}

    options = {"steps": steps, "every": 5, "checkpoint": tmp_path, "evaluate": evaluate}
    with pytest.raises(KeyboardInterrupt):
        fit(**options)
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 10))
    fit(**options)
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert [row["step"] for row in rows if "eval/calls" in row] == list(range(5, steps + 1, 5))
    assert calls == [5, 10, 10, *range(15, steps + 1, 5)]


def test_without_a_checkpoint_the_row_of_a_failed_evaluation_is_logged(tmp_path):
    with pytest.raises(sw.ShardingError, match="it returned a float"):
        fit(steps=4, every=2, log=tmp_path / "log.jsonl", evaluate=lambda state: 1.0)
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2]


def test_names_that_look_alike_and_arrays_of_nothing(tmp_path):
    def loss(params, batch):
        return (batch["x"] @ (params["a.b"] + params["a"]["b"]))[:, 0] ** 2

    step = sw.data_parallel(loss, optax.adam(0.1), mesh=sw.mesh(data=2))

    def run(steps, folder):
        params = {"a.b": jnp.ones((4, 1)), "a": {"b": jnp.zeros((4, 1))}, "none": jnp.ones((0, 3))}
        return sw.fit(
            step, step.init(params), Rows(), steps=steps, checkpoint=folder, progress=False
        )

    run(3, tmp_path)
    got, want = run(6, tmp_path).params, run(6, None).params
    np.testing.assert_array_equal(got["a.b"], want["a.b"])
    np.testing.assert_array_equal(got["a"]["b"], want["a"]["b"])
    assert got["none"].shape == (0, 3)


def test_no_log_is_lost_and_none_of_others_is_taken(tmp_path):
    for steps in (1, 2, 3):
        fit(steps=steps, log=tmp_path / "log.jsonl")
    lengths = [len(path.read_text().splitlines()) for path in sorted(tmp_path.glob("log.jsonl*"))]
    assert lengths == [3, 1, 2]
    fit(steps=2, checkpoint=tmp_path / "more")
    (tmp_path / "more" / "log.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(sw.ShardingError, match="line 1: its checksum is missing"):
        fit(steps=3, checkpoint=tmp_path / "more")


def test_a_row_that_was_cut_off_is_dropped(tmp_path):
    log = tmp_path / "log.jsonl"
    fit(steps=5, every=5, checkpoint=tmp_path / "state", log=log)
    with log.open("a") as file:
        file.write('{"step": 6, "sec')
    fit(steps=7, every=5, checkpoint=tmp_path / "state", log=log)
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 8))


def test_a_finished_training_is_not_done_again(tmp_path, capsys):
    first = fit(batches=Counted(), checkpoint=tmp_path)
    again = Counted()
    assert digest("pure", fit(batches=again, checkpoint=tmp_path)) == digest("pure", first)
    assert again.asked == 0
    fit(batches=again, checkpoint=tmp_path, progress=lambda _: None)
    assert f"fit: is finished already, at step {STEPS} of {STEPS}" in capsys.readouterr().err


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    fit(checkpoint=tmp_path, steps=2)
    step = sw.data_parallel(lambda p, b: (b["x"] @ p["w"])[:, 0] ** 2, optax.adam(0.1))
    with pytest.raises(sw.ShardingError, match=r"float32\[4, 3\] there and float32\[4, 1\] here"):
        sw.fit(step, step.init({"w": jnp.ones((4, 1))}), Rows(), steps=3, checkpoint=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(sw.ShardingError, match="is a file"):
        fit(checkpoint=tmp_path / "file")


@pytest.mark.parametrize("kind", ["pure", "nnx"])
def test_a_checkpoint_of_an_optimizer_with_the_same_arrays_is_refused(kind, tmp_path):
    def train(tx, steps):
        if kind == "pure":
            step = sw.data_parallel(lambda p, b: ((b["x"] @ p["w"] - b["y"]) ** 2).mean(-1), tx)
            state = step.init({"w": jnp.ones((4, 3))})
        else:
            step = sw.nnx.data_parallel(lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean(-1))
            model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
            state = model, nnx.Optimizer(model, tx, wrt=nnx.Param)
        sw.fit(step, state, Rows(), steps=steps, checkpoint=tmp_path, progress=False)

    train(optax.adam(0.1), 2)
    with pytest.raises(
        sw.ShardingError, match=r"optimizer is \['ScaleByAdamState', 'EmptyState'\]"
    ):
        train(optax.adamw(0.1), 3)
    with pytest.raises(sw.ShardingError, match=r"'ScaleByBeliefState', 'EmptyState'\] here"):
        train(optax.adabelief(0.1), 3)
    train(optax.adam(0.2), 3)


def test_params_whose_class_has_another_name_resume(tmp_path):
    x = np.ones((4, 3), np.float32)
    for name, steps in (("Weights", 1), ("Renamed", 2)):
        kind = collections.namedtuple(name, ["w"])
        step = sw.data_parallel(lambda p, b: (b @ p.w) ** 2, optax.adam(0.1), mesh=sw.mesh(data=2))
        state = step.init(kind(jnp.ones(3)))
        assert step.optimizer_kinds(state) == ["ScaleByAdamState", "EmptyState"]
        sw.fit(step, state, [x] * 2, steps=steps, checkpoint=tmp_path, progress=False)


def test_data_that_ends_too_early():
    with pytest.raises(sw.ShardingError, match="ended after 12"):
        fit(batches=iter(Rows()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"steps": 0}, "steps is 0\n  It is an integer, at least 1.\n  Remedy: steps=1000"),
        ({"steps": "10", "every": None}, "steps is '10', a str\n"),
        ({"steps": 5.5, "every": None}, "steps is 5.5\n"),
        ({"every": 0}, "every is 0\n"),
        ({"keep": 1}, "keep is 1\n  It is an integer, at least 2; two checkpoints are the least"),
    ],
)
def test_numbers_that_make_no_sense(given, words):
    """The one that is wrong is named, as it was written, and no other."""
    with pytest.raises(sw.ShardingError) as error:
        fit(**{"steps": 5, "every": 1, "keep": 2} | given)
    assert str(error.value).startswith(f"sw.fit: {words}")


@pytest.mark.parametrize("name", ["evaluate", "callbacks"])
def test_what_is_not_a_function_is_refused_with_one_that_is(name):
    with pytest.raises(TypeError, match=rf"{name} is an int\n.*\n  Remedy: {name}=\w+"):
        fit(**{name: 3})


def test_a_step_that_is_none():
    with pytest.raises(TypeError, match=r"step is a function"):
        sw.fit(lambda s, b: s, {}, Rows(), steps=1)
    with pytest.raises(TypeError, match="batches is an int"):
        fit(batches=3)
    with pytest.raises(TypeError, match="batches is a dict"):
        fit(batches=next(iter(Rows())))
    with pytest.raises(TypeError, match="the pair of model and optimizer"):
        sw.fit(begin("nnx")[0], begin("nnx")[1][0], Rows(), steps=1, progress=False)


def test_another_number_of_devices_goes_on(tmp_path):
    """The same training on eight devices, then on two: a checkpoint belongs to no number."""
    for devices, steps in ((8, 4), (2, 8)):
        done = run_and_die("nnx", tmp_path, 10**9, devices=devices, steps=steps)
        assert done.returncode == 0, done.stderr
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 9))


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(tmp_path):
    want = digest("pure", fit(steps=6))
    fit(checkpoint=tmp_path, steps=4, every=2)
    for path in (tmp_path / "4").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoint 4 is damaged") as told:
        state = fit(checkpoint=tmp_path, steps=6, every=2)
    assert "kept as 4.damaged. The training resumes from step 2: 2 steps are done again" in str(
        told[0].message
    )
    assert digest("pure", state) == want
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["2", "4", "4.damaged", "6"]
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 7))


def test_no_checkpoint_that_is_whole(tmp_path):
    fit(checkpoint=tmp_path, steps=4, every=2)
    for path in tmp_path.rglob("about/metadata"):
        path.write_bytes(path.read_bytes().replace(b'"drawn": ', b'"drawn": 1'))
    with pytest.raises(sw.ShardwiseError, match="no checkpoint there can be used") as error:
        fit(checkpoint=tmp_path, steps=6, every=2)
    assert error.match("checkpoint 4: its checksum does not match")
    assert error.match("another folder to start again")


def test_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    fit(checkpoint=tmp_path, steps=4, every=2)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "save", full)
        with pytest.raises(sw.ShardwiseError, match="No space left on device") as error:
            fit(checkpoint=tmp_path, steps=6, every=2)
    assert error.match("run it again")
    assert digest("pure", fit(checkpoint=tmp_path, steps=6)) == digest("pure", fit(steps=6))


def test_a_state_is_stored_before_it_is_evaluated(tmp_path):
    with pytest.raises(sw.ShardingError, match="evaluate function 'eval': it returned a float"):
        fit(checkpoint=tmp_path, steps=4, every=2, evaluate=lambda state: 1.0)
    assert (tmp_path / "2").is_dir()
    fit(checkpoint=tmp_path, steps=4, every=2, evaluate=lambda state: {"step": state.step})
    assert [row.get("eval/step") for row in rows_of(tmp_path)] == [None, 2, None, 4]
    with pytest.raises(sw.ShardingError, match=r"its 'w' has shape \[4, 3\]"):
        fit(steps=4, every=2, evaluate=lambda state: state.params)


def test_more_steps_than_asked_for(tmp_path):
    fit(checkpoint=tmp_path, steps=4)
    with pytest.warns(UserWarning, match="has 4 steps already, more than 3"):
        fit(checkpoint=tmp_path, steps=3)


def test_a_log_of_something_else_is_kept(tmp_path):
    (tmp_path / "log.jsonl").write_text("mine\n")
    fit(steps=1, log=tmp_path / "log.jsonl")
    assert (tmp_path / "log.jsonl.before").read_text() == "mine\n"


# --- the log


def evaluation(state):
    data = {k: np.concatenate([b[k] for b in Rows()]) for k in ("x", "y")}

    def error(params, batch):
        return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean(-1)

    return sw.evaluate(error, state.variables, data, progress=False)


def test_the_log_has_every_step_and_every_evaluation(tmp_path):
    state = fit(checkpoint=tmp_path, every=EVERY, evaluate={"train": evaluation})
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    evaluated = [row["step"] for row in rows if "train/mean" in row]
    assert evaluated == [5, 10, 15, 20, 23]
    assert rows[-1]["train/mean"] == pytest.approx(evaluation(state)["mean"])
    assert rows[-1]["loss"] < rows[0]["loss"] / 2
    needed("matplotlib", "that curves are drawn")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_log_of_another_kind(tmp_path):
    with pytest.raises(sw.ShardingError, match=r"a \.jsonl file"):
        fit(log=tmp_path / "log.txt")


def test_progress_can_be_listened_to(monkeypatch):
    from shardwise._base import progress as _progress

    monkeypatch.setattr(_progress.CallbackView, "every", 0.0)
    seen = []
    fit(progress=seen.append, every=5)
    assert seen[-1].done == seen[-1].total == STEPS
    assert "steps" in str(seen[-1])
    assert seen[-1].metrics["loss"] > 0


def test_compiling_does_not_count_for_the_time_left(monkeypatch):
    from shardwise._base import progress as _progress

    now, seen = [100.0], []
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    view = _progress.CallbackView(seen.append)
    view.every = 0.0
    bar = _progress.Progress(view, 1000, 400, dict, unit="steps")
    now[0] += 60  # the first step is compiled
    bar.add(1)
    assert (seen[-1].rate, seen[-1].seconds_left) == (0, None)
    assert str(seen[-1]) == "401 of 1,000 (40.1%) steps"
    for _ in range(10):
        now[0] += 0.5
        bar.add(1)
    assert (seen[-1].rate, seen[-1].seconds_left) == (2.0, 589 / 2)
    assert str(seen[-1]) == "411 of 1,000 (41.1%) steps, 2/s, 4:54 left"


@pytest.mark.parametrize(
    ("value", "text"),
    [(94570.3, "94,570"), (1_000_000, "1,000,000"), (0.0123456, "0.01235"), (3, "3")]
    + [(56.178, "56.18"), (float("nan"), "nan"), (float("inf"), "inf"), (1e-9, "1e-09")],
)
def test_numbers_as_people_read_them(value, text):
    from shardwise._base.progress import number

    assert number(value) == text


def test_only_steps_that_the_devices_have_finished_are_counted():
    class Later:
        ready = False

        def is_ready(self):
            return self.ready

    first, second = Later(), Later()
    loop = TrainingLoop.__new__(TrainingLoop)
    loop.done, loop._finished = 2, 0
    loop._pending = [(1, 1, 0.0, {"loss": first}), (2, 2, 0.0, {"loss": second})]
    assert loop._newly_finished() == 0
    second.ready = True
    assert loop._newly_finished() == 0  # in order
    first.ready = True
    assert loop._newly_finished() == 2
    assert loop._newly_finished() == 0
    loop.done, loop._pending = 5, []  # fetched
    assert loop._newly_finished() == 3


def test_the_end_is_one_line_with_metrics_and_paths(tmp_path, capsys):
    options = {"checkpoint": tmp_path / "run", "every": 2, "progress": None}
    fit(steps=4, evaluate={"test": lambda state: {"hits": 0.75}}, **options)
    folder = tmp_path / "run"
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"fit: 4 steps in \d+:\d\d, loss [\d.]+, test/hits 0.75; checkpoints in", line)
    assert f"; checkpoints in {folder}; log {folder / 'log.jsonl'}" in line
    assert (f"; curves {folder / 'curves.png'}" in line) == (folder / "curves.png").exists()
    fit(steps=6, **options)
    assert "fit: 6 steps (4 of them before) in" in capsys.readouterr().err
    fit(steps=6, **options)
    position, *others = capsys.readouterr().err.splitlines()
    assert position == f"fit: is finished already, at step 6 of 6, in {folder}"
    missing = [] if (folder / "curves.png").exists() else ["curves.png was not drawn"]
    assert all(part in line for part, line in zip(missing, others, strict=True))


def test_what_was_evaluated_is_shown_from_then_on(monkeypatch):
    from shardwise._base import progress as _progress

    monkeypatch.setattr(_progress.CallbackView, "every", 0.0)
    seen = []
    fit(progress=seen.append, every=2, steps=5, evaluate={"test": lambda state: {"hits": 0.5}})
    assert list(seen[-1].metrics) == ["loss", "test/hits"]
    assert "test/hits" not in seen[0].metrics
    assert "test/hits 0.5" in str(seen[2])


@pytest.mark.parametrize("weights", [(0, 0), (1, -1)])
def test_steps_without_weight_are_told(weights):
    def loss(params, batch):
        return (batch["x"] @ params["w"])[:, 0], jnp.tile(jnp.array(weights), 5)

    step = sw.data_parallel(loss, optax.sgd(0.1), mesh=sw.mesh(data=1))
    with pytest.warns(UserWarning, match="step 1: the weights add up to zero"):
        sw.fit(step, step.init({"w": jnp.ones((4, 3))}), Rows(), steps=1, progress=False)


def test_old_checkpoints_are_dropped(tmp_path):
    fit(checkpoint=tmp_path, every=4, keep=2)
    kept = sorted(int(path.name) for path in tmp_path.iterdir() if path.is_dir())
    assert kept == [20, 23]
