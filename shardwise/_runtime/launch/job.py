"""The job to launch, validated before anything is started."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._base.errors import ShardwiseError
from ..._base.version import __version__


@dataclass(frozen=True)
class Job:
    """A script and how often to run it.

    Attributes:
        command: The script or the module, and its arguments.
        module: Whether it is a module.
        processes: Processes on this machine.
        devices: Virtual CPU devices of each process; None to use the accelerators.
        nodes: The number of machines.
        node: The number of this machine.
        coordinator: `(host, port)` where the launcher of node 0 listens.
        restarts: The maximum number of restarts after failures.
        timeout: Seconds to wait for other machines, and for processes to join.
        grace: Seconds that processes have to save after a signal.
        log_dir: A folder for the output of each process; None to show it.
        secret: The secret with which the launchers authenticate; empty for none.
    """

    command: tuple[str, ...]
    module: bool = False
    processes: int = 1
    devices: int | None = None
    nodes: int = 1
    node: int = 0
    coordinator: tuple[str, int] = ("127.0.0.1", 0)
    restarts: int = 0
    timeout: float = 300.0
    grace: float = 60.0
    log_dir: Path | None = None
    secret: bytes = field(default=b"", repr=False)

    def check(self) -> None:
        """Raise if the job cannot be run."""
        for name, value, minimum in (
            ("--processes", self.processes, 1),
            ("--devices", self.devices, 1),
            ("--nodes", self.nodes, 1),
            ("--restarts", self.restarts, 0),
            ("--timeout", self.timeout, 1),
            ("--grace", self.grace, 0),
        ):
            if value is not None and value < minimum:
                raise _wrong(f"{name} {value}", f"It is at least {minimum}.", f"{name} {minimum}")
        if not 0 <= self.node < self.nodes:
            raise _wrong(
                f"--node {self.node} of --nodes {self.nodes}",
                "Machines are numbered from 0.",
                f"--node 0 to --node {self.nodes - 1}",
            )
        if self.nodes > 1 and not self.coordinator[1]:
            raise _wrong(
                f"--nodes {self.nodes} without --coordinator",
                "The launchers connect to an address of machine 0.",
                "--coordinator HOST:PORT, the same on all machines",
            )
        self._check_script()
        deal_devices(self)

    def _check_script(self) -> None:
        script = self.command[0]
        if self.module:
            try:
                exists = importlib.util.find_spec(script) is not None
            except (ImportError, ValueError):
                exists = False
            if not exists and not Path(*script.split(".")).with_suffix(".py").exists():
                raise _wrong(f"-m {script}", "There is no such module here.", "-m package.module")
        elif not Path(script).is_file():
            raise _wrong(f"the script {script!r}", "There is no such file here.", "-m for a module")

    def signature(self) -> dict[str, Any]:
        """Return the facts that must be the same on all machines."""
        path = Path(self.command[0])
        script = "" if self.module else hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        return {
            "shardwise": __version__,
            "JAX": _version("jax"),
            "Python": ".".join(platform.python_version_tuple()[:2]),
            "the number of machines": self.nodes,
            "the script": f"{path.name} {script}".strip(),
            "its arguments": " ".join(self.command[1:]),
        }


def deal_devices(job: Job) -> list[str] | None:
    """Return CUDA_VISIBLE_DEVICES for each process; None if it is not to be set."""
    if job.devices is not None or job.processes == 1 or os.environ.get("JAX_PLATFORMS") == "cpu":
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        cards = [p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")]
        gpus = sorted(cards, key=int)
    else:
        gpus = [x for x in visible.split(",") if x]
    if not gpus:
        return None
    if len(gpus) % job.processes:
        raise _wrong(
            f"--processes {job.processes} for {len(gpus)} accelerators",
            "All processes have the same number of accelerators.",
            f"--processes {len(gpus)}, or --devices N for virtual CPU devices",
        )
    count = len(gpus) // job.processes
    return [",".join(gpus[k * count : (k + 1) * count]) for k in range(job.processes)]


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise _wrong(f"--coordinator {text}", "An address is HOST:PORT.", "10.0.0.1:9000")
    return host.strip("[]"), int(port)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _wrong(what: str, rule: str, remedy: str) -> ShardwiseError:
    return ShardwiseError(f"{what}.", where="shardwise launch", rule=rule, remedy=remedy)
