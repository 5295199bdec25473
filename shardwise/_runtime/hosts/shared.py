"""Check that a folder is shared by all processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path

from ..._base.errors import ShardwiseError
from . import others

_PATIENCE = 10.0  # a network file system may show a new file late


def require_shared(folder: str | os.PathLike[str], where: str) -> None:
    """Raise, on all processes, if some do not see the files that process 0 writes in a folder.

    Args:
        folder: The folder; it is created if missing.
        where: The argument it comes from, for the message.
    """
    if others.count() == 1:
        return
    folder = Path(folder).absolute()
    name: dict[str, str] = {}
    if others.is_first():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name["token"] = f".shardwise-{secrets.token_hex(8)}"
            (folder / name["token"]).write_text("seen by all processes\n", encoding="utf-8")
        except OSError as error:
            name["error"] = f"{type(error).__name__}: {error}"
    name = others.spread(name, "shared folder")
    if "error" in name:
        raise ShardwiseError(
            f"it cannot be written: {name['error']}",
            where=f"{where} {str(folder)!r}",
            remedy="name a folder that can be written.",
        )
    is_visible = others.is_first() or _appears(folder / name["token"])
    answers = others.gather([socket.gethostname(), is_visible], "shared folder")
    if others.is_first():
        with contextlib.suppress(OSError):
            (folder / name["token"]).unlink()
    excluded = [
        f"process {k} on {host}" for k, (host, visible) in enumerate(answers) if not visible
    ]
    if excluded:
        raise ShardwiseError(
            f"{', '.join(excluded)} cannot see what process 0 on {answers[0][0]} writes there.",
            where=f"{where} {str(folder)!r}",
            rule="All processes use one folder, so that a job can resume on other machines.",
            remedy="name a folder on a file system that all machines share.",
        )


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes NFS look again
        time.sleep(0.1)
    return True
