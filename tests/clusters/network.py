"""Hosts as network namespaces: a name, an address and a link of their own, on one machine.

The links end in one more namespace, where a bridge joins them; nothing is connected to the
machine's own network. The link of the last host goes through a relay, which can hold every frame
back for a while.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

HUB = f"sw-{os.getpid()}-hub"
NET = "10.201.77"
_PACKET_ALL = 0x0003


class Network:
    """As many hosts as asked for; a context manager.

    Args:
        hosts: How many.
    """

    def __init__(self, hosts: int) -> None:
        self.names = [f"sw-{os.getpid()}-h{k}" for k in range(hosts)]

    def __enter__(self) -> Network:
        _ip("netns", "add", HUB)
        _ip("-n", HUB, "link", "add", "bridge", "type", "bridge")
        _ip("-n", HUB, "link", "set", "bridge", "up")
        for k, name in enumerate(self.names):
            self._add(k, name)
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", HUB, sys.executable, __file__, "relay",
             f"to-{len(self.names) - 1}", "slow-b"], stdin=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def _add(self, k: int, name: str) -> None:
        _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", f"to-{k}", "netns", HUB)
        _ip("-n", name, "addr", "add", f"{self.address(k)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", HUB, "link", "set", f"to-{k}", "up")
        _in(name, sys.executable, __file__, "plain", "eth0")
        port = f"to-{k}"
        if name == self.names[-1]:
            _ip("-n", HUB, "link", "add", "slow-a", "type", "veth", "peer", "slow-b")
            for end in ("slow-a", "slow-b"):
                _ip("-n", HUB, "link", "set", end, "up")
                _in(HUB, sys.executable, __file__, "plain", end)
            port = "slow-a"
        _ip("-n", HUB, "link", "set", port, "master", "bridge")
        folder = Path("/etc/netns") / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{self.address(j)} h{j}\n" for j in range(len(self.names))]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def address(self, k: int) -> str:
        return f"{NET}.{k + 1}"

    def command(self, k: int, *command: str) -> list[str]:
        """A command as it is run on a host, under the host's own name."""
        inner = ["unshare", "--uts", "sh", "-c", f'hostname h{k}; exec "$@"', "sh", *command]
        return ["ip", "netns", "exec", self.names[k], *inner]

    def link(self, k: int, up: bool) -> None:
        """Take the link of a host up or down."""
        _ip("-n", HUB, "link", "set", f"to-{k}", "up" if up else "down")

    def slow(self, seconds: float) -> None:
        """Hold every frame of the last host back for so long, each way."""
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{seconds}\n")
        self._relay.stdin.flush()

    def __exit__(self, *_: object) -> None:
        self._relay.kill()
        self._relay.wait()
        self._delete()

    def _delete(self) -> None:
        for name in [*self.names, HUB]:
            if name in _ip("netns", "list").split():
                _ip("netns", "del", name)
            hosts = Path("/etc/netns") / name / "hosts"
            with contextlib.suppress(OSError):
                hosts.unlink()
                hosts.parent.rmdir()


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout


def _in(name: str, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", name, *command], check=True, timeout=60)


def make_plain(device: str) -> None:
    """Have the kernel fill in checksums and cut segments: a relay sees frames as on a wire."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for order in (0x17, 0x1F, 0x24, 0x2C):  # tx checksums, TSO, GSO, GRO: off
            value = ctypes.create_string_buffer(struct.pack("II", order, 0))
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            with contextlib.suppress(OSError):
                fcntl.ioctl(control, 0x8946, request)


def relay(one: str, other: str) -> None:
    """Carry frames between two devices; lines on standard input say how long to hold them."""
    ends = []
    for device in (one, other):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_PACKET_ALL))
        end.bind((device, 0))
        end.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
        ends.append(end)
    delay = [0.0]
    for here, there in (ends, ends[::-1]):
        held: collections.deque[tuple[float, bytes]] = collections.deque()
        threading.Thread(target=_take, args=(here, there, held, delay), daemon=True).start()
        threading.Thread(target=_give, args=(there, held), daemon=True).start()
    for line in sys.stdin:
        delay[0] = float(line)


def _take(here: socket.socket, there: socket.socket, held: collections.deque, delay: list) -> None:
    while True:
        with contextlib.suppress(OSError):
            frame = here.recv(1 << 17)
            if delay[0] or held:
                held.append((time.monotonic() + delay[0], frame))
            else:
                there.send(frame)


def _give(there: socket.socket, held: collections.deque) -> None:
    while True:
        if not held:
            time.sleep(0.001)
            continue
        due, frame = held[0]
        time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(OSError):
            there.send(frame)
        held.popleft()


if __name__ == "__main__":
    os.nice(-5)
    {"relay": relay, "plain": make_plain}[sys.argv[1]](*sys.argv[2:])
