"""A server for one machine: 127.0.0.1, a random token in the address, nothing from the disk.

The standard library is enough: a handful of paths, and one page, which asks twice a second
whether anything has changed. The names of exercises are looked up in a list, so no path from
outside reaches the disk.
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from ..._base.errors import ShardwiseError
from ..._base.pages import environment
from ..._base.version import __version__
from ..exercise import Exercise
from ..folder import about_hints
from ..workshop import Workshop

BEAT = 0.25
"""Seconds between two looks at the folder."""

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

VERDICTS = {"good": ("#1a7f37", "#57c878"), "bad": ("#b4232c", "#ff8d86")}
"""The colours of right and wrong, light and dark."""

MARKDOWN = MarkdownIt("commonmark", {"html": False})


class LiveWorkshop:
    """The workshop behind the page: looks at the folder, judges, and counts the changes."""

    def __init__(self, shop: Workshop):
        self.shop = shop
        self.waiting: list[Exercise] = []
        """The exercise that is judged, and those that wait for it."""
        self.saved: tuple[int, str] = (0, "")
        """How many files were saved, and the exercise of the last one."""
        self.problem = ""
        """Why the folder cannot be looked at, if it cannot."""
        self.changes = 0
        self._numbers = itertools.count(1)
        self.over = threading.Event()

    def start(self) -> None:
        """Look and judge, each in a thread of its own."""
        self.waiting += self.shop.folder.unjudged
        for work in (self._look, self._judge):
            threading.Thread(target=work, daemon=True).start()

    def _look(self) -> None:
        while not self.over.wait(BEAT):
            before, self.problem = self.problem, ""
            try:
                for exercise in self.shop.changed():
                    self.ask(exercise)
            except Exception as error:  # a folder may be damaged for a while: look again
                self.problem = f"The folder cannot be read: {error}"
            if self.problem != before:
                self._count_change()

    def ask(self, exercise: Exercise) -> None:
        """Have an exercise judged."""
        self.waiting.append(exercise)
        self.saved = (self.saved[0] + 1, exercise.name)
        self._count_change()

    def _judge(self) -> None:
        while not self.over.wait(BEAT):
            while self.waiting and not self.over.is_set():
                self.shop.run(self.waiting[0])  # whatever the file does, this returns a verdict
                self.waiting.pop(0)
                self._count_change()

    def _count_change(self) -> None:
        self.changes = next(self._numbers)

    def find(self, name: str) -> Exercise | None:
        """An exercise by its name, out of the list."""
        return next(
            (exercise for exercise in self.shop.folder.exercises if exercise.name == name), None
        )

    def overview(self) -> dict[str, Any]:
        """What the page shows of all exercises."""
        folder = self.shop.folder
        return {
            "changes": self.changes,
            "saved": self.saved,
            "current": (folder.current or folder.exercises[-1]).name,
            "problem": self.problem,
            "exercises": [self._summary(exercise) for exercise in folder.exercises],
        }

    def _summary(self, exercise: Exercise) -> dict[str, Any]:
        judgement = self.shop.verdicts.get(exercise.name)
        return {
            "number": exercise.number,
            "name": exercise.name,
            "title": exercise.title,
            "topic": exercise.topic,
            "solved": exercise.name in self.shop.folder.solved,
            "status": judgement.status if judgement else "",
        }

    def exercise(self, exercise: Exercise) -> dict[str, Any]:
        """What the page shows of one exercise."""
        folder = self.shop.folder
        judgement = self.shop.verdicts.get(exercise.name)
        count = folder.hinted.get(exercise.name, 0)
        return {
            **self._summary(exercise),
            "file": exercise.file_name,
            "path": f"{folder.path.name}/{exercise.file_name}",
            "statement": MARKDOWN.render(exercise.statement),
            "source": _code(folder.text(exercise), exercise),
            "hints": [MARKDOWN.render(hint) for hint in exercise.hints[:count]],
            "about_hints": about_hints(exercise),
            "more_hints": count < len(exercise.hints),
            "solution": exercise.solution if exercise.name in folder.solved else None,
            "judging": exercise in self.waiting,
            "verdict": judgement.to_dict() if judgement else None,
        }


def _code(text: str, exercise: Exercise) -> list[tuple[int, str]]:
    """The lines of the learner's file after the statement on top, which the page shows anyway."""
    lines = list(enumerate(text.splitlines(), 1))
    head = exercise.start.split('"""', 2)
    skip = (head[0] + '"""' + head[1] + '"""').count("\n") + 1 if len(head) == 3 else 0
    untouched = text.splitlines()[:skip] == exercise.start.splitlines()[:skip]
    rest = lines[skip:] if untouched else lines
    while rest and not rest[0][1].strip():
        rest = rest[1:]
    return rest


