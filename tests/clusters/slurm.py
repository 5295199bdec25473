"""A real Slurm on this machine: munged, slurmctld and slurmd in a temporary folder, then `srun`."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from .jobs import check, run

CONFIG = """
ClusterName=shardwise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:8
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        os.chmod(folder, 0o755)
        for part in ("state", "spool"):
            (folder / part).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        config = folder / "slurm.conf"
        config.write_text(
            CONFIG.format(host=socket.gethostname(), folder=folder, cpus=os.cpu_count(),
                          controller=_port(), daemon=_port())
        )  # fmt: skip
        env = {"SLURM_CONF": str(config)}
        at = {f"--{what}-file": folder / f"munge.{what}" for what in ("key", "pid", "log", "seed")}
        munge = [f"{option}={path}" for option, path in at.items()]
        start = _Daemons(stack, env, folder)
        start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge)
        _until(lambda: (folder / "munge.socket").exists())
        start("slurmctld", "-D", "-f", str(config))
        start("slurmd", "-D", "-f", str(config), "-N", socket.gethostname())
        _until(lambda: "idle" in _state(env))
        print(run(["srun", "--version"], **env).strip(), "-", _state(env).strip())
        check("slurm", ["srun", "-n", 2, "--overcommit"], 2, **env)


class _Daemons:
    """Starts what runs until the end, and ends it."""

    def __init__(self, stack: ExitStack, env: dict[str, str], folder: Path) -> None:
        self._stack, self._env, self._folder = stack, env, folder

    def __call__(self, *command: str) -> None:
        log = self._stack.enter_context((self._folder / f"{command[0]}.out").open("w"))
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self._env})
        self._stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _state(env: dict[str, str]) -> str:
    done = subprocess.run(["sinfo", "-h", "-o", "%N %T"], env={**os.environ, **env}, text=True,
                          capture_output=True, timeout=30, check=False)  # fmt: skip
    return done.stdout


def _until(true: object, limit: float = 60.0) -> None:
    until = time.monotonic() + limit
    while not true():  # pyright: ignore
        assert time.monotonic() < until, "a daemon did not come up"
        time.sleep(0.5)


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
