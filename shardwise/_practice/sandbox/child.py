"""One run of a solution, in a process of its own: limits, guard, hooks, the file, one answer.

The answer says what the solution returned and what it was seen to do. It does not say whether that
is right: the judge knows, and this process never learns it.
"""

from __future__ import annotations

import difflib
import json
import linecache
import os
import pickle
import resource
import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._errors import text_of
from . import guard, wire

EXERCISES = Path(__file__).parents[1] / "exercises"


def run(asked: dict[str, Any], pipe: int) -> None:
    """The whole life of a child. It never returns to the nursery's loop."""
    folder = Path(asked["folder"])
    jobs = pickle.loads((folder / "jobs").read_bytes())
    (folder / "jobs").unlink()
    _settle(folder, asked["limits"], jobs[0]["devices"])
    say = _answer(pipe, asked["nonce"])
    data: dict[str, Any]
    try:
        data = {"runs": _work(folder / "run", asked["name"], jobs, asked["limits"])}
    except MemoryError:
        data = {"error": {"type": "MemoryError", "message": "out of memory", "line": 0}}
    except BaseException as error:  # a defect of ours, or a solution that reached into us
        data = {"error": {"type": "Judge", "message": f"{type(error).__name__}: {error}"[:500]}}
    say(data)
    os._exit(0)  # threads of the solution that never end do not keep us


def _answer(pipe: int, nonce: str) -> Callable[[dict[str, Any]], None]:
    dumps, write = json.dumps, os.write

    def say(data: dict[str, Any]) -> None:
        line = f"{nonce} {dumps(data)}\n".encode()
        while line:
            line = line[write(pipe, line) :]

    return say


def _settle(folder: Path, limits: dict[str, Any], devices: int) -> None:
    """A session of its own, a clean folder, and every limit that does not depend on JAX."""
    os.setsid()
    os.chdir(folder / "run")
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(folder / "printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    cpu = int(limits["cpu"])
    for what, soft, last in (
        (resource.RLIMIT_CPU, cpu, cpu + 2),  # a signal first, which may be ignored, then the end
        (resource.RLIMIT_FSIZE, int(limits["output"]), int(limits["output"])),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NOFILE, 256, 256),
    ):
        hard = resource.getrlimit(what)[1]
        top = last if hard == resource.RLIM_INFINITY else min(last, hard)
        resource.setrlimit(what, (min(soft, top), top))
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    )
    for name in ("TMPDIR", "HOME"):
        os.environ[name] = str(folder / "run")


def _limit_memory(extra: int) -> None:
    """So much beyond what the process has mapped by now, most of which JAX never touches."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_processes() -> None:
    """Hardly more tasks than there are: JAX has its threads by now. Root is not bound by it."""
    own = os.getuid()
    count = 0
    for status in Path("/proc").glob("[0-9]*"):
        try:
            if status.stat().st_uid == own:
                count += len(os.listdir(status / "task"))
        except OSError:
            continue
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = count + 256
    top = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (top, top))


def _work(
    folder: Path, name: str, jobs: list[dict[str, Any]], limits: dict[str, Any]
) -> list[dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    from . import hooks

    jnp.zeros(()).block_until_ready()  # JAX starts here, before the limits on memory and tasks
    assert len(jax.devices()) == jobs[0]["devices"]
    _limit_memory(int(limits["memory"]))
    _limit_processes()
    threading.excepthook = lambda args: None
    watching = hooks.install(jobs[0])
    guard.keep(folder, [EXERCISES, *map(Path, jobs[0].get("secret", ()))])
    return [_one(folder / name, job, watching) for job in jobs]


def _one(file: Path, job: dict[str, Any], watching: Any) -> dict[str, Any]:
    """One run of the file: imported anew each time, so that no run sees another's state."""
    import jax

    from . import hooks

    seen = watching.begin()
    found: dict[str, Any] = {}
    try:
        function = _load(file, job["function"], job["exercise"])
        if job["kind"] == "look":
            from .look import look

            found = look(function, job, watching)
        else:
            found["value"] = wire.pack(jax.block_until_ready(hooks.call(function, job)))
    except _Missing as error:
        found["error"] = {"type": "Missing", "message": str(error), "line": 0, "stage": "import"}
    except BaseException as error:
        found["error"] = _told(error, file)
    found["facts"] = seen.facts()
    return found


class _Missing(Exception):
    """The file does not define what the exercise asks for."""


def _load(file: Path, name: str, exercise: str) -> Any:
    source = file.read_text(encoding="utf-8")
    module = types.ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent))
    linecache.checkcache(str(file))
    exec(compile(source, str(file), "exec"), module.__dict__)
    function = module.__dict__.get(name)
    if not callable(function):
        near = difflib.get_close_matches(
            name, [key for key, one in module.__dict__.items() if callable(one)], n=1
        )
        renamed = f"rename {near[0]!r}, or " if near else ""
        raise _Missing(
            f"The file does not define a function {name!r}.\n"
            f"Remedy: {renamed}start again from the exercise's own file: shardwise practice reset "
            f"{exercise}."
        )
    return function


def _told(error: BaseException, file: Path) -> dict[str, Any]:
    """An exception, with the last line of the learner's own file on the way to it."""
    message = text_of(error)
    if isinstance(error, SyntaxError):
        return {
            "type": "SyntaxError",
            "message": str(error.msg),
            "line": error.lineno or 0,
            "text": (error.text or "").strip(),
            "stage": "import",
        }
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(file)]
    chain, cause = [type(error).__name__], error
    while (cause := cause.__cause__ or cause.__context__) is not None and len(chain) < 6:
        chain.append(type(cause).__name__)
        message += f"\n[caused by {type(cause).__name__}: {text_of(cause)[:1500]}]"
    calls = own[0].name == "<module>" if own else False
    return {
        "type": type(error).__name__,
        "kinds": chain,
        "message": message[:6000],
        "line": own[-1].lineno if own else 0,
        "text": (own[-1].line or "") if own else "",
        "stage": "import" if calls else "call",
    }
