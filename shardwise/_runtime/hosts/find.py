"""Read the number of this process, and of all processes, from the environment."""

from __future__ import annotations

import importlib.util
import os
import warnings
from dataclasses import dataclass, replace

import jax

from ... import _jax
from ..._base.errors import ShardwiseError, warn

LAUNCH = ("SHARDWISE_COORDINATOR", "SHARDWISE_PROCESSES", "SHARDWISE_PROCESS")

# The variables with the number of processes, of launchers that JAX may not recognise.
_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI",
    "PMI_SIZE": "an MPI with PMI (MPICH, Intel MPI)",
    "MV2_COMM_WORLD_SIZE": "MVAPICH",
}


@dataclass(frozen=True)
class Seat:
    """A place in a job: the address of process 0, the number of processes, and of this one."""

    how: str
    coordinator: str
    processes: int
    process: int
    local_devices: list[int] | None = None


def find_seat(
    coordinator: str | None, processes: int | None, process: int | None, timeout: int
) -> Seat | None:
    """Return the place of this process, or None if it is alone.

    Arguments take precedence over `shardwise launch`, and that over a scheduler.
    """
    arguments = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [name for name, value in arguments.items() if value is None]
    if not missing:
        numbers = (_integer("processes", processes), _integer("process", process))
        return _checked(Seat("arguments", str(coordinator), *numbers))
    if len(missing) < 3:
        raise ShardwiseError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.",
            where="sw.connect",
            rule="Either all of coordinator, processes and process are passed, or none.",
            remedy="sw.connect('10.0.0.1:9000', processes=4, process=0)",
        )
    seat = _launched() or _scheduled(timeout)
    if seat is None:
        _refuse_unrecognised()
        return None
    return None if seat.processes == 1 else _checked(seat)


def require_joined(where: str) -> None:
    """Raise if a launcher started several processes and this one has not joined the others.

    A script that never joins the others would silently do the whole work in every process.
    """
    count = _number(os.environ.get(LAUNCH[1]))
    if count < 2 or jax.distributed.is_initialized():
        return
    raise ShardwiseError(
        f"shardwise launch started {count} processes, and this one has not joined the others.",
        where=where,
        rule="Without a mesh, the devices of all processes are used; otherwise each process would "
        "do the whole work.",
        remedy="call sw.connect() at the top of the script, before JAX is used; or pass a mesh of "
        "this process's devices: mesh=jax.make_mesh((n,), ('data',)).",
    )


def _launched() -> Seat | None:
    variables = {name: os.environ.get(name) for name in LAUNCH}
    missing = [name for name, value in variables.items() if not value]
    if len(missing) == len(LAUNCH):
        return None
    if missing:
        raise ShardwiseError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
            where="the environment",
            rule=f"shardwise launch sets {', '.join(LAUNCH)} together.",
            remedy="start the script with shardwise launch, or unset the others.",
        )
    return Seat(
        "shardwise launch",
        str(variables[LAUNCH[0]]),
        _integer(LAUNCH[1], variables[LAUNCH[1]]),
        _integer(LAUNCH[2], variables[LAUNCH[2]]),
    )


def _scheduled(timeout: int) -> Seat | None:
    method = None
    if _world() and "OMPI_MCA_orte_hnp_uri" not in os.environ and _has_mpi4py():
        method = "mpi4py"  # Open MPI 5 and other MPIs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Kubernetes without its package: see below
            cluster = _jax.find_cluster(timeout, method)
    except (KeyError, ValueError, RuntimeError, OSError) as error:
        raise ShardwiseError(
            f"it cannot be read: {type(error).__name__}: {error}",
            where="the scheduler's environment",
            rule="Slurm, Open MPI and Kubernetes set the number of each process there.",
            remedy="start the script with srun, mpirun or as an Indexed Job; or call "
            "sw.connect(coordinator, processes=..., process=...).",
        ) from error
    if cluster is None:
        return None
    seat = Seat(
        cluster.name, cluster.coordinator, cluster.processes, cluster.process, cluster.local_devices
    )
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    return replace(seat, coordinator=address) if address else seat


def _world() -> str | None:
    """Return the variable in which an MPI sets the number of several processes."""
    return next((name for name in _SIZES if _number(os.environ.get(name)) > 1), None)


def _has_mpi4py() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def _refuse_unrecognised() -> None:
    """Raise if a launcher that JAX does not recognise started several processes."""
    name = _world()
    if name is not None:
        raise ShardwiseError(
            f"{name} is {os.environ[name]}, but JAX does not recognise the job.",
            where="the environment",
            rule=f"Started by {_SIZES[name]}, processes find each other with mpi4py.",
            remedy="pip install mpi4py; or call sw.connect(coordinator, processes=..., "
            "process=...).",
        )
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        raise ShardwiseError(
            "JAX_COORDINATOR_ADDRESS is set, but not how many processes there are.",
            where="the environment",
            rule="An address alone does not say which process this is.",
            remedy="sw.connect(address, processes=..., process=...), or unset it.",
        )
    if "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ:
        raise ShardwiseError(
            "this is a pod of an Indexed Job, and the package kubernetes is not installed.",
            where="the environment",
            rule="JAX needs it to find the other pods.",
            remedy="pip install 'jax[k8s]'; or call sw.connect(coordinator, processes=..., "
            "process=int(os.environ['JOB_COMPLETION_INDEX'])).",
        )
    if _number(os.environ.get("SLURM_NTASKS")) > 1 and "SLURM_STEP_NODELIST" not in os.environ:
        warn(
            f"this Slurm job has {os.environ['SLURM_NTASKS']} tasks, but the script was not "
            "started by srun: it runs alone. Remedy: srun python script.py",
        )


def _checked(seat: Seat) -> Seat:
    if not 0 <= seat.process < seat.processes:
        raise ShardwiseError(
            f"process {seat.process} of {seat.processes}.",
            where=f"sw.connect ({seat.how})",
            rule="Processes are numbered from 0, and there is at least one.",
            remedy="process=0 is the first, process=processes - 1 the last.",
        )
    host, _, port = seat.coordinator.rpartition(":")
    if not host or not 0 < _number(port) < 65536:
        raise ShardwiseError(
            f"its address is {seat.coordinator!r}.",
            where=f"the first process ({seat.how})",
            rule="An address is HOST:PORT.",
            remedy="10.0.0.1:9000",
        )
    return seat


def _integer(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ShardwiseError(
            f"it is {value!r}.", where=name, rule="It is an integer.", remedy="1"
        ) from None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
