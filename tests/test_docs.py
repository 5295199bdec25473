"""The documentation is true: its Python runs, what it shows is what is printed, nothing is missing.

The blocks of a page run in order, in one process with eight virtual devices; those of the README
each by itself. A `text` block right
after a `python` block is what that block prints; `...` in it stands for anything. A page can also
be tried by hand, and after a change of what is printed its `text` blocks can be written anew:

    python -m tests.test_docs docs/tutorial.md
    python -m tests.test_docs --write docs/tutorial.md
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import inspect
import io
import linecache
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from . import apart

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEVICES = "--xla_force_host_platform_device_count=8"

# Whoever copies a block from this page has copied all that it needs.
ALONE = "README.md"

# The name that error messages give for the code of a page, unless a block has a title of its own.
PROGRAM = "program.py"
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A Python block of a page, and what the page says that it prints."""

    code: str
    line: int
    shown: str | None
    head: str = ""
    """What stands behind the name of the language."""

    @property
    def file(self) -> str:
        """The file that it is said to stand in."""
        title = re.search(r'title="([^"]+\.py)"', self.head)
        return title[1] if title else PROGRAM


def blocks(text: str) -> Iterator[Block]:
    fences = list(FENCE.finditer(text))
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        if fence[1] == "python":
            line = text[: fence.start()].count("\n") + 2
            yield Block(fence[3], line, _shown(text, fence, after), fence[2])


def _shown(text: str, fence: re.Match[str], after: re.Match[str] | None) -> str | None:
    if after is None or after[1] != "text" or text[fence.end() : after.start()].strip():
        return None
    return after[3]


def run_page(page: Path) -> None:
    """Run the blocks of a page, and compare what they print with what it shows."""
    names = _names()
    for block in blocks(page.read_text(encoding="utf-8")):
        names = _names() if page.name == ALONE else names
        printed = _run(block, names, f"{page.name}:{block.line}")
        if not _same(block.shown or "", printed):
            diff = difflib.ndiff((block.shown or "").splitlines(), printed.splitlines())
            raise SystemExit(
                f"{page.name}:{block.line}: the page shows (-), the block prints (+):\n"
                + "\n".join(diff)
            )


def write_page(page: Path) -> None:
    """Put what the blocks print into the `text` blocks of a page."""
    names = _names()
    text = page.read_text(encoding="utf-8")
    for block in blocks(text):
        names = _names() if page.name == ALONE else names
        printed = _run(block, names, f"{page.name}:{block.line}")
        if block.shown is not None and not _same(block.shown, printed):
            before = f"```python{block.head}\n{block.code}```\n\n```text\n"
            text = text.replace(f"{before}{block.shown}```", f"{before}{printed}```")
    page.write_text(text, encoding="utf-8")


def _names() -> dict[str, object]:
    return {"__name__": "__main__"}


def _run(block: Block, names: dict[str, object], where: str) -> str:
    code, file = block.code, block.file
    # Error messages quote source lines, which they look up by file name.
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, file, "exec"), names)
    except Exception as error:
        error.add_note(f"in the block at {where}")
        raise
    return printed.getvalue()


def _same(shown: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown, printed, flags)


def _with_code() -> list[Path]:
    return [page for page in PAGES if any(blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", _with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_runs_and_shows_what_it_prints(page):
    done = run_apart(page)
    assert done.returncode == 0, done.stderr


def run_apart(page: Path) -> CompletedProcess[str]:
    """Run a page in a process of its own, as a reader would."""
    return apart.run(run_page, page, XLA_FLAGS=DEVICES, JAX_PLATFORMS="cpu")


def test_a_block_of_the_readme_that_needs_another_fails(tmp_path):
    page = tmp_path / ALONE
    page.write_text("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n", encoding="utf-8")
    done = run_apart(page)
    assert done.returncode != 0
    assert "NameError" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "page.md:2: the page shows"),
        ("```python\nprint(1)\n```\n\nwords\n\n```text\n1\n```\n", "the page shows"),
        ("# Title\n\n```python\n1 / 0\n```\n", "in the block at page.md:4"),
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path, text, message):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    done = run_apart(page)
    assert done.returncode != 0
    assert message in done.stderr


