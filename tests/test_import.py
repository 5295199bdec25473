"""`import shardwise` and `shardwise --help` answer at once: JAX is imported when first needed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HEAVY = ("jax", "jaxlib", "flax", "optax", "numpy", "rich")

IMPORT = "import shardwise"
HELP = """
import sys
from shardwise._cli import main
sys.argv = ["shardwise", "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_nothing_heavy_is_imported(code):
    report = f"\nimport sys\nprint('loaded', *(n for n in {HEAVY} if n in sys.modules))"
    assert run(code + report).splitlines()[-1].split() == ["loaded"]


@pytest.mark.parametrize(("code", "limit"), [(IMPORT, 50), (HELP, 250)], ids=["import", "help"])
def test_little_is_imported(code, limit):
    # Counted, since a clock says more about the machine than about us.
    counted = f"import sys\nbefore = len(sys.modules)\n{code}\nprint(len(sys.modules) - before)"
    assert int(run(counted).split()[-1]) < limit


def test_names_are_found_when_first_used():
    run("import shardwise, sys; shardwise.ShardwiseError; assert 'jax' not in sys.modules")
    run("import shardwise, sys; shardwise.mesh; assert 'jax' in sys.modules")


def test_an_unknown_name_is_an_attribute_error():
    import shardwise

    with pytest.raises(AttributeError, match="module 'shardwise' has no attribute 'simulat'"):
        _ = shardwise.simulat


def test_dir_lists_what_can_be_used():
    import shardwise

    assert {"mesh", "simulate", "primitives", "DeadlockError", "__version__"} <= set(dir(shardwise))
    for name in dir(shardwise):
        assert getattr(shardwise, name) is not None


INTERRUPTED = """
import runpy, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["shardwise", "--version"]
"""


@pytest.mark.parametrize("way", ["the script", "python -m"])
def test_an_interrupt_while_the_command_line_is_imported_is_told(way):
    start = "runpy.run_module('shardwise', run_name='__main__')"
    if way == "the script":
        settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
        module, _, name = settings["project"]["scripts"]["shardwise"].partition(":")
        start = f"from {module} import {name}; {name}()"
    done = subprocess.run([sys.executable, "-c", INTERRUPTED + start], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_an_interrupt_while_arguments_are_read_is_told():
    code = """
import signal
from shardwise import __main__, _cli

signal.signal(signal.SIGINT, signal.default_int_handler)
_cli._Commands.make_context = lambda *_, **__: signal.raise_signal(signal.SIGINT)
__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize("module", ["shardwise", "shardwise._cli", "shardwise.__main__"])
def test_an_import_leaves_the_signals_alone(module):
    run(
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"import {module}\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
