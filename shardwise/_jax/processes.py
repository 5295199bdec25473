"""JAX's coordination service for several processes, and the schedulers it detects."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from jax._src import clusters as _clusters
from jax._src import distributed as _distributed
from jax._src import xla_bridge as _xla_bridge


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The role of this process according to a scheduler, as JAX reads it from the environment."""

    name: str
    coordinator: str
    processes: int
    process: int
    local_devices: list[int] | None


def find_cluster(timeout: int, method: str | None = None) -> Cluster | None:
    """Return the scheduler that JAX detects: Slurm, Open MPI, Kubernetes, Cloud TPU; or None.

    Args:
        timeout: Seconds to wait for the address of the first process.
        method: Use this one only, such as `mpi4py`, which JAX does not try by itself.
    """
    kinds = _clusters.ClusterEnv._cluster_types
    if method is None:
        matching = (k for k in kinds if not k.opt_in_only_method and k.is_env_present())
    else:
        matching = (k for k in kinds if k.name == method and k.is_env_present())
    kind = next(matching, None)
    if kind is None:
        return None
    address = kind.get_coordinator_address(timeout, os.environ.get("JAX_COORDINATOR_PORT"))
    local = kind.get_local_process_id()
    name = kind.name or kind.__name__.removesuffix("Cluster").lower()
    return Cluster(
        name,
        address,
        kind.get_process_count(),
        kind.get_process_id(),
        None if local is None else [local],
    )


def distributed_client() -> Any:
    """Return the client of JAX's coordination service, or None: get, set and barriers by name."""
    return _distributed.global_state.client


def distributed_place() -> tuple[int, int]:
    """Return the number of this process and how many there are, without starting the devices."""
    state = _distributed.global_state
    return (0, 1) if state.client is None else (state.process_id, state.num_processes)


def distributed_parts() -> tuple[bool, bool]:
    """Return which parts of `jax.distributed` are running.

    `jax.distributed.shutdown()` stops the second one first, and waits for all processes before the
    first.
    """
    state = _distributed.global_state
    return state.client is not None, state.preemption_sync_manager is not None


def backends_have_started() -> bool:
    """Return whether JAX has initialized its devices; it can join no others after that."""
    return _xla_bridge.backends_are_initialized()


_left: list[Any] = []


def leave_distributed() -> None:
    """Skip the shutdown of the job, in which JAX waits for all processes.

    A failed process would wait there for others that wait for it. The objects are kept alive, since
    their destructors wait too.
    """
    state = _distributed.global_state
    _left.append((state.preemption_sync_manager, state.client, state.service))
    state.preemption_sync_manager = state.client = state.service = None
