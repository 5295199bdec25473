"""`shardwise practice`: exercises with a judge that sees eight devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .._base.errors import ShardwiseError
from .._practice.exercise import Exercise, find, listing, load_all
from .._practice.folder import Folder, about_hints
from .marking import MarksFormat, exit_code, folder_of, judge_all, limits, note, say, warn, without
from .status import ExitCode

app = typer.Typer(
    name="practice",
    help="Exercises in sharded JAX, with a judge that sees eight devices. "
    "Without a command: watch the practice folder and judge each file as it is saved.",
    epilog="Exit codes: 0 right, 1 wrong, 2 could not be run.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Exercises = Annotated[
    Path | None,
    typer.Option("--exercises", metavar="DIR", help="A folder of exercises of your own."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="An exercise, by name or number.")]
Where = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The practice folder.", show_default="here")
]
Seconds = Annotated[
    float, typer.Option("--seconds", min=1, help="How long one run of a solution may take.")
]


@app.callback(invoke_without_command=True)
def practice(
    context: typer.Context,
    where: Where = Path(),
    exercises: Exercises = None,
    seconds: Seconds = 30,
) -> None:
    """Watch the practice folder: each time a file is saved, the judge runs."""
    if context.invoked_subcommand is not None:
        _refuse_before(context, context.invoked_subcommand)
        return
    from .._practice.watch import Watch
    from .._practice.workshop import Workshop

    with Workshop(Folder.find(where, exercises), limits(seconds)) as shop:
        warn(shop.judge)
        Watch(shop).run()


def _refuse_before(context: typer.Context, command: str) -> None:
    """Raise for an option before a subcommand, which would not receive it."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise typer.BadParameter(
                f"it stands before {command}, which would not see it: shardwise practice "
                f"{command} {option} ...",
                param_hint=f"'{option}'",
            )


@app.command()
def start(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", show_default=False)] = None,
    exercises: Exercises = None,
) -> None:
    """Write the exercises into a folder. What is there already is kept.

    By default practice/, or, inside a practice folder, that folder.
    """
    if folder is None:
        around = Folder.above(Path())
        folder = Path("practice") if around is None else Path(os.path.relpath(around.path))
    practice_folder, new = Folder.start(folder, exercises)
    kept_count = len(practice_folder.exercises) - len(new)
    count = f"{len(new)} exercise{'s' * (len(new) != 1)}"
    typer.echo(f"{count} written to {folder}/" + f", {kept_count} kept" * bool(kept_count) + ".")
    first = practice_folder.current
    if first is not None:
        typer.echo(f"Begin with {folder / first.file_name}, and let the judge watch:")
        there = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
        typer.echo(f"\n    {there}shardwise practice\n")


@app.command("list")
def list_(where: Where = Path(), exercises: Exercises = None) -> None:
    """List the exercises, and what is done."""
    all_of, folder = _progress(where, exercises)
    solved = folder.solved if folder else {}
    for text, style in listing(all_of, solved, folder.current if folder else None):
        typer.secho(text, bold=style == "head", fg="green" if style == "right" else None)
    typer.echo(f"\n{len(solved)} of {len(all_of)} done.")


def _progress(where: Path, exercises: Path | None) -> tuple[list[Exercise], Folder | None]:
    """Return the exercises, and the practice folder if this is one."""
    try:
        folder = Folder.find(where, exercises)
    except ShardwiseError:
        return load_all(exercises), None
    return folder.exercises, folder


@app.command()
def hint(name: Name, where: Where = Path(), exercises: Exercises = None) -> None:
    """Give a hint, one more each time."""
    folder = Folder.find(where, exercises)
    exercise = find(folder.exercises, name)
    hints, last = folder.hint(exercise)
    typer.echo(f"{about_hints(exercise)}\n")
    for number, text in enumerate(hints, 1):
        typer.echo(f"{number}. {text}\n")
    if last:
        typer.echo("There are no more hints for this one.")


@app.command()
def reset(name: Name, where: Where = Path(), exercises: Exercises = None) -> None:
    """Start an exercise again. Your version is kept beside it."""
    folder = Folder.find(where, exercises)
    exercise = find(folder.exercises, name)
    backup = folder.reset(exercise)
    typer.echo(f"{exercise.file_name} is as it was at the start.")
    if backup is not None:
        typer.echo(f"Your version is kept as {backup.name}.")


