"""The port of the first launcher: strangers, other versions, wrong secrets, forged messages."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys

import pytest

from shardwise._base.errors import ShardwiseError
from shardwise._runtime.launch import handshake, wire
from shardwise._runtime.launch.entry import LINES, Listener
from shardwise._runtime.launch.events import (
    Exited,
    Joined,
    Paused,
    Reported,
    Stopped,
    describe_exit,
    from_message,
    to_message,
)
from shardwise._runtime.launch.failure import first_failure
from shardwise._runtime.launch.handshake import RejectedError, join, read_secret
from shardwise._runtime.launch.job import Job
from shardwise._runtime.launch.wire import LONGEST, Code, Wire, shown

from .launching import LIMIT, launch, launched, script, wait_for

SECRET = b"a secret of the job, long enough"
HELLO = {"node": 1, "processes": 2, "signature": {"JAX": "1"}}


class Said:
    """Stands for the output of a launcher."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@contextlib.contextmanager
def listening(secret: bytes = SECRET):
    """An entry on a port that the kernel chooses, what it posts and what it says."""
    events, said = queue.SimpleQueue(), Said()
    job = Job((__file__,), nodes=2, coordinator=("127.0.0.1", 0), secret=secret)
    entry = Listener(job, events, said)  # pyright: ignore[reportArgumentType]
    try:
        yield entry, events, said.lines
    finally:
        entry.close()


def connect(entry: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", entry.port), timeout=LIMIT)


def wired(connection: socket.socket) -> contextlib.closing[Wire]:
    return contextlib.closing(Wire(connection))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "it sent 'GET / HTTP/1.1', which is not a message of shardwise",
        ),
        (b"[1]\n", "it sent '[1]', which is not a message"),
        (b'{"node": 99}\n', "it sent '{\"node\": 99}', which is not a message"),
        (b'{"node": 1, "processes": 1, "signature": {}}\n', "it is of another version"),
        (b'{"protocol": 2, "node": "1"}\n', "its node is \"'1'\""),
        (b'{"protocol": 2, "node": true}\n', "its node is 'True'"),
        (b"[" * 50_000 + b"\n", "which is not a message"),
        (b"\x1b[2J\x1b]0;owned\x07\n", r"it sent '\x1b[2J\x1b]0;owned\x07'"),
        (b"\xff\xfe\n", r"it sent '\ufffd\ufffd'"),
        (b"x" * LONGEST + b"\n", "xxx...', which is cut off"),
    ],
)
def test_what_is_not_ours_is_rejected_with_a_line(line, words):
    with listening() as (entry, events, lines), connect(entry) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(line)
        wait_for(lambda: lines)
        assert lines[0].startswith("rejected a connection from 127.0.0.1: ")
        assert words in lines[0]
        assert lines[0].isprintable()
        assert len(lines[0]) < 300
        assert events.empty()


def test_a_full_hello_without_the_proof_is_rejected():
    with listening() as (entry, events, lines), connect(entry) as stranger:
        hello = {**HELLO, "protocol": handshake.PROTOCOL, "nonce": "0", "proof": "0" * 64}
        stranger.sendall(json.dumps(hello).encode() + b"\n")
        wait_for(lambda: lines)
        assert "its job secret is another one" in lines[0]
        assert events.empty()


def test_who_only_looks_is_not_reported_and_many_strangers_are_not_either():
    with listening() as (entry, events, lines):
        connect(entry).close()
        for number in range(LINES + 10):
            with connect(entry) as stranger:
                stranger.sendall(b"%d\n" % number)
                stranger.recv(1000)
                stranger.recv(1000)  # its end: it was looked at
        assert len(lines) <= LINES
        wait_for(lambda: len(lines) == LINES)
        with wired(connect(entry)) as wire:
            join(wire, SECRET, HELLO)  # and a launcher is let in all the same
            joined = events.get(timeout=LIMIT)
            assert isinstance(joined, Joined)
            joined.wire.close()


@pytest.mark.parametrize("secret", [SECRET, b""])
def test_a_launcher_with_the_secret_is_let_in(secret):
    with listening(secret) as (entry, events, lines):
        with wired(connect(entry)) as wire:
            join(wire, secret, HELLO)
            joined = events.get(timeout=LIMIT)
            assert (joined.node, joined.hello["processes"]) == (1, 2)
            joined.wire.send(do="start", first=0)
            wire.send(say="stopped")
            assert wire.receive() == {"do": "start", "first": 0}
            assert joined.wire.receive() == {"say": "stopped"}
            joined.wire.close()
        assert [line for line in lines if "rejected" in line] == []
        assert bool(lines) == (not secret)  # it says that anyone may come


