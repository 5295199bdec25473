"""In each process: run the script as Python would, and report why it failed.

The launcher runs `python -m shardwise._runtime.launch [-m] SCRIPT ARGS...`. The script runs in the
real `__main__`, so that other processes can unpickle its objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from ..._base.errors import text_of
from . import detection, report


def main(arguments: list[str]) -> None:
    """Run the script or the module."""
    _end_with_launcher()
    detection.install()
    pid = os.getpid()
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            _run_script(arguments)
    except SystemExit as error:
        if error.code:
            code = error.code if isinstance(error.code, int) else 1
            _fail(f"the script exited with {error.code!r}", None, code & 0xFF)
        _end(pid)
        raise
    except BaseException as error:
        _fail(_summary(error), error)
        # Without the frames of this file; the hook is that of the script, or of sw.connect.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _HIDDEN:
            trace = trace.tb_next
        if _is_consequence(error):  # the relevant traceback is that of the process that failed
            print(f"{_line_of(trace)}{_summary(error)}", file=sys.stderr, flush=True)
        else:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    _end(pid)


_HIDDEN = (__file__, runpy.__file__, "<frozen runpy>")


def _run_script(arguments: list[str]) -> None:
    path = Path(arguments[0])
    source = path.read_bytes()
    sys.argv = arguments
    sys.path[0] = str(path.resolve().parent)
    module: Any = sys.modules["__main__"]
    for name in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, name)
    module.__file__, module.__spec__, module.__doc__ = str(path), None, None
    vars(module).pop("__cached__", None)
    exec(compile(source, str(path), "exec"), vars(module))


def _others() -> Any:
    """Return the module that knows the other processes, if the script has imported it."""
    return sys.modules.get("shardwise._runtime.hosts.others")


def _is_consequence(error: BaseException) -> bool:
    """Return whether an error only reports that another process has failed or is gone."""
    if type(error).__name__ == "PeerError":
        return True
    others = _others()
    return others is not None and others.count() > 1 and others.is_connection_lost(error)


def _line_of(trace: Any) -> str:
    """Return the line of the script at which an error was raised: `train.py:12: `."""
    if trace is None:
        return ""
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}: "


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}".strip()[:2000]


def _fail(words: str, error: BaseException | None, code: int = 1) -> None:
    """Report a failure to the launcher and to the other processes."""
    others = _others()
    heard = others is not None and others.has_heard()
    peer = type(error).__name__ == "PeerError" or heard
    left = others.left_early() if others is not None and peer else ""
    report.send("reported", code=code, words=words, peer=peer, left=left)
    if error is None and others is not None and others.count() > 1:
        others.news().fail(f"process {others.index()} failed: {words}", code)


def _end(pid: int) -> None:
    """Report to the launcher that the script has ended; not from a forked copy of this process."""
    if os.getpid() == pid:
        report.send("ended")


def _end_with_launcher() -> None:
    """Make the Linux kernel end this process with its launcher, in case the keeper is killed too.

    The keeper ends whole process groups; on other systems there is only the keeper.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(os.environ.get("SHARDWISE_LAUNCHER", os.getppid())):
            os._exit(1)