class Server(ThreadingHTTPServer):
    """Serves one page to this machine."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, live: LiveWorkshop, port: int):
        super().__init__(("127.0.0.1", port), Handler)
        self.live = live
        self.token = secrets.token_urlsafe(24)
        self.page = page()

    @property
    def address(self) -> str:
        """The address of the page, token and all."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no news."""


class Handler(BaseHTTPRequestHandler):
    """The few paths there are."""

    protocol_version = "HTTP/1.1"
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: the address holds the token."""

    def do_GET(self) -> None:
        """The page and its data."""
        path = self._path()
        if path is None:
            return
        live = self.server.live
        kind, _, name = path.partition("/")
        if path == "":
            self._send(self.server.page.encode(), "text/html; charset=utf-8")
        elif path == "overview":
            self._json(live.overview())
        elif kind == "exercise" and (exercise := live.find(name)):
            self._json(live.exercise(exercise))
        else:
            self._refuse(404)

    def do_POST(self) -> None:
        """Judge, or give a hint."""
        path = self._path()
        if path is None:
            return
        length = self.headers.get("Content-Length", "0")
        if length.isdecimal():
            self.rfile.read(min(int(length), 1 << 16))
        kind, _, name = path.partition("/")
        exercise = self.server.live.find(name)
        if self.headers.get("X-Practice") != "yes" or exercise is None:
            self._refuse(403 if exercise else 404)
        elif kind == "judge":
            self.server.live.ask(exercise)
            self._json({"ok": True})
        elif kind == "hint":
            self.server.live.shop.folder.hint(exercise)
            self._json(self.server.live.exercise(exercise))
        else:
            self._refuse(404)

    def _path(self) -> str | None:
        """What is asked for, if the request is for us and has the token; else it is refused."""
        port = self.server.server_port
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return self._refuse(403)
        _, _, rest = self.path.partition("/")
        token, slash, path = rest.partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._refuse(404)
        return path.partition("?")[0]

    def _json(self, data: Any) -> None:
        self._send(json.dumps(data).encode(), "application/json")

    def _refuse(self, status: int) -> None:
        self.close_connection = True
        self._send(b"not here\n", "text/plain", status)

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """What the server calls itself."""
        return "shardwise"


def page() -> str:
    """The page, with its style and its script inside."""
    templates = environment(Path(__file__).parent, VERDICTS)
    return templates.get_template("page.html").render(version=__version__)


def serve(shop: Workshop, port: int, browser: bool, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C."""
    live = LiveWorkshop(shop)
    try:
        server = Server(live, port)
    except OSError as error:
        raise ShardwiseError(
            f"the port cannot be used ({error.strerror})",
            where=f"--port {port}",
            remedy="leave --port out: a free one is taken.",
        ) from error
    live.start()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    say(f"Practice is at {server.address}")
    say("Only this machine can reach it. Ctrl-C ends.")
    if browser:
        webbrowser.open(server.address)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass
    finally:
        live.over.set()
        server.shutdown()
        server.server_close()
    done, all_of = len(shop.folder.solved), len(shop.folder.exercises)
    say(f"\n{done} of {all_of} done. `shardwise practice web` continues from here.")
