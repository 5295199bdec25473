"""`shardwise rule`: print the documentation of a code."""

from __future__ import annotations

from typing import Annotated

import typer

from .._analysis.faults import FAULTS, Fault, fault_of, nearest, printed
from .._base.errors import ShardwiseError
from .running import console


def rule(
    codes: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE", help="Such as SW401.", show_default=False),
    ] = None,
) -> None:
    """Explain a code: the mistake, an example of it, and the remedy.

    Without a code, list all of them.
    """
    if not codes:
        for fault in FAULTS.values():
            typer.echo(f"{fault.code}  {fault.title.replace('`', '')}")
        typer.echo("\nshardwise rule CODE shows a page.")
        return
    for fault in [_named(code) for code in codes]:
        _show(fault)


def _named(code: str) -> type[Fault]:
    if (fault := fault_of(code.upper())) is not None:
        return fault
    near = nearest(code)
    raise ShardwiseError(
        "there is no such code.",
        where=code,
        rule="A code is SW and three digits, as findings show it.",
        remedy=f"did you mean {near}?" if near else "shardwise rule names all of them.",
    )


def _show(fault: type[Fault]) -> None:
    text = f"# {fault.code}: {fault.title}\n\n{printed(fault)}\n"
    out = console()
    if not out.is_terminal:
        typer.echo(text)
        return
    from rich.markdown import Markdown

    out.print(Markdown(text))
