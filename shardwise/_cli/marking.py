"""Mark a solution or a folder of solutions, and print verdicts as text, JSON and CSV."""

from __future__ import annotations

import csv
import enum
import io
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._base.errors import ShardwiseError
from .._practice.exercise import Exercise, load_all
from .._practice.folder import Folder
from .._practice.text import visible
from .._practice.verdict import NOT_RUN, Judgement
from .status import ExitCode

if TYPE_CHECKING:
    from .._practice.judge import Judge
    from .._practice.sandbox.host import Limits


class MarksFormat(enum.StrEnum):
    """The formats of verdicts."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def folder_of(place: Path, exercises: Path | None) -> Folder | None:
    """Return the practice folder at or above a path, if it uses the requested exercises.

    Exercises are code. A folder with solutions may be somebody else's, so those that it names are
    not loaded unless the user names them too.
    """
    folder = Folder.above(place)
    source = exercises.resolve() if exercises else None
    return folder if folder is not None and folder.source == source else None


def note(folder: Folder | None, exercise: Exercise, judgement: Judgement) -> str:
    """Record a verdict in a practice folder, as the watcher does, and return what to do next."""
    if folder is None or not judgement.ok:
        return ""
    try:
        return folder.onward(folder.note(exercise, judgement))
    except ShardwiseError as error:  # the verdict is valid even if it cannot be recorded
        typer.echo(f"The progress was not recorded. {error}", err=True)
        return ""


def judge_all(
    folder: Path,
    exercises: Path | None,
    output: MarksFormat,
    seconds: float,
    seed: int | None,
    unsafe: bool = False,
) -> None:
    """Mark every solution in a folder and below, and exit."""
    from .._practice.judge import Judge

    progress = folder_of(folder, exercises)
    pairs = list(_solutions(folder, progress.exercises if progress else load_all(exercises)))
    if not pairs:
        raise ShardwiseError(
            "there are no solutions here",
            where=f"--all {folder}",
            rule="A solution is called after its exercise: 01_shard_map_psum.py or "
            "shard_map_psum.py, in the folder or in a folder for each person below it.",
            remedy="name the folder that holds them, or call the files so; shardwise practice "
            "list has the names.",
        )
    right = 0
    with Judge(limits(seconds), without=without(unsafe), confirming=True) as judge:
        judge.sandbox.hide(folder)
        if unsafe:
            warn(judge)
        judge.sandbox.require_walls()
        for index, (who, exercise, file) in enumerate(pairs):
            judgement = _judged(judge, exercise, file, folder, seed)
            # Only the user's own progress is recorded, not that of a class's folders.
            note(progress, exercise, judgement)
            right += judgement.ok
            _write_mark(who, judgement, output, index == 0)
    if output is MarksFormat.JSON:
        typer.echo("\n]")
    elif output is MarksFormat.TEXT:
        typer.echo(f"\n{right} of {len(pairs)} right")
    raise typer.Exit(ExitCode.OK if right == len(pairs) else ExitCode.WRONG)


def _write_mark(who: str, judgement: Judgement, output: MarksFormat, first: bool) -> None:
    """Write one mark immediately, so that a crash does not lose those before it."""
    if output is MarksFormat.JSON:
        text = json.dumps({"who": who, **judgement.to_dict()}, indent=2)
        typer.echo(("[\n" if first else ",\n") + textwrap.indent(text, "  "), nl=False)
    elif output is MarksFormat.CSV:
        typer.echo(as_csv(_row(who, judgement), head=first), nl=False)
    else:
        pitfall = f" [{judgement.pitfall.name}]" if judgement.pitfall else ""
        why = f" ({_why(judgement)})" if judgement.pitfall is None and judgement.reason else ""
        typer.echo(f"{who}: {judgement.exercise}: {judgement.status}{pitfall}{why}")


def _judged(
    judge: Judge, exercise: Exercise, file: Path, folder: Path, seed: int | None
) -> Judgement:
    """Return a verdict, even if judging fails, so that every submission gets a row."""
    try:
        if file.resolve() != folder.resolve() / file.relative_to(folder):
            raise ShardwiseError("It is a symbolic link: hand in the file itself.")
        return judge.judge_file(exercise, file, seed)
    except Exception as error:  # the other submissions must still be judged
        return Judgement.of_failure(exercise, str(file), error)


def _why(judgement: Judgement) -> str:
    """Return the reason why a solution is not right, on one line."""
    if judgement.ok:
        return ""
    text = judgement.pitfall.title if judgement.pitfall else judgement.reason
    return " ".join(text.split())[:300]


def without(unsafe: bool) -> tuple[str, ...]:
    """Return the parts of the sandbox to leave out."""
    from .._practice.sandbox.walls import ALL

    return ALL if unsafe else ()


def warn(judge: Judge) -> None:
    """Print a warning about the missing parts of the sandbox."""
    if warning := judge.sandbox.warning():
        typer.echo(warning, err=True)


def _solutions(folder: Path, exercises: Sequence[Exercise]) -> Iterator[tuple[str, Exercise, Path]]:
    """Yield owner, exercise and path of every file named after an exercise."""
    if not folder.is_dir():
        raise ShardwiseError(
            "there is no such folder",
            where=f"--all {folder}",
            remedy="name a folder that is there; one file is judged with practice judge NAME FILE.",
        )
    known = {exercise.file_name: exercise for exercise in exercises} | {
        f"{exercise.name}.py": exercise for exercise in exercises
    }
    for file in sorted(_files(folder)):
        exercise = known.get(file.name)
        if exercise is not None:
            who = file.parent.relative_to(folder)
            yield visible(str(who) if who.parts else folder.resolve().name), exercise, file


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, at any depth; report folders that cannot be listed."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".py"):
                        pending.append(Path(entry.path))
                    else:
                        yield Path(entry.path)
        except OSError as error:
            typer.echo(f"Not judged, since it cannot be listed: {visible(str(error))}", err=True)


def _row(who: str, judgement: Judgement) -> dict[str, Any]:
    return {
        "who": who,
        "exercise": judgement.exercise,
        "status": judgement.status,
        "pitfall": judgement.pitfall.name if judgement.pitfall else "",
        "why": _why(judgement),
        "line": judgement.line.number if judgement.line else "",
        "right_on": "; ".join(run.title for run in judgement.runs if run.ok),
        "wrong_on": "; ".join(run.title for run in judgement.runs if not run.ok),
        "seconds": round(judgement.seconds, 2),
        "file": judgement.file,
    }


def limits(seconds: float) -> Limits:
    """Return the limits for a run of a solution."""
    from .._practice.sandbox.host import Limits

    return Limits(seconds=seconds, cpu=max(1, round(seconds * 2 / 3)))


def say(judgement: Judgement, output: MarksFormat) -> None:
    """Print one verdict."""
    if output is MarksFormat.JSON:
        typer.echo(json.dumps(judgement.to_dict(), indent=2))
    elif output is MarksFormat.CSV:
        typer.echo(as_csv(_row("", judgement)), nl=False)
    else:
        from .._practice.watch import Screen

        Screen(sys.stdout).verdict(judgement)


def exit_code(judgement: Judgement) -> ExitCode:
    """Return the exit code for a verdict."""
    if judgement.status == NOT_RUN:
        return ExitCode.NOT_RUN
    return ExitCode.OK if judgement.ok else ExitCode.WRONG


def _cell(value: Any) -> Any:
    """Escape a value that a spreadsheet would treat as a formula."""
    formula = isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@"))
    return f"'{value}" if formula else value


def as_csv(row: Mapping[str, Any], head: bool = True) -> str:
    """Return a row of CSV, by default below a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(row), lineterminator="\n")
    if head:
        writer.writeheader()
    writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()
