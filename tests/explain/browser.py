"""A real browser for the tests of pages: chromium, driven over a pipe, without other packages.

It speaks the DevTools protocol: messages of JSON with a zero byte behind each, on two pipes that
the browser finds as its file descriptors 3 and 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ..optional import because
from ..patience import HANGS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not where the browser looks for its own."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def start(folder: Path) -> Browser:
    """A browser that keeps its files in the folder; the tests are skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip(
            because("chromium is not installed: no page is looked at", "apt-get install chromium")
        )
    return Browser(folder)


class Browser:
    """One browser with one tab. Events since the last page was opened are in `events`."""

    def __init__(self, folder: Path):
        reads, self._out = _pipe()
        self._in, writes = _pipe()
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}"]
        silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, reads, 3), (os.POSIX_SPAWN_DUP2, writes, 4)]
        self._process = os.posix_spawn(
            command[0], command, os.environ, file_actions=[*silent, *pipes]
        )
        os.close(reads)
        os.close(writes)
        self._rest, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something; give the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self._number:
                assert "error" not in got, (method, got["error"])
                return got["result"]
            self.events.append(got)

    def open(self, path: Path, width: int, height: int = 900, theme: str = "light") -> None:
        """Load a file into a window of that size."""
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not self.heard("Page.loadEventFired"):
            self.events.append(self._next())

    def heard(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [one["params"] for one in self.events if one.get("method") == method]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        got = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **more,
            )

    def complaints(self) -> list[str]:
        """What the browser's console shows of warnings and errors."""
        self.run("0")  # events that came before this answer have been read
        logged = [one["entry"]["text"] for one in self.heard("Log.entryAdded")]
        thrown = [str(one["exceptionDetails"]) for one in self.heard("Runtime.exceptionThrown")]
        said = [str(one["args"]) for one in self.heard("Runtime.consoleAPICalled")]
        return logged + thrown + said

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        self.run("0")
        return [one["request"]["url"] for one in self.heard("Network.requestWillBeSent")]

    def _next(self, patience: float = HANGS) -> dict[str, Any]:
        """The next message."""
        end = time.monotonic() + patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            got = os.read(self._in, 1 << 20) if ready else b""
            if not got:
                raise TimeoutError("the browser does not answer")
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
