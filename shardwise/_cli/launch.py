"""`shardwise launch`: run a script as several processes, on one machine or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def launch(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [ARGS]...", help="The script and its arguments; with -m, a module."
        ),
    ],
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", "-n", help="Processes on this machine.")
    ] = 1,
    devices: Annotated[
        int | None,
        typer.Option(
            help="Virtual CPU devices for each process. Without it, the processes share out the "
            "accelerators of this machine, or have one CPU device each."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(help="How many machines; launch runs on each.")] = 1,
    node: Annotated[int, typer.Option(help="Which machine this is, from 0.")] = 0,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where the launchers meet: an address of machine 0."
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the job secret, the same on all machines, by which the launchers "
            "recognise each other. Without it, the variable SHARDWISE_SECRET."
        ),
    ] = None,
    restarts: Annotated[
        int, typer.Option(help="How often to start all processes again after a failure.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for other machines and for processes to join.")
    ] = 300.0,
    grace: Annotated[
        float, typer.Option(help="Seconds that processes get to save after a signal.")
    ] = 60.0,
    log_dir: Annotated[
        Path | None,
        typer.Option(help="Write the output of each process to a file here instead of showing it."),
    ] = None,
) -> None:
    """Run a script as several processes that find each other, and start it again when one fails.

    Every process calls sw.connect(), or jax.distributed.initialize(), without arguments. The exit
    code is that of the process that failed first.
    """
    from .._runtime.launch.handshake import read_secret
    from .._runtime.launch.job import Job, parse_address
    from .._runtime.launch.run import run

    address = ("127.0.0.1", 0) if coordinator is None else parse_address(coordinator)
    job = Job(
        command=tuple(command),
        module=module,
        processes=processes,
        devices=devices,
        nodes=nodes,
        node=node,
        coordinator=address,
        restarts=restarts,
        timeout=timeout,
        grace=grace,
        log_dir=log_dir,
        secret=read_secret(secret_file) if nodes > 1 else b"",
    )
    raise typer.Exit(run(job))
