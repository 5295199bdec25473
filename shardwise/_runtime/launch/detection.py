"""`jax.distributed.initialize()` without arguments, under the launcher.

JAX asks its list of cluster environments who this process is. When the script imports JAX, one more
is put at the head of that list, which reads what the launcher has set. JAX itself is not imported
here: scripts may set variables first that JAX reads when it is imported.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

_MODULE = "jax._src.clusters"


def install() -> None:
    """Wait for JAX to be imported."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds one module as the others would, and does something once it is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _then(loader.exec_module, _add)
        return spec


def _then(load: Callable[[Any], None], act: Callable[[Any], None]) -> Callable[[Any], None]:
    def both(module: Any) -> None:
        load(module)
        act(module)

    return both


def _add(clusters: Any) -> None:
    class Launched(clusters.ClusterEnv):
        """A process of `shardwise launch`."""

        name = "shardwise"

        @classmethod
        def is_env_present(cls) -> bool:
            return "SHARDWISE_COORDINATOR" in os.environ

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return os.environ["SHARDWISE_COORDINATOR"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["SHARDWISE_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["SHARDWISE_PROCESS"])

    kinds = clusters.ClusterEnv._cluster_types
    kinds.insert(0, kinds.pop(kinds.index(Launched)))  # before a scheduler around the launcher
