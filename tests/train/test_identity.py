"""Checkpoints and logs that are whole and in the wrong place: renamed, copied, mixed, foreign."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise._base.durable import seal
from shardwise._runtime.train.fit.checkpoint import Checkpoints
from shardwise._runtime.train.fit.record import History, Record

from .fitting import digest
from .test_fit import fit, rows_of


def value(step: int, sign: int = 1) -> dict[str, np.ndarray]:
    """A state that tells its step, of two arrays; one of each run if the sign differs."""
    return {"w": np.full((4, 3), sign * step, np.float32), "n": np.asarray(step)}


def train(folder: Path, upto: int, *, sign: int = 1) -> int:
    """Resume, store every other step up to one, and return the step that it resumed from."""
    store = Checkpoints(folder, keep=9)
    try:
        found = store.resume(value(0))
        done = 0 if found is None else found.step
        if found is not None:
            assert int(found.arrays["n"]) == done
            assert found.position == {"drawn": done}
        for step in range(done + 2, upto + 1, 2):
            store.save(step, value(step, sign), {"drawn": step})
        store.wait()
    finally:
        store.close()
    return done


@pytest.fixture
def folder(tmp_path):
    train(tmp_path / "run", 8)
    return tmp_path / "run"


def resumed(folder: Path, words: str) -> int:
    """Resume with a warning; the step, and nothing of it left under its own name."""
    with pytest.warns(UserWarning, match=words):
        return train(folder, 8)


def test_nothing_is_said_of_a_folder_that_was_left_alone(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(folder, 8) == 8
        assert train(folder, 12) == 8
        shutil.rmtree(folder / "12")
        shutil.rmtree(folder / "10")
        assert train(folder, 14) == 8
        assert train(folder, 14) == 14


def test_a_moved_folder_is_the_same_run(folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder.rename(tmp_path / "elsewhere")
        assert train(tmp_path / "elsewhere", 10) == 8


def test_renamed(folder):
    shutil.rmtree(folder / "8")
    (folder / "4").rename(folder / "8")
    words = r"checkpoint 8 is foreign \(it is a checkpoint of step 4, renamed or copied\)"
    assert resumed(folder, words) == 6
    assert (folder / "8.foreign").is_dir()


def test_copied_under_a_later_step(folder):
    shutil.copytree(folder / "8", folder / "1000")
    assert resumed(folder, "checkpoint 1000 is foreign .*of step 8.*kept as 1000.foreign") == 8


def test_a_name_that_is_a_number_to_python_alone(folder):
    """`08` and Arabic digits are no names of ours."""
    shutil.copytree(folder / "4", folder / "012")
    shutil.copytree(folder / "4", folder / "\u0661\u0662")
    assert train(folder, 8) == 8


def test_two_that_changed_places(folder):
    (folder / "8").rename(folder / "x")
    (folder / "6").rename(folder / "8")
    (folder / "x").rename(folder / "6")
    assert resumed(folder, "checkpoint 8 is foreign .* checkpoint 6 is foreign") == 4


def test_none_that_has_its_name(folder):
    for step in (2, 4, 6):
        shutil.rmtree(folder / str(step))
    (folder / "8").rename(folder / "6")
    with pytest.raises(sw.ShardwiseError, match="checkpoint 6: it is a checkpoint of step 8") as e:
        train(folder, 8)
    assert e.match("Remedy: restore its name")
    assert (folder / "6").is_dir()


def test_of_another_run_with_the_same_shapes(folder, tmp_path):
    train(tmp_path / "other", 10, sign=-1)
    shutil.copytree(tmp_path / "other" / "10", folder / "10")
    words = r"checkpoint 10 is foreign \(it belongs to run [-\w]+, this folder to run [-\w]+\)"
    assert resumed(folder, words) == 8


def test_of_a_copy_that_was_trained_elsewhere(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    train(tmp_path / "copy", 12, sign=-1)
    shutil.copytree(tmp_path / "copy" / "12", folder / "12")
    assert resumed(folder, "checkpoint 12 is foreign .*a copy of this run") == 8


def test_brought_back_after_the_run_was_resumed_without_it(folder):
    (folder / "8").rename(folder / "later")
    assert train(folder, 7) == 6  # nothing to store: the history stays as it is
    (folder / "later").rename(folder / "8")
    assert train(folder, 8) == 8
    for step in (6, 8):
        (folder / str(step)).rename(folder / f"later{step}")
    assert train(folder, 6, sign=-1) == 4
    (folder / "later8").rename(folder / "8")
    assert resumed(folder, "checkpoint 8 is foreign .*was resumed at step 4 after it") == 6


def test_arrays_of_one_and_record_of_another(folder):
    shutil.rmtree(folder / "8" / "state")
    shutil.copytree(folder / "6" / "state", folder / "8" / "state")
    assert resumed(folder, "checkpoint 8 is damaged .*does not match its checksum") == 6


class TestTheRunItself:
    def test_is_read_from_the_checkpoints_where_the_file_is_missing(self, folder):
        before = (folder / "run.json").read_text()
        (folder / "run.json").unlink()
        assert train(folder, 8) == 8
        assert (folder / "run.json").read_text() == before

    def test_or_damaged(self, folder):
        before = (folder / "run.json").read_text()
        (folder / "run.json").write_text(before.replace("sessions", "sessionz"))
        assert resumed(folder, r"run.json is damaged \(its checksum") == 8
        assert (folder / "run.json").read_text() == before

    def test_or_refused_if_they_disagree(self, folder, tmp_path):
        train(tmp_path / "other", 10)
        shutil.copytree(tmp_path / "other" / "10", folder / "10")
        (folder / "run.json").unlink()
        with pytest.raises(sw.ShardwiseError, match=r"checkpoint 2 is of run .* 10 of run") as e:
            train(folder, 8)
        assert e.match("Remedy: restore run.json")

    def test_of_another_folder_fits_no_checkpoint(self, folder, tmp_path):
        train(tmp_path / "other", 8)
        shutil.copy(tmp_path / "other" / "run.json", folder / "run.json")
        with pytest.raises(sw.ShardwiseError, match="checkpoint 8: it belongs to run"):
            train(folder, 8)

    def test_of_another_version_is_refused(self, folder):
        (folder / "run.json").write_text(json.dumps(seal({"format": "shardwise fit 2"})))
        with pytest.raises(sw.ShardwiseError, match="its format is 'shardwise fit 2', this ver"):
            train(folder, 8)


def record(step: int, history: History) -> Record:
    return Record(history, step, {}, {}, [])


def test_histories():
    first = History("a").extend("s1", 0)
    second = first.extend("s2", 8)
    third = second.extend("s3", 4)
    assert third.sessions == (("s1", 0), ("s3", 4))  # s2 has nothing left
    assert not second.objection(record(8, first))
    assert not second.objection(record(12, second))
    assert "resumed at step 8" in second.objection(record(9, first))
    assert "a copy of this run" in first.objection(record(12, second))
    assert "belongs to run b" in first.objection(record(4, History("b").extend("s1", 0)))


# --- through sw.fit


def test_fit_does_not_train_on_a_renamed_checkpoint(tmp_path):
    want = digest("pure", fit(steps=6))
    fit(checkpoint=tmp_path, steps=4, every=2)
    shutil.rmtree(tmp_path / "4")
    shutil.copytree(tmp_path / "2", tmp_path / "4")
    with pytest.warns(UserWarning, match="checkpoint 4 is foreign.*resumes from step 2"):
        state = fit(checkpoint=tmp_path, steps=6, every=2)
    assert digest("pure", state) == want
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 7))


def test_a_log_of_another_run_is_not_continued(tmp_path):
    for name in "ab":
        fit(checkpoint=tmp_path / name, steps=4, every=2)
    shutil.copy(tmp_path / "a" / "log.jsonl", tmp_path / "b" / "log.jsonl")
    with pytest.raises(sw.ShardingError, match="cannot be read as the log of this training"):
        fit(checkpoint=tmp_path / "b", steps=6, every=2)
    rows = (tmp_path / "a" / "log.jsonl").read_text().splitlines()
    (tmp_path / "b" / "log.jsonl").unlink()
    with pytest.warns(UserWarning, match="rows of steps 1 to 3 are missing"):
        fit(checkpoint=tmp_path / "b", steps=6, every=2)
    own = (tmp_path / "b" / "log.jsonl").read_text().splitlines()
    (tmp_path / "b" / "log.jsonl").write_text("\n".join([rows[0], *own]) + "\n")
    with pytest.warns(UserWarning, match=r"missing or damaged \(line 1: its checksum"):
        fit(checkpoint=tmp_path / "b", steps=6, every=2)
