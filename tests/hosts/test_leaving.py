"""Ends of a process while others wait for it: an interrupted start, a script that ends early."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from .launching import launched, script, wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="There is no /proc: shardwise launch is not tried."
)


def test_ctrl_c_ends_a_process_that_waits_for_the_others_to_join(tmp_path):
    path = script(
        tmp_path,
        f"""
        import os, socket, time
        if os.environ["SHARDWISE_PROCESS"] == "1":
            host, _, port = os.environ["SHARDWISE_COORDINATOR"].rpartition(":")
            while socket.socket().connect_ex((host, int(port))):
                time.sleep(0.1)
            open({str(tmp_path / "waits")!r}, "w").close()
            time.sleep(100)
        import shardwise as sw
        sw.connect()
        """,
    )
    with launched("-n", 2, "--devices", 1, path) as process:
        wait_for((tmp_path / "waits").exists)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 10
