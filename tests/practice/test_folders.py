"""A folder of somebody else's: what it says is not done."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from shardwise._cli import app
from shardwise._practice.exercise import OWN, find, load_all


def test_exercises_that_a_strangers_folder_names_are_not_loaded(tmp_path):
    """`task.py` runs in the judge's own process: a folder handed in must not choose it."""
    evil, room = tmp_path / "evil" / "01_shard_map_psum", tmp_path / "room"
    evil.mkdir(parents=True)
    room.mkdir()
    for file in (OWN / "01_shard_map_psum").iterdir():
        if file.is_file():
            (evil / file.name).write_bytes(file.read_bytes())
    with open(evil / "task.py", "a") as task:
        task.write(f"open({str(tmp_path / 'escaped')!r}, 'w').close()\n")
    state = {"version": 1, "exercises": str(tmp_path / "evil"), "solved": {}, "hints": {}}
    (room / ".practice.json").write_text(json.dumps(state))
    file = room / "01_shard_map_psum.py"
    file.write_text(find(load_all(), "shard_map_psum").solution)
    run = CliRunner().invoke
    done = run(app, ["practice", "judge", "shard_map_psum", str(file), "--seed", "1"])
    assert done.exit_code == 0, done.output
    assert run(app, ["practice", "judge", "--all", str(room)]).exit_code == 0
    assert not (tmp_path / "escaped").exists()
    assert json.loads((room / ".practice.json").read_text())["solved"] == {}
    words = ["practice", "judge", "shard_map_psum", str(file), "--exercises", str(evil.parent)]
    assert run(app, words).exit_code == 0  # named by the user, they are
    assert (tmp_path / "escaped").exists()
