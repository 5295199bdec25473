"""The commands of `shardwise practice`, run in this process, and the exercises as data."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import resource
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardwise._base.errors import ShardwiseError
from shardwise._cli import app
from shardwise._cli.status import ExitCode
from shardwise._practice.exercise import OWN, load_all
from shardwise._practice.folder import Folder
from shardwise._practice.pitfalls import COMMON

SEEDS = (
    "shard_map_psum",
    "shard_map_vs_vmap",
    "shard_map_simulate",
    "sharded_eval_loss",
    "data_parallel_step",
)


def run(*args: object):
    words = ["practice", *map(str, args)]
    return CliRunner().invoke(app, words, prog_name="shardwise", env={"COLUMNS": "100"})


@pytest.fixture
def folder(tmp_path):
    assert run("start", tmp_path / "here").exit_code == 0
    return tmp_path / "here"


# --- the exercises


def test_there_are_enough_exercises_in_an_order_that_teaches(exercises):
    assert len(exercises) >= 24
    assert tuple(one.name for one in exercises[:5]) == SEEDS
    numbers = [one.number for one in exercises]
    assert numbers == sorted(set(numbers))
    known: set[str] = set()
    for one in exercises:
        assert set(one.needs) <= known, f"{one.name} needs what comes later"
        known.add(one.name)


def test_every_exercise_is_whole(exercises):
    for one in exercises:
        where = f"{one.folder.name}: "
        assert len(one.hints) >= 2, where
        assert len(one.wrong) >= 3, where
        assert len(one.statement) > 150, where
        for source in (one.start, one.solution, *one.wrong.values()):
            assert one.function in {
                node.name
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.FunctionDef)
            }, where
        assert ast.get_docstring(ast.parse(one.start), clean=False), where
        used = {name.partition("--")[0] for name in one.wrong} | {name for _, name in one.requires}
        for name in used:
            pitfall = one.pitfall(name)
            assert pitfall.text, f"{where} {name} has no text"
        for name in set(one.pitfalls) - set(one.wrong):
            # A pitfall without a wrong solution has to be reachable at least.
            task = (one.folder / "task.py").read_text()
            shown = {w.partition("--")[0] for w in one.wrong}
            rules = {b for _, b in one.requires}
            assert name in shown | rules or f'"{name}' in task, f"{where} {name} is never said"


def test_no_hint_of_a_verdict_is_the_solution(exercises):
    for one in exercises:
        code = [line.strip() for line in one.solution.splitlines() if len(line.strip()) > 60]
        for pitfall in {**COMMON, **one.pitfalls}.values():
            assert not any(line in pitfall.hint for line in code), one.name


# --- the folder


def test_start_writes_the_exercises_and_keeps_what_is_there(folder, exercises):
    files = sorted(path.name for path in folder.glob("*.py"))
    assert files == [one.file_name for one in exercises]
    first = folder / exercises[0].file_name
    assert first.read_text().startswith(f'"""{exercises[0].title}\n')
    first.write_text("mine = 1\n")
    (folder / exercises[1].file_name).unlink()
    again = run("start", folder)
    assert f"1 exercise written to {folder}/, {len(exercises) - 1} kept." in again.output
    assert first.read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    "option", [("--dir", "nowhere"), ("--exercises", "nowhere"), ("--seconds", "9")]
)
def test_an_option_before_a_command_is_not_lost(folder, option):
    result = run(*option, "list")
    assert result.exit_code == 2
    words = " ".join(result.stderr.split())
    assert f"shardwise practice list {option[0]} ..." in words


