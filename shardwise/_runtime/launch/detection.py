"""Support `jax.distributed.initialize()` without arguments, under the launcher.

JAX queries a list of cluster environments for the number of this process. When the script imports
JAX, an environment that reads the launcher's variables is inserted at the head of that list. JAX
itself is not imported here: scripts may first set variables that JAX reads when it is imported.
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
    """Add the launcher's environment as soon as the script imports JAX."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """A finder that calls `_add` after one module is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _then_add(loader.exec_module)
        return spec


def _then_add(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def load_and_add(module: Any) -> None:
        load(module)
        _add(module)

    return load_and_add


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
