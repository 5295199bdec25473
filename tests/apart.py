"""Processes of their own that need not import JAX: forked from one that has.

A start of Python with JAX and Flax takes two seconds of a core, and there are fifty pages of
documentation. The standard library's fork server imports them once per worker of the tests. It
computes nothing itself, so no device has been started and no thread runs where it forks.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from . import compiled

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["jax.numpy", "flax.nnx", "flax.linen", "optax", "orbax.checkpoint",
     "rich.console", "tests.test_docs"]
)  # fmt: skip


def run(call: Callable[..., object], *args: Any, **environ: str) -> CompletedProcess[str]:
    """Call a function of a module, with these variables set; what it printed, and how it ended.

    It compiles as the test that asks, and what it compiles is kept for other children.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _context.Process(
            target=_child,
            args=(out, err, environ, compiled.folder(), compiled.hurried(), call, args),
        )
        process.start()
        process.join()
        assert process.exitcode is not None
        return CompletedProcess([], process.exitcode, out.read_text(), err.read_text())


def _child(
    out: Path,
    err: Path,
    environ: dict[str, str],
    kept: str | None,
    hurried: bool,
    call: Callable,
    args: Any,
) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.update(environ)
    if kept:
        compiled.use(kept)
    with compiled.in_a_hurry() if hurried else nullcontext():
        sys.exit(call(*args))