@pytest.mark.parametrize(
    "args",
    [
        ("judge", "--all", "nowhere"),
        ("judge", "--all", "empty"),
        ("verify", "--exercises", "empty"),
        ("list", "--exercises", "nowhere"),
    ],
)
def test_what_is_not_there_is_told_with_a_remedy(tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    result = run(*args)
    assert result.exit_code == ExitCode.NOT_RUN
    assert "\n  Remedy: " in result.stderr


def test_list_shows_what_is_done(folder):
    found = run("list", "--dir", folder)
    assert "[>] 01 shard_map_psum" in found.output
    assert "0 of 35 done." in found.output
    assert re.findall(r"\] \d\d (\w+)", found.output)[:5] == list(SEEDS)


def test_hints_come_one_at_a_time(folder, exercises):
    total = len(exercises[0].hints)
    for count in range(1, total + 2):
        found = run("hint", "shard_map_psum", "--dir", folder)
        assert "A verdict's hint is another" in found.output
        assert found.output.count("\n\n") == 1 + min(count, total)
        assert ("no more hints" in found.output) == (count >= total)


def test_reset_keeps_the_old_version(folder, exercises):
    file = folder / exercises[0].file_name
    file.write_text("mine = 1\n")
    found = run("reset", "1", "--dir", folder)
    assert "Your version is kept as 01_shard_map_psum.before.txt." in found.output
    assert (folder / "01_shard_map_psum.before.txt").read_text() == "mine = 1\n"
    assert file.read_text() == exercises[0].start
    assert "kept" not in run("reset", "1", "--dir", folder).output


def test_the_solution_is_shown_once_it_is_found_or_on_request(folder, exercises):
    refused = run("show", "shard_map_psum", "--dir", folder)
    assert refused.exit_code == 2
    assert "is not solved yet" in refused.output
    shown = run("show", "shard_map_psum", "--anyway", "--dir", folder)
    assert shown.output == exercises[0].solution


def test_whoever_is_in_the_folder_need_not_go_there(tmp_path, monkeypatch):
    assert f"cd {tmp_path} && shardwise practice" in run("start", tmp_path).output
    monkeypatch.chdir(tmp_path)
    assert "    shardwise practice\n" in run("start", ".").output


def test_start_in_a_practice_folder_fills_it(folder, exercises, monkeypatch):
    """Files that are gone or empty are written again, and no folder appears inside."""
    first, second, third = (folder / one.file_name for one in exercises[:3])
    first.write_text("")
    second.unlink()
    third.write_text("mine = 1\n")
    (folder / "below").mkdir()
    for where, said in ((folder, "2 exercises written to ./, "), (folder / "below", "0 exercises")):
        monkeypatch.chdir(where)
        found = run("start")
        assert found.output.startswith(said), found.output
    assert [file.read_text() for file in (first, second)] == [one.start for one in exercises[:2]]
    assert third.read_text() == "mine = 1\n"
    assert not list(folder.glob("**/practice"))


def test_start_once_more_keeps_to_the_exercises_of_the_folder(tmp_path, monkeypatch):
    own = tmp_path / "own"
    shutil.copytree(OWN / "34_bytes_of_a_sum", own / "01_bytes")
    monkeypatch.chdir(tmp_path)
    assert "1 exercise written" in run("start", "--exercises", own).output
    assert "0 exercises written to practice/, 1 kept." in run("start").output
    assert [file.name for file in Path("practice").glob("*.py")] == ["01_bytes.py"]


def test_a_folder_that_cannot_be_looked_into(tmp_path):
    """As one of somebody else's; root may look into that, and into no name of this length."""
    with pytest.raises(ShardwiseError, match=r"it cannot be written \(File name too long\)"):
        Folder.start(tmp_path / ("x" * 300), None)
    with pytest.raises(ShardwiseError, match="this is not a practice folder"):
        Folder.find(tmp_path / ("x" * 300))


def test_the_cause_is_told_also_where_there_is_no_way_back(folder, exercises, monkeypatch):
    (folder / exercises[0].file_name).write_text("mine = 1\n")
    rename = Path.rename

    def once(path, to):
        if ".before" in path.name:
            raise PermissionError(13, "Permission denied")
        rename(path, to)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", once)
    monkeypatch.setattr("shardwise._practice.folder.write_whole", full)
    with pytest.raises(ShardwiseError, match=r"cannot be written \(No space left on device\)"):
        Folder.find(folder).reset(exercises[0])


def test_a_full_disk_leaves_no_empty_file_and_loses_none(folder, exercises, tmp_path):
    mine = folder / exercises[0].file_name
    mine.write_text("mine = 1\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(ShardwiseError, match="it cannot be written"):
            Folder.start(tmp_path / "new", None)
        with pytest.raises(ShardwiseError, match="it cannot be written"):
            Folder.find(folder).reset(exercises[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "new").iterdir()) == []
    assert mine.read_text() == "mine = 1\n"
    assert not list(folder.glob("*.before*"))


def test_a_file_that_is_gone_can_be_written_again(folder):
    (folder / "01_shard_map_psum.py").unlink()
    found = run("judge", "1", "--dir", folder)
    assert found.exit_code == 2
    assert "shardwise practice reset shard_map_psum" in found.output
    assert run("reset", "1", "--dir", folder).exit_code == 0
    assert (folder / "01_shard_map_psum.py").exists()


def test_a_folder_that_is_none_is_refused(tmp_path):
    found = run("hint", "shard_map_psum", "--dir", tmp_path)
    assert found.exit_code == 2
    assert "this is not a practice folder" in found.output
    assert "shardwise practice start" in found.output
    (tmp_path / ".practice.json").write_text("{")
    assert "the progress cannot be read" in run("hint", "1", "--dir", tmp_path).output


# --- judging


def test_judge_answers_with_its_exit_code(tmp_path, exercises):
    one = exercises[33]
    file = tmp_path / "mine.py"
    file.write_text(one.solution)
    right = run("judge", one.name, file)
    assert (right.exit_code, right.output) == (0, f"{one.name}: right\n  your answer  right\n")
    file.write_text(one.wrong["only-one-half"])
    wrong = run("judge", one.name, file, "--format", "json")
    assert wrong.exit_code == 1
    data = json.loads(wrong.output)
    assert data["status"] == "wrong"
    assert data["pitfall"]["name"] == "only-one-half"
    file.write_text("def answer(:\n")
    assert run("judge", one.name, file).exit_code == 2
    assert run("judge", one.name, tmp_path / "none.py").exit_code == 2
    assert run("judge", "no_such_exercise", file).exit_code == 2
    assert run("judge").exit_code == 2


def test_a_right_verdict_in_a_practice_folder_counts(folder, exercises, monkeypatch):
    one, after = exercises[33], exercises[0]
    (folder / one.file_name).write_text(one.wrong["only-one-half"])
    (folder / "notes").mkdir()
    monkeypatch.chdir(folder / "notes")
    wrong = run("judge", one.name)
    assert wrong.exit_code == 1
    assert "Next:" not in wrong.output
    assert "0 of 35 done." in run("list").output
    (folder / one.file_name).write_text(one.solution)
    right = run("judge", one.name)
    assert right.exit_code == 0, right.output
    assert right.output.endswith(f"\n\nNext: {after.file_name} ({after.title})\n")
    assert "1 of 35 done." in run("list").output
    assert run("show", one.name).output == one.solution
    run("reset", one.name)
    (folder / "elsewhere.py").write_text(one.solution)
    assert run("judge", one.name, folder / "elsewhere.py").exit_code == 0
    assert "1 of 35 done." in run("list").output
    assert "judge NAME" in (folder / "README.md").read_text()


def test_judge_without_a_file_needs_a_practice_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run("judge", "shard_map_psum")
    assert found.exit_code == 2
    assert "this is not a practice folder" in found.output
    assert "judge NAME FILE" in found.output


def test_what_is_right_in_ones_own_folder_is_marked_and_counted(folder, exercises):
    one = exercises[34]
    for other in exercises:
        if other is not one:
            (folder / other.file_name).unlink()
    (folder / one.file_name).write_text(one.solution)
    assert run("judge", "--all", folder).exit_code == 0
    assert "1 of 35 done." in run("list", "--dir", folder).output


def test_progress_of_two_commands_at_once_is_kept(folder, exercises):
    """The watcher has the folder open while `judge` or `hint` writes to it."""
    from shardwise._practice.folder import Folder
    from shardwise._practice.verdict import RIGHT, Judgement

    watcher, other = Folder.find(folder), Folder.find(folder)
    for opened, one in ((watcher, exercises[0]), (other, exercises[1])):
        assert opened.note(one, Judgement(one.name, one.title, one.file_name, RIGHT))
    watcher.hint(exercises[2])
    assert set(Folder.find(folder).solved) == {exercises[0].name, exercises[1].name}


def test_a_teacher_marks_a_folder(tmp_path, exercises):
    one, other = exercises[33], exercises[34]
    for who, source in (("ada", one.solution), ("bob", one.wrong["numbers-not-bytes"])):
        (tmp_path / who).mkdir()
        (tmp_path / who / one.file_name).write_text(source)
    (tmp_path / "ada" / f"{other.name}.py").write_text(other.solution)
    (tmp_path / "ada" / "notes.py").write_text("1 / 0\n")
    found = run("judge", "--all", tmp_path, "--format", "csv")
    assert found.exit_code == 1
    rows = list(csv.DictReader(io.StringIO(found.output)))
    said = [(row["who"], row["exercise"], row["status"], row["pitfall"]) for row in rows]
    assert said == [
        ("ada", one.name, "right", ""),
        ("ada", other.name, "right", ""),
        ("bob", one.name, "wrong", "numbers-not-bytes"),
    ]
    assert run("judge", "--all", tmp_path / "none").exit_code == 2


def test_a_teacher_adds_an_exercise(tmp_path):
    own = tmp_path / "own"
    shutil.copytree(OWN / "34_bytes_of_a_sum", own / "01_bytes")
    assert run("list", "--exercises", own, "--dir", tmp_path).output.count("[") == 1
    good = run("verify", "--exercises", own)
    assert good.exit_code == 0, good.output
    (own / "01_bytes" / "wrong" / "all-devices.py").write_text(
        "def answer():\n    return 7_000_000\n"
    )
    bad = run("verify", "--exercises", own)
    assert bad.exit_code == 1
    assert re.search(r"wrong/all-devices.py: right +NOT all-devices", bad.output)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 1\nform = 'magic'", "form = 'magic'"),
        ("title = 1\nform = ['mesh']", "form = ['mesh']"),
        ("title = 'x'", "'form' is missing"),
        ("form = 'mesh'", "'title' is missing"),
        ("title = 'x'\nform = 'mesh'\npitfalls.a.title = 'x'", "pitfall 'a' lacks"),
        ("title = 'x'\nform = 'mesh'\nmeshs = [1]", "'meshs' is not known"),
        ("title = ", "Invalid value"),
        ("title = '\xff'", "'utf-8' codec can't decode"),
        ("title = 1\nform = 'mesh'", "title = 1"),
        *(
            (f"title = 'x'\nform = 'mesh'\n{wrong}", wrong)
            for wrong in (
                *("meshes = 3", "meshes = ['2']", "requires = 3"),
                *("requires = [['split']]", "needs = 3", "needs = [1]", "pitfalls = 'a'"),
            )
        ),
        ("title = 'x'\nform = 'mesh'\npitfalls.a = 3", "pitfalls = {'a': 3}"),
        ("title = 'x'\nform = 'mesh'\npitfalls.a.title = 1", "pitfalls = {'a': {'title': 1}}"),
    ],
)
def test_a_damaged_exercise_is_named(tmp_path, text, message):
    (tmp_path / "01_mine").mkdir()
    (tmp_path / "01_mine" / "exercise.toml").write_text(text, encoding="latin-1")
    found = run("list", "--exercises", tmp_path, "--dir", tmp_path)
    assert found.exit_code == 2
    assert message in found.output
    assert "exercise.toml" in found.output
    assert "Remedy: " in found.output
    if "form" in message:
        for form in ("mesh", "replace", "shards", "answer"):
            assert f"{form} (it " in found.output


