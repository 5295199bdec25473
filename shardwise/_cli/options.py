"""The options that several commands share: names and help texts."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from .._base.errors import ShardwiseError
from . import config
from .running import start_devices
from .select import parse_mesh

Mesh = dict[str, int]


class Printed(enum.StrEnum):
    """The output formats of `explain` and `inspect`."""

    TEXT = "text"
    JSON = "json"


class OutputFormat(enum.StrEnum):
    """The output formats of `check` and `prove`."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"
    DIFF = "diff"


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE.py[:NAME]|DIR",
        help="Files, one case of a file, or folders: all cases below. By default, the paths of "
        "[tool.shardwise] in pyproject.toml.",
        show_default=False,
    ),
]
Select = Annotated[
    str | None,
    typer.Option(
        "-k", metavar="EXPRESSION", help="Only cases whose name matches: 'grad and not slow'."
    ),
]
VerdictFormat = Annotated[
    OutputFormat,
    typer.Option(
        "--format",
        help="Text for people, JSON, annotations for GitHub, SARIF for code scanning, or only the "
        "verified fixes as a diff.",
    ),
]
ReportFormat = Annotated[Printed, typer.Option("--format", help="Text for people, or JSON.")]
Devices = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Start JAX with N virtual CPU devices, for programs that make a mesh of "
        "jax.devices().",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only a line for each thing that is wrong.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Name the meshes; show full tracebacks.")
]


def meshes(help_text: str) -> Any:
    """Return the option `--mesh`, with the sizes to try."""
    return typer.Option("--mesh", metavar="AXIS=SIZES,...", help=help_text)


def mesh_option(help_text: str) -> Any:
    """Return an option that names one mesh."""
    return typer.Option(metavar="AXIS=SIZE,...", help=help_text)


def page(help_text: str) -> Any:
    """Return the option `--html`, a page to write."""
    return typer.Option("--html", metavar="FILE", help=help_text)


def one_mesh(text: str, option: str = "--mesh") -> Mesh:
    """Parse one mesh: `data=8,model=2`."""
    sizes = parse_mesh(text, option)
    chosen = {}
    for name, column in sizes.items():
        if isinstance(column, str) or len(column) != 1:
            several = isinstance(column, list)
            raise ShardwiseError(
                f"axis {name!r} has {len(column)} sizes"
                if several
                else f"axis {name!r} has size {column!r}",
                where=f"{option} {text}",
                rule="The command takes one mesh, with one size for each axis.",
                remedy=f"{option} {name}={max(column) if several else 8}",
            )
        chosen[name] = column[0]
    return chosen


def prepare(targets: list[str] | None, devices: int | None) -> tuple[list[str], config.Settings]:
    """Return the targets and the project settings, after starting JAX with their devices."""
    settings = config.load()
    chosen = targets or list(settings.paths)
    if not chosen:
        raise ShardwiseError(
            "no file or folder is named.",
            rule="Cases are declared in files: FILE.py, FILE.py:NAME or DIR.",
            remedy=f'name one, or set {config.TABLE} paths = ["src"] in pyproject.toml.',
        )
    if not targets:
        settings.refuse_missing_paths()
    if (devices or settings.devices) is not None:
        start_devices(devices or settings.devices or 1)
    settings.refuse_unknown_hardware()
    return chosen, settings


def refuse_both(quiet: bool, verbose: bool) -> None:
    """Raise if both `-q` and `-v` are given."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