@app.command()
def show(
    name: Name,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Even if the exercise is not solved yet.")
    ] = False,
    where: Where = Path(),
    exercises: Exercises = None,
) -> None:
    """Show a solution, once yours is right."""
    all_of, folder = _progress(where, exercises)
    exercise = find(all_of, name)
    if not anyway and (folder is None or exercise.name not in folder.solved):
        raise ShardwiseError(
            f"{exercise.name} is not solved yet",
            where="shardwise practice show",
            rule="The solution is shown once yours is right.",
            remedy=f"shardwise practice hint {exercise.name}, or show {exercise.name} --anyway.",
        )
    typer.echo(exercise.solution.rstrip())


@app.command()
def judge(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The exercise.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="The file with the solution. By default, the exercise's file in the practice "
            "folder.",
            show_default=False,
        ),
    ] = None,
    where: Where = Path(),
    everything: Annotated[
        Path | None,
        typer.Option("--all", metavar="DIR", help="Mark every solution in a folder and below."),
    ] = None,
    output: Annotated[
        MarksFormat, typer.Option("--format", help="Text for people, JSON, or CSV with --all.")
    ] = MarksFormat.TEXT,
    exercises: Exercises = None,
    seconds: Seconds = 30,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the inputs, which are otherwise new each time.")
    ] = None,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe", help="Judge without the kernel's walls: a solution can do what you can."
        ),
    ] = False,
) -> None:
    """Judge a solution: as it is written, and on 2, 4 and 8 devices.

    A file in a practice folder counts: once it is right, its exercise is done.
    """
    from .._practice.judge import Judge, read

    if everything is not None:
        if name is not None:
            raise typer.BadParameter("--all DIR marks a folder: name no exercise beside it.")
        judge_all(everything, exercises, output, seconds, seed, unsafe)
    if name is None:
        raise typer.BadParameter(
            "name the exercise: practice judge NAME in a practice folder, or NAME FILE anywhere."
        )
    if file is not None:
        folder, confirming = folder_of(file.parent, exercises), True
        exercise = find(folder.exercises if folder else load_all(exercises), name)
    else:
        folder, confirming = Folder.find(where, exercises), False  # nobody is to be deceived here
        exercise = find(folder.exercises, name)
        file = folder.file(exercise)
        if not file.exists():
            raise ShardwiseError(
                "there is no such file",
                where=str(file),
                remedy=f"shardwise practice reset {exercise.name} writes it again.",
            )
    source = read(file)
    with Judge(limits(seconds), without=without(unsafe), confirming=confirming) as judge_:
        warn(judge_)
        judgement = judge_.judge(exercise, source, str(file), seed)
    say(judgement, output)
    onward = note(folder, exercise, judgement)
    if onward and output is MarksFormat.TEXT:
        typer.secho(f"\n{onward}", fg="green", bold=True)
    raise typer.Exit(exit_code(judgement))


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these exercises.", show_default=False),
    ] = None,
    exercises: Exercises = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the line and what each device held.")
    ] = False,
    seconds: Seconds = 60,
) -> None:
    """Check that every solution passes, and that every wrong one fails with its pitfall named."""
    from .._practice.judge import Judge
    from .._practice.verify import verify as run

    all_of = load_all(exercises)
    chosen = [find(all_of, name) for name in names] if names else all_of
    proofs = []
    with Judge(limits(seconds), look=not quick, confirming=True) as judge_:
        for proof in run(chosen, judge_):
            proofs.append(proof)
            typer.echo(proof)
    good = sum(proof.ok for proof in proofs)
    slowest = max((proof.judgement.seconds for proof in proofs), default=0.0)
    typer.echo(f"\n{good} of {len(proofs)} as they should be; slowest {slowest:.1f} s")
    raise typer.Exit(ExitCode.OK if good == len(proofs) else ExitCode.WRONG)


@app.command()
def web(
    where: Where = Path(),
    exercises: Exercises = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    seconds: Seconds = 30,
) -> None:
    """Practice on a local page that is live as files are saved."""
    from .._practice.web import serve
    from .._practice.workshop import Workshop

    with Workshop(Folder.find(where, exercises), limits(seconds)) as shop:
        warn(shop.judge)
        serve(shop, port, browser, typer.echo)