@pytest.mark.parametrize("name", ["statement.md", "start.py", "solution.py", "hints.md", "task.py"])
def test_a_file_of_an_exercise_that_is_missing_is_named_with_what_to_write(tmp_path, name):
    own = tmp_path / "own" / "01_bytes"
    shutil.copytree(OWN / "34_bytes_of_a_sum", own)
    (own / name).unlink()
    one = load_all(own.parent)[0]
    with pytest.raises(ShardwiseError, match=f"there is no {re.escape(name)}\n.*\n  Remedy: write"):
        assert [one.start, one.solution, one.hints, one.task]


def test_an_exercise_needs_no_expected_values(tmp_path):
    """Without expected() in task.py the solution on one device says what is right."""
    own = tmp_path / "own"
    shutil.copytree(OWN / "09_eval_on_a_mesh", own / "01_loss")
    task = own / "01_loss" / "task.py"
    text = task.read_text()
    task.write_text(text[: text.index("def expected")])
    one = load_all(own)[0]
    (tmp_path / "mine.py").write_text(one.wrong["n-times"])
    found = run("judge", "loss", tmp_path / "mine.py", "--exercises", own, "--format", "json")
    data = json.loads(found.output)
    assert data["pitfall"]["name"] == "n-times"
    assert [one["ok"] for one in data["runs"]] == [True, False, False, False]


def test_verify_proves_solutions_right_and_mistakes_wrong():
    """The whole of it is `shardwise practice verify`, which takes minutes."""
    found = run("verify", "shard_map_psum", "bytes_of_a_layer", "--quick", "--seconds", "900")
    assert found.exit_code == 0, found.output
    assert "wrong/missing-psum.py: missing-psum" in found.output


def test_nothing_of_a_wheel_is_missing():
    """What is no Python file has to be packaged too."""
    kinds = {path.suffix for path in Path(OWN).rglob("*") if path.is_file()}
    assert {".toml", ".md", ".py"} <= kinds