@pytest.mark.parametrize(("ours", "theirs"), [(SECRET, b""), (b"", SECRET), (SECRET, SECRET * 2)])
def test_another_secret_is_rejected_on_both_sides(ours, theirs):
    with listening(theirs) as (entry, events, lines), wired(connect(entry)) as wire:
        with pytest.raises(RejectedError, match="its job secret is another one"):
            join(wire, ours, HELLO)
        wait_for(lambda: any("its job secret is another one" in line for line in lines))
        assert events.empty()


def test_a_first_launcher_that_does_not_know_the_secret_is_not_followed():
    """It lets everybody in, and cannot prove itself."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname(), timeout=LIMIT)
        theirs, _ = listener.accept()
        theirs.sendall(
            b'{"shardwise": "launch", "protocol": %d, "nonce": "1"}\n' % handshake.PROTOCOL
            + b'{"proof": "00"}\n'
        )
        words = "its job secret is another one"
        with theirs, wired(ours) as wire, pytest.raises(RejectedError, match=words):
            join(wire, SECRET, HELLO)


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"SSH-2.0-OpenSSH_9\n", "it sent 'SSH-2.0-OpenSSH_9'"),
        (b'{"do": "start"}\n', "the program there is not shardwise launch"),
        (b'{"shardwise": "launch", "protocol": 9, "nonce": "1"}\n', "protocol '9', here 2"),
    ],
)
def test_a_follower_reports_what_it_reached(greeting, words):
    here, there = socket.socketpair()
    with there, wired(here) as wire:
        there.sendall(greeting)
        with pytest.raises(RejectedError) as error:
            join(wire, SECRET, HELLO)
    assert words in str(error.value)


def test_forged_repeated_and_reflected_messages_end_the_connection():
    def sent(key: bytes, direction: str, *texts: bytes) -> list[bytes]:
        code = Code(key, direction)
        return [code.next(text) + text + b"\n" for text in texts]

    right = sent(b"key", "lead", b'{"n": 1}', b'{"n": 2}')
    for lines in (
        [right[0], right[0]],  # repeated
        [right[1]],  # one left out
        [right[0].replace(b": 1", b": 7")],
        sent(b"other", "lead", b'{"n": 1}'),
        sent(b"key", "follow", b'{"n": 1}'),  # our own, sent back
        [b'{"n": 1}\n'],
    ):
        here, there = socket.socketpair()
        with there, wired(here) as wire:
            wire.secure(b"key", "follow", "lead")
            there.sendall(b"".join(lines))
            with pytest.raises(ValueError, match="which is not from a launcher of this job"):
                for _ in lines:
                    assert wire.receive() == {"n": 1}


def lost_of(here: socket.socket) -> str:
    """Why a connection ends that is listened to."""
    reasons = queue.SimpleQueue()
    with wired(here) as end:
        end.listen(lambda message: None, reasons.put)
        return reasons.get(timeout=LIMIT)


def test_a_launcher_that_is_killed_is_noticed_by_the_end_of_its_connection():
    here, there = socket.socketpair()
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, pass_fds=[there.fileno()]) as other:
        there.close()  # only the other process has it now
        other.kill()
        assert lost_of(here) in (
            "the connection was closed",
            "[Errno 104] Connection reset by peer",
        )


def test_a_machine_that_is_silent_is_noticed(monkeypatch):
    """One that sends nothing is gone after the silence, however short or long that is."""
    monkeypatch.setattr(wire, "SILENCE", 0.05)
    here, there = socket.socketpair()
    with there:
        assert lost_of(here) == "no sign of life for 0.05 s"


def test_a_machine_that_gives_signs_of_life_is_not_lost(monkeypatch):
    monkeypatch.setattr(wire, "HEARTBEAT", 0.001)
    here, there = socket.socketpair()
    messages, reasons = queue.SimpleQueue(), []
    with wired(here) as ours, wired(there) as theirs:
        theirs.listen(lambda message: None, lambda reason: None)
        ours.listen(messages.put, reasons.append)
        for number in range(3):
            theirs.send(number=number)
            assert messages.get(timeout=LIMIT) == {"number": number}
        assert reasons == []


def test_events_survive_the_way_and_others_are_refused():
    for event in (
        Exited(1, "a", -9, "words"),
        Reported(1, "a", 1, "words", True),
        Paused(3, "b", continued=True),
        Stopped(2),
    ):
        assert from_message(json.loads(json.dumps(to_message(event)))) == event
    for wrong in (
        {},
        {"say": "lost", "node": 1},
        {"say": "exited"},
        {"say": "exited", "process": "1", "host": "a", "code": 0, "words": ""},
        {"say": "ended", "process": 1, "host": "a", "more": 1},
        {"say": "signalled", "number": True},
    ):
        with pytest.raises(ValueError, match="its message"):
            from_message(wrong)


class TestSecrets:
    def test_come_from_a_file_or_the_environment(self, tmp_path, monkeypatch):
        monkeypatch.delenv(handshake.VARIABLE, raising=False)
        assert read_secret(None) == b""
        monkeypatch.setenv(handshake.VARIABLE, SECRET.decode())
        assert read_secret(None) == SECRET
        path = tmp_path / "secret"
        path.write_bytes(b"another one of the file\n")
        path.chmod(0o600)
        assert read_secret(path) == b"another one of the file"

    def test_that_are_weak_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setenv(handshake.VARIABLE, "short")
        with pytest.raises(ShardwiseError, match="SHARDWISE_SECRET: it has 5 characters"):
            read_secret(None)
        path = tmp_path / "secret"
        with pytest.raises(ShardwiseError, match="cannot be read"):
            read_secret(path)
        path.write_bytes(SECRET)
        path.chmod(0o644)
        with pytest.raises(ShardwiseError, match="other users may read it") as error:
            read_secret(path)
        assert error.match("chmod 600")

    def test_are_not_passed_to_the_processes(self, tmp_path, monkeypatch):
        path = script(tmp_path, "import os; print('SHARDWISE_SECRET' in os.environ)")
        assert launch(path, SHARDWISE_SECRET=SECRET.decode())[1] == "[0] False\n"


def test_the_process_that_a_signal_stopped_is_blamed():
    heard = [Exited(0, "a", -signal.SIGABRT, "JAX gave up")]
    assert str(first_failure(heard, {1: "b"})).startswith(
        "process 1 on b failed first: it was stopped by a signal"
    )
    cause = Reported(2, "b", 1, "ValueError: x", peer=False)
    assert "process 2 on b" in str(first_failure([*heard, cause], {1: "b"}))


@pytest.mark.skipif(sys.platform != "linux", reason="There is no /proc.")
def test_a_stopped_process_is_reported_and_its_continuation_too(tmp_path):
    path = script(
        tmp_path,
        f"""
    import os, time
    me = os.environ["SHARDWISE_PROCESS"]
    open(f"{tmp_path}/pid{{me}}.new", "w").write(str(os.getpid()))
    os.rename(f"{tmp_path}/pid{{me}}.new", f"{tmp_path}/pid{{me}}")
    while not os.path.exists(f"{tmp_path}/end"):
        time.sleep(0.05)
    if me == "0" and not os.path.exists(f"{tmp_path}/well"):
        os.abort()
    """,
    )
    number = tmp_path / "pid1"
    with launched("-n", 2, path) as process:
        assert process.stderr is not None
        wait_for(number.exists)
        os.kill(int(number.read_text()), signal.SIGSTOP)
        assert "process 1 on" in (line := process.stderr.readline())
        assert "was stopped by a signal; the others wait for it" in line
        os.kill(int(number.read_text()), signal.SIGCONT)
        assert "was continued" in process.stderr.readline()
        os.kill(int(number.read_text()), signal.SIGSTOP)
        assert "was stopped" in process.stderr.readline()
        (tmp_path / "end").touch()
        _, err = process.communicate(timeout=LIMIT)
    assert "process 1 on" in err
    assert "failed first: it was stopped by a signal" in err
    assert process.returncode == 128 + signal.SIGSTOP


def test_an_end_by_a_signal_is_called_so():
    assert describe_exit(143) == "it was ended by SIGTERM (exit code 143)"
    assert describe_exit(3) == "exit code 3"


def test_what_came_from_outside_is_shown_and_not_obeyed():
    assert shown(b"\x1b[2Jright\n") == r"'\x1b[2Jright'"
    assert len(shown("x" * 1000)) < 80


def test_what_follows_from_another_failure_has_no_traceback(tmp_path):
    path = script(tmp_path, "import shardwise as sw\nraise sw.PeerError('process 0 is gone')")
    code, _, err = launch(path)
    assert code == 1
    assert "script.py:2: PeerError: process 0 is gone" in err
    assert "Traceback" not in err
