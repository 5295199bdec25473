"""The command line: a thin shell, one file per command.

Nothing here imports JAX or Flax, and a command imports them when it runs, so that
`shardwise --help` answers at once.
"""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .._base.durable import wait_for_compiler
from .._base.errors import ShardwiseError, is_reported
from .._base.version import __version__
from . import check, demo, evaluate, explain, inspect, launch, practice, prove, rule
from .output import drop_the_rest, in_any_encoding, printing
from .status import ExitCode


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        if ctx.obj is not None:
            ctx.obj()
        try:
            return super().invoke(ctx)
        except ShardwiseError as error:
            typer.echo(f"{type(error).__name__}: {error}", err=True)
            raise typer.Exit(ExitCode.NOT_RUN) from error
        except KeyboardInterrupt as error:  # SIGTERM raises SystemExit, with its own exit code
            if not is_reported(error):
                typer.echo("interrupted", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from error
        except (BrokenPipeError, SystemExit) as error:
            # Typer and rich would exit with 1, which means that a case is wrong.
            if not any(isinstance(e, BrokenPipeError) for e in (error, error.__context__)):
                raise
            drop_the_rest()
            raise typer.Exit(ExitCode.NOT_READ) from error


app = typer.Typer(
    name="shardwise",
    cls=_Commands,
    help="SPMD programs in JAX that are right on any number of devices.",
    epilog="Exit codes: 0 right, 1 wrong, 2 could not be run, 3 unknown.",
    no_args_is_help=True,
    add_completion=False,
    # Rich takes longer to import than everything else that --help needs.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("check")(check.check)
app.command("demo")(demo.demo)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("inspect")(inspect.inspect)
app.command(
    "launch",
    # Arguments after the script belong to the script.
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)(launch.launch)
app.command("prove")(prove.prove)
app.command("rule")(rule.rule)
app.add_typer(practice.app)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"shardwise {__version__}")
        raise typer.Exit(ExitCode.OK)


@app.callback()
def _shardwise(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


_command = typer.main.get_command(app)  # at import, since it takes a while


def main(starting: Any = signal.default_int_handler) -> None:
    """Run the command line.

    Args:
        starting: The handler of Ctrl-C until a command begins.
    """
    in_any_encoding()
    with printing():
        _command(prog_name="shardwise", obj=lambda: wait_for_compiler(starting))
