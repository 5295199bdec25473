"""Checksums, locks, files that appear whole, and signals, each by itself."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from shardwise import ShardwiseError, _jax  # noqa: F401  (adds to COMPILERS)
from shardwise._base.durable import (
    Identity,
    Lock,
    Signals,
    broken_seal,
    holder,
    listen,
    seal,
    unused,
    write_file,
    write_whole,
)
from shardwise._base.durable.signals import COMPILERS, GRACE

from ..optional import because
from ..patience import HANGS

ROOT = Path(__file__).parents[2]


FACTS = {"step": 3, "loss": 0.1, "bad": math.nan, "nested": {"a": [1, 2], "b": None}}


class TestSeal:
    def test_it_survives_json(self):
        assert broken_seal(json.loads(json.dumps(seal(FACTS)))) == ""

    @pytest.mark.parametrize("change", [{"step": 4}, {"more": 1}, {"crc": "00000000"}, {"crc": 7}])
    def test_a_change_breaks_it(self, change):
        assert "does not match" in broken_seal(seal(FACTS) | change)

    @pytest.mark.parametrize(("found", "words"), [([], "a list"), ({"a": 1}, "is missing")])
    def test_what_was_never_sealed(self, found, words):
        assert words in broken_seal(found)


class TestLock:
    def lock(self, folder: Path) -> Lock:
        return Lock(
            folder / ".lock", resource="the folder", activity="trains", remedy="wait for it."
        )

    def test_the_second_is_told_who_holds_it(self, tmp_path):
        with self.lock(tmp_path), pytest.raises(ShardwiseError) as error:
            self.lock(tmp_path).__enter__()
        assert error.match(rf"the folder: process {os.getpid()} on .* trains there")
        with self.lock(tmp_path):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_a_kill_lets_go_of_it_and_a_forked_worker_does_not_hold_it(self, tmp_path):
        code = (
            "import os, sys, time; from pathlib import Path\n"
            "from shardwise._base.durable import Lock\n"
            "lock = Lock(Path(sys.argv[1]), 'a', 'b', 'c'); lock.__enter__()\n"
            "if os.fork() == 0: print('held', flush=True); time.sleep(900); os._exit(0)\n"
            "time.sleep(900)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / ".lock")],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(ShardwiseError, match=f"process {process.pid} "):
                self.lock(tmp_path).__enter__()
            process.kill()
            process.wait()
            with self.lock(tmp_path):
                pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()

    def test_nobody_holds_what_is_not_there(self, tmp_path):
        assert holder(tmp_path / "none") == "another process"


class TestFiles:
    def test_a_link_in_the_way_is_not_followed(self, tmp_path):
        victim = tmp_path / "victim"
        victim.write_text("mine")
        (tmp_path / "log.jsonl.tmp").symlink_to(victim)
        write_whole(tmp_path / "log.jsonl", b"rows")
        assert victim.read_text() == "mine"
        assert (tmp_path / "log.jsonl").read_bytes() == b"rows"

    def test_what_a_kill_left_goes_with_a_later_write(self, tmp_path):
        names = ("log", "log.jsonl")
        for name in names:
            left = tmp_path / f".{name}.0123abcd.tmp"
            left.write_text("half")
            os.utime(left, (0, time.time() - 3600))
        write_whole(tmp_path / "log", b"rows")  # which leaves alone what is not its own
        assert {p.name for p in tmp_path.iterdir()} == {"log", ".log.jsonl.0123abcd.tmp"}
        write_whole(tmp_path / "log.jsonl", b"rows")
        assert {p.name for p in tmp_path.iterdir()} == set(names)

    def test_a_kill_leaves_what_a_later_write_takes_away(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "replace", lambda *_: None)
        write_whole(tmp_path / "log", b"rows")
        monkeypatch.undo()
        (left,) = tmp_path.iterdir()
        os.utime(left, (0, 0))
        write_whole(tmp_path / "log", b"rows")
        assert [p.name for p in tmp_path.iterdir()] == ["log"]

    def test_one_who_writes_meanwhile_is_not_disturbed(self, tmp_path, monkeypatch):
        replace = os.replace

        def meanwhile(*paths):
            monkeypatch.setattr(os, "replace", replace)
            for name in ("page", "page.html"):
                write_file(tmp_path / name, "other")
            replace(*paths)

        for name in ("page", "page.html"):
            monkeypatch.setattr(os, "replace", meanwhile)
            write_file(tmp_path / name, "mine")
            assert (tmp_path / name).read_text() == "mine"
        assert {p.name for p in tmp_path.iterdir()} == {"page", "page.html"}

    def test_the_rights_of_a_new_file_are_those_of_any(self, tmp_path):
        (tmp_path / "plain").touch()
        write_whole(tmp_path / "log", b"rows")
        assert (tmp_path / "log").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_the_rights_of_a_file_stay(self, tmp_path):
        path = tmp_path / "log"
        path.write_text("")
        path.chmod(0o640)
        write_whole(path, b"rows")
        assert path.stat().st_mode & 0o777 == 0o640

    def test_a_file_of_the_users_keeps_its_link(self, tmp_path):
        page = tmp_path / "page"
        page.write_text("old")
        (tmp_path / "link").symlink_to(page)
        write_file(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert page.read_text() == "new"

    def test_a_pipe_is_written_to(self, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            write_file(pipe, "page")
            assert os.read(reader, 10) == b"page"
        finally:
            os.close(reader)
        assert pipe.is_fifo()

    def test_a_stream_that_leads_to_a_file_is_written_to(self, tmp_path):
        page = tmp_path / "page"
        with page.open("wb") as file:
            write_file(Path(f"/dev/fd/{file.fileno()}"), "page")
            assert os.path.samestat(os.fstat(file.fileno()), page.stat())
        assert page.read_text() == "page"

    @pytest.mark.parametrize("stream", [1, 2])
    def test_and_one_that_a_link_leads_to(self, tmp_path, stream):
        page, link = tmp_path / "page", tmp_path / "link"
        link.symlink_to(f"/proc/self/fd/{stream}")
        code = (
            "import os, sys; from pathlib import Path\n"
            "from shardwise._base.durable import write_file\n"
            "write_file(Path(sys.argv[1]), 'page\\n'); os.lseek(int(sys.argv[2]), 0, os.SEEK_END)\n"
            "os.write(int(sys.argv[2]), b'more')"
        )
        with page.open("wb") as file:
            command = [sys.executable, "-c", code, str(link), str(stream)]
            subprocess.run(command, check=True, **{"stdout" if stream == 1 else "stderr": file})
        assert page.read_text() == "page\nmore"

    def test_a_file_that_may_not_be_written_to(self, tmp_path, monkeypatch):
        page, access = tmp_path / "page", os.access
        page.write_text("old")
        page.chmod(0o444)

        def refused(path, data):  # as by the system, which lets root write
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "access", lambda path, how: path != page and access(path, how))
        monkeypatch.setattr(Path, "write_bytes", refused)
        with pytest.raises(ShardwiseError, match=r"page: it cannot be written \(Permission den"):
            write_file(page, "new")
        assert page.read_text() == "old"

    @pytest.mark.skipif(
        os.getuid() == 0, reason=because("Root may write anywhere", "use an ordinary user")
    )
    def test_a_folder_that_takes_no_new_files(self, tmp_path):
        (tmp_path / "page").write_text("old")
        tmp_path.chmod(0o500)
        write_file(tmp_path / "page", "new")
        tmp_path.chmod(0o700)
        assert (tmp_path / "page").read_text() == "new"

    def test_a_file_that_goes_away(self, tmp_path):
        path = tmp_path / "file"
        path.write_text("")
        identity = Identity(path)
        assert identity.lost() == ""
        path.rename(tmp_path / "moved")
        assert identity.lost() == "was deleted or moved"
        path.write_text("")
        assert identity.lost() == "was replaced by another"

    def test_a_name_that_is_not_taken(self, tmp_path):
        (tmp_path / "a").symlink_to("nowhere")
        assert unused(tmp_path / "a").name == "a2"


@pytest.mark.usefixtures("interruptible")
class TestSignals:
    def test_a_held_signal_is_noted(self):
        with listen("test") as signals:
            signal.raise_signal(signal.SIGINT)
            assert signals.name == "SIGINT"
            with pytest.raises(KeyboardInterrupt):
                signals.check()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_at_once_it_raises_what_python_would(self):
        with listen("test") as signals, pytest.raises(SystemExit) as end, signals.at_once():
            signal.raise_signal(signal.SIGTERM)
        assert end.value.code == 143

    def test_a_wait_that_does_not_end_is_broken_off_after_a_grace(self):
        with (
            listen("test") as signals,
            pytest.raises(KeyboardInterrupt),
            signals.at_once(later=True),
        ):
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.signum == signal.SIGINT
            time.sleep(HANGS)

    def test_nothing_is_raised_while_xla_compiles(self):
        """A frame of JAX's compiler that is sent a signal, again and again, is left by itself."""
        left = []

        def compile_(signals):
            os.kill(os.getpid(), signal.SIGINT)
            end = time.monotonic() + 1.5 * GRACE  # the signal is pressed once more meanwhile
            while time.monotonic() < end:
                time.sleep(0.01)
            left.append(signals.compiling)

        of_jax = types.FunctionType(
            compile_.__code__,
            {**globals(), "__name__": next(iter(COMPILERS))},
            closure=compile_.__closure__,
        )
        with listen("test") as signals, pytest.raises(KeyboardInterrupt), signals.at_once():
            of_jax(signals)
            time.sleep(HANGS)
        assert left == [True]

    def test_one_inside_another_shares_the_signal_and_leaves_the_word_to_it(self, capsys):
        with listen("outer") as outer, outer.at_once():
            with listen("inner") as inner:
                signal.raise_signal(signal.SIGTERM)  # held
                assert inner is outer
                with pytest.raises(SystemExit):
                    inner.end("inner: saved")
            assert not outer.nested
        assert capsys.readouterr().err == ""

    def test_a_handler_of_the_callers_stays(self):
        seen = []
        before = signal.signal(signal.SIGTERM, lambda *_: seen.append("mine"))
        try:
            with listen("test") as signals:
                signal.raise_signal(signal.SIGTERM)
                assert signals.signum is None
        finally:
            signal.signal(signal.SIGTERM, before)
        assert seen == ["mine"]

    def test_another_thread_takes_no_signals(self):
        found = []

        def run():
            with listen("test") as signals:
                found.append((signals, signal.getsignal(signal.SIGINT)))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert isinstance(found[0][0], Signals)
        assert found[0][1] is signal.default_int_handler

    def test_a_forked_worker_ends_as_if_there_were_no_run(self):
        code = (
            "import os, signal, time; from shardwise._base.durable import listen\n"
            "with listen('test') as signals:\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        time.sleep(60)\n"
            "        os._exit(0)\n"
            "    assert child > 0\n"
            "    os.kill(child, signal.SIGTERM)\n"
            "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signals.signum)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "-15 None\n", done.stderr

    def test_a_second_interrupt_ends_at_once_whatever_the_main_thread_does(self):
        code = (
            "import signal, time; from shardwise._base.durable import listen\n"
            # A shell's background jobs ignore SIGINT, and what they start does too.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "with listen('test'):\n"
            "    print('held', flush=True)\n"
            "    while True: sum(range(1000))\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        # Of two that come before the first one is handled, a busy process sees one.
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.6)
        _, err = process.communicate()
        assert process.returncode == 130
        assert "ended at once" in err


FORGOTTEN = {
    "a callback of the collector": "gc.callbacks.append(press); gc.collect()",
    "what it calls": "gc.callbacks.append(lambda *_: press()); gc.collect()",
    "__del__": "Gone()",
    # The callback of a weak container, wherever a signal finds it.
    "a weak container": "type(press)(press.__code__, {**globals(), '__name__': 'weakref'})()",
    "an extension": (
        "name = 'ExtensionFileLoader.exec_module'; "
        "type(press)(press.__code__.replace(co_qualname=name), globals())()"
    ),
}


@pytest.mark.parametrize("where", FORGOTTEN)
@pytest.mark.parametrize("taken", ["wait_for_compiler", "listen"])
def test_an_interrupt_is_not_lost_where_python_forgets_what_is_raised(where, taken):
    code = f"""
import contextlib, gc, signal, time
from shardwise._base.durable import listen, wait_for_compiler
signal.signal(signal.SIGINT, signal.default_int_handler)
told = []
def press(*_):
    if not told:
        told.append("too early")
        signal.raise_signal(signal.SIGINT)
        told[:] = ["in time"]
class Gone:
    def __del__(self): press()
with contextlib.ExitStack() as stack:
    if {taken == "listen"}:
        stack.enter_context(stack.enter_context(listen("test")).at_once())
    else:
        wait_for_compiler()
    with contextlib.suppress(KeyboardInterrupt):
        {FORGOTTEN[where]}
        time.sleep({HANGS})
        told = ["lost"]
    print(*told)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("in time\n", "")


def test_a_wait_is_broken_though_the_handler_runs_late(monkeypatch):
    """On a busy machine the grace may be over before the main thread has run its handler."""
    from shardwise._base.durable import signals

    monkeypatch.setattr(signals, "GRACE", 0.02)
    monkeypatch.setattr(signals, "PATIENCE", 0.04)
    pressed = threading.Event()

    class Late(signals.Signals):
        def press(self):
            pressed.set()

    late = Late()
    watch = signals._Watch(late, "run")
    waiting = threading.Thread(target=watch._wait, args=(signal.SIGTERM,))
    waiting.start()
    time.sleep(0.1)
    assert not pressed.is_set()
    late.signum = signal.SIGTERM
    assert pressed.wait(HANGS)
    watch._over.set()
    waiting.join()
    watch._close()
