"""One run of a solution in a process of its own: limits, walls, hooks, the file, one answer.

The answer contains what the solution returned and what the hooks recorded. The solution runs in
this process and could forge the answer, so the judge validates it as untrusted data.
"""

from __future__ import annotations

import difflib
import json
import linecache
import os
import resource
import sys
import threading
import traceback
import types
from typing import Any

from ..._base.errors import text_of
from . import wire
from .walls import Confinement

MESSAGE = 3_000
"""Characters of an error that are sent back."""


def live(
    run: dict[str, Any],
    folder: str,
    channels: tuple[int, int],
    confinement: Confinement | None,
    proc: int,
) -> None:
    """Execute one run, from the fork to the end of the process.

    The channels are for the answer and for the output; `proc` is a descriptor of /proc, or -1.
    """
    answer, printed = channels
    file = os.path.join(folder, run["name"])
    with open(file, "w", encoding="utf-8", errors="surrogatepass") as script:
        script.write(run["source"])
    jobs, limits = run["jobs"], run["limits"]
    statm = os.open("self/statm", os.O_RDONLY, dir_fd=proc) if proc >= 0 else -1
    _settle(folder, printed, limits, jobs[0]["devices"])
    rules = confinement.rules if confinement is not None else None
    _close_others(answer, statm, rules.file if rules is not None else -1)
    if confinement is not None:
        confinement.apply()
    data: dict[str, Any]
    try:
        data = {"runs": _work(file, run["source"], jobs, limits, statm)}
    except MemoryError:
        data = {"error": {"type": "MemoryError", "message": "out of memory"}}
    except BaseException as error:  # a bug in this code, or a solution that tampered with it
        data = {"error": {"type": "Judge", "message": f"{type(error).__name__}: {error}"[:500]}}
    line = json.dumps(data).encode()
    while line:
        line = line[os.write(answer, line) :]
    os._exit(0)  # do not wait for threads of the solution


def _settle(folder: str, printed: int, limits: dict[str, Any], devices: int) -> None:
    """Set the session, the folder, the streams and every limit that does not depend on JAX."""
    os.setsid()
    os.chdir(folder)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, printed), (2, printed)):
        os.dup2(source, target)
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
    # First a signal, which may be ignored, then the end.
    _limit("RLIMIT_CPU", int(limits["cpu"]), 2)
    _limit("RLIMIT_FSIZE", int(limits["output"]))
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_NOFILE", 256)
    _limit("RLIMIT_MEMLOCK", 0)
    os.environ.clear()
    os.environ.update(
        HOME=folder,
        TMPDIR=folder,
        LANG="C.UTF-8",
        JAX_PLATFORMS="cpu",
        TF_CPP_MIN_LOG_LEVEL="3",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices} "
        "--xla_backend_optimization_level=0",
    )


def _close_others(*kept: int) -> None:
    """Close all files except the standard streams and these."""
    start = 3
    for file in sorted(number for number in kept if number >= start):
        os.closerange(start, file)
        start = file + 1
    os.closerange(start, 1 << 16)


def _limit(name: str, most: int, spare: int = 0) -> None:
    which = getattr(resource, name, None)
    if which is None:
        return
    hard = resource.getrlimit(which)[1]
    top = most + spare if hard == resource.RLIM_INFINITY else min(most + spare, hard)
    resource.setrlimit(which, (min(most, top), top))


def _limit_memory(extra: int, statm: int) -> None:
    """Limit the memory to this much more than is mapped now, most of which JAX never uses."""
    if statm >= 0:
        pages = int(os.pread(statm, 100, 0).split()[0])
        os.close(statm)
        _limit("RLIMIT_AS", pages * resource.getpagesize() + extra)


def _work(
    file: str, source: str, jobs: list[dict[str, Any]], limits: dict[str, Any], statm: int
) -> list[dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    from . import hooks

    jnp.zeros(()).block_until_ready()  # JAX starts here, before the limits on memory and tasks
    assert len(jax.devices()) == jobs[0]["devices"]
    _limit_memory(int(limits["memory"]), statm)
    _limit("RLIMIT_NPROC", int(limits["tasks"]))  # does not apply to root; the memory limit does
    threading.excepthook = lambda args: None
    watching = hooks.install(jobs[0])
    return [_one(file, source, job, watching) for job in jobs]


def _one(file: str, source: str, job: dict[str, Any], watching: Any) -> dict[str, Any]:
    """Run the file once, imported anew, so that no run sees the state of another."""
    observed = watching.begin()
    outcome: dict[str, Any] = {}
    try:
        outcome = _execute(job, file, source, watching)
    except _Refused as error:
        kind, message, line = error.args
        outcome["error"] = {"type": kind, "message": message, "line": line}
    except BaseException as error:
        outcome["error"] = _described(error, file)
    return {"facts": observed.facts(), **outcome}


def _execute(job: dict[str, Any], file: str, source: str, watching: Any) -> dict[str, Any]:
    """Execute a job: run the file, inspect it, export it, or replay an exported program."""
    import jax

    from . import hooks, look, program

    if job["kind"] == "replay":
        return program.replay(job)  # this does not run the solution
    function = _load(file, source, job["function"], job["exercise"])
    if job["kind"] == "look":
        return look.look(function, job, watching)
    if job["kind"] == "export":
        return {"program": program.export(function, job)}
    return {"value": wire.pack(jax.block_until_ready(hooks.call(function, job)))}


class _Refused(Exception):
    """The file cannot be compiled, or lacks the function of the exercise: type, message, line."""


def _load(file: str, source: str, name: str, exercise: str) -> Any:
    try:
        code = compile(source, file, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        is_syntax = isinstance(error, SyntaxError)
        message = error.msg if is_syntax else f"{type(error).__name__}: {error}"
        line = getattr(error, "lineno", 0) or 0
        raise _Refused("NotPython", str(message)[:MESSAGE], line) from None
    stem = os.path.splitext(os.path.basename(file))[0]
    module = types.ModuleType(stem)
    module.__file__ = file
    sys.modules[stem] = module
    sys.path.insert(0, os.path.dirname(file))
    # Tracebacks then show the source even if the solution changes its file.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(code, module.__dict__)
    function = module.__dict__.get(name)
    if not callable(function):
        near = difflib.get_close_matches(
            name, [key for key, value in module.__dict__.items() if callable(value)], n=1
        )
        renamed = f"rename {near[0]!r}, or " if near else ""
        message = (
            f"The file does not define a function {name!r}.\n"
            f"Remedy: {renamed}start again from the exercise's own file: shardwise practice reset "
            f"{exercise}."
        )
        raise _Refused("Missing", message, 0)
    return function


def _described(error: BaseException, file: str) -> dict[str, Any]:
    """Describe an exception, with the innermost line of the learner's file in its traceback."""
    message = text_of(error)
    frames = traceback.extract_tb(error.__traceback__)
    in_file = [frame for frame in frames if frame.filename == file]
    chain, cause = [type(error).__name__], error
    while (cause := cause.__cause__ or cause.__context__) is not None and len(chain) < 6:
        chain.append(type(cause).__name__)
        message += f"\n[caused by {type(cause).__name__}: {text_of(cause)[:1000]}]"
    return {
        "type": type(error).__name__,
        "kinds": chain,
        "message": message[:MESSAGE],
        "line": in_file[-1].lineno if in_file else 0,
    }
