"""`shardwise rule`: what a code stands for, from the documentation."""

from __future__ import annotations

from typing import Annotated

import typer

from .._base.errors import ShardwiseError
from .rules import Rule, nearest, rules
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
        for one in rules().values():
            typer.echo(f"{one.code}  {one.title.replace('`', '')}")
        typer.echo("\nshardwise rule CODE shows a page.")
        return
    for one in [_rule(code) for code in codes]:
        _show(one)


def _rule(code: str) -> Rule:
    known = rules()
    if code.upper() in known:
        return known[code.upper()]
    near = nearest(code)
    raise ShardwiseError(
        "there is no such code.",
        where=code,
        rule="A code is SW and three digits, as findings show it.",
        remedy=f"did you mean {near}?" if near else "shardwise rule names all of them.",
    )


def _show(one: Rule) -> None:
    text = f"# {one.code}: {one.title}\n\n{one.printed}\n"
    out = console()
    if not out.is_terminal:
        typer.echo(text)
        return
    from rich.markdown import Markdown

    out.print(Markdown(text))