def test_every_public_name_is_documented():
    import shardwise

    reference = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    missing = [
        name
        for name in dir(shardwise)
        if name != "__version__" and f"::: shardwise.{name}\n" not in f"{reference}\n"
    ]
    assert missing == []


def test_every_public_name_has_a_docstring():
    import shardwise
    from shardwise import primitives

    functions = inspect.getmembers(primitives, inspect.isfunction)
    public = {name: value for name, value in functions if not name.startswith("_")}
    own = {name: value for name, value in public.items() if value.__module__ == primitives.__name__}
    exported = {name: getattr(shardwise, name) for name in dir(shardwise) if name[0] != "_"}
    bare = [name for name, value in {**own, **exported}.items() if not inspect.getdoc(value)]
    assert bare == []


def test_the_help_in_the_reference_is_the_help():
    """Up to what differs between the releases of typer: line breaks, `...` and types."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    texts = dict(re.findall(r"```text\n\$ (shardwise.*?)\n(.*?)```\n", page, re.DOTALL))
    for command, help_text in _help_texts():
        assert _words(texts.get(command, "")) == _words(help_text), (
            f"docs/reference/cli.md differs from `{command}`; it should show:\n{help_text}"
        )


def _words(help_text: str) -> list[str]:
    types = r"<[\w\[\]]+>|\b(?:int|INTEGER|float|FLOAT|str|TEXT|path|PATH|FILE|file|range|RANGE)\b"
    return re.sub(types + r"|\.\.\.|[\[\]{}<>\\]", "", help_text).split()


def _help_texts() -> Iterator[tuple[str, str]]:
    import typer
    from typer.testing import CliRunner

    from shardwise._cli import app

    for args in _commands(app):
        env = {"COLUMNS": "90", "TERMINAL_WIDTH": "90"}
        result = CliRunner().invoke(app, [*args, "--help"], prog_name="shardwise", env=env)
        assert result.exit_code == 0, typer.unstyle(result.output)
        yield " ".join(["shardwise", *args, "--help"]), result.output


def _commands(app: Any, before: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The words of every command, those of groups too."""
    yield list(before)
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        yield [*before, name]
    for group in app.registered_groups:
        inner = group.typer_instance
        yield from _commands(inner, (*before, group.name or inner.info.name))


COMMAND = re.compile(r"^(?:\$ |.*?(?:run|entry): |srun )?shardwise ([a-z]+(?: [a-z]+)?)(.*)$")


def test_every_command_that_a_page_shows_can_be_given():
    """In blocks of bash, console and YAML: the command is there, and so are its options."""
    import typer

    from shardwise._cli import app

    group: Any = typer.main.get_command(app)
    shown, wrong = 0, []
    for page in PAGES:
        for fence in FENCE.finditer(page.read_text(encoding="utf-8")):
            if fence[1] not in ("bash", "console", "yaml"):
                continue
            for line in map(str.strip, fence[3].splitlines()):
                found = COMMAND.match(line)
                if found:
                    shown += 1
                    wrong += [f"{page.name}: {line}"] * (not _can_be_given(group, found))
    assert shown > 10
    assert wrong == []
    for line in ("shardwise chek a.py", "- run: shardwise check --formt github"):
        found = COMMAND.match(line)
        assert found
        assert not _can_be_given(group, found)


def _can_be_given(group: Any, found: re.Match[str]) -> bool:
    name, _, inner = found[1].partition(" ")
    command = group.commands.get(name)
    if inner and inner in getattr(command, "commands", {}):
        command = command.commands[inner]
    if command is None:
        return False
    known = {option for param in command.params for option in [*param.opts, *param.secondary_opts]}
    words = found[2].split(" #")[0].split(" > ")[0].split()
    # What follows the script of `launch` is the script's.
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
    words = words[:script] if name == "launch" else words
    asked = {word.partition("=")[0] for word in words if word.startswith("-")}
    return asked <= known | {"--help"}


def test_no_page_names_a_file_that_is_not_there():
    missing = [
        f"{page.name}: {target}"
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert missing == []


if __name__ == "__main__":
    *options, page = sys.argv[1:]
    (write_page if options == ["--write"] else run_page)(Path(page))
