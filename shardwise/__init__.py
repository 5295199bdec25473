"""SPMD programs in JAX that are right on any number of devices.

Names are imported when first used, so that `import shardwise` does not wait for JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._base.version import __version__ as __version__

if TYPE_CHECKING:
    from . import nnx as nnx
    from . import primitives as primitives
    from ._analysis.check import Finding as Finding
    from ._analysis.check import Fix as Fix
    from ._analysis.check import Verdict as Verdict
    from ._analysis.check import case as case
    from ._analysis.explain import Hardware as Hardware
    from ._analysis.explain import Report as Report
    from ._analysis.explain import explain as explain
    from ._analysis.fixes import check as check
    from ._analysis.inspect import Inspection as Inspection
    from ._analysis.inspect import inspect as inspect
    from ._analysis.prove import Proof as Proof
    from ._analysis.prove import prove as prove
    from ._base.errors import ArgumentError as ArgumentError
    from ._base.errors import DeadlockError as DeadlockError
    from ._base.errors import MissingPackageError as MissingPackageError
    from ._base.errors import PeerError as PeerError
    from ._base.errors import ShardingError as ShardingError
    from ._base.errors import ShardwiseError as ShardwiseError
    from ._base.errors import UnknownNameError as UnknownNameError
    from ._base.errors import UnsupportedError as UnsupportedError
    from ._engine.simulate import simulate as simulate
    from ._mesh import mesh as mesh
    from ._runtime.evaluate import Evaluation as Evaluation
    from ._runtime.evaluate import Max as Max
    from ._runtime.evaluate import Mean as Mean
    from ._runtime.evaluate import Min as Min
    from ._runtime.evaluate import Sum as Sum
    from ._runtime.evaluate import evaluate as evaluate
    from ._runtime.hosts import Connection as Connection
    from ._runtime.hosts import connect as connect
    from ._runtime.train import TrainState as TrainState
    from ._runtime.train import data_parallel as data_parallel
    from ._runtime.train import fit as fit

_HOME = {
    "Finding": "_analysis.check",
    "Fix": "_analysis.check",
    "Verdict": "_analysis.check",
    "case": "_analysis.check",
    "check": "_analysis.fixes",
    "ArgumentError": "_base.errors",
    "DeadlockError": "_base.errors",
    "MissingPackageError": "_base.errors",
    "PeerError": "_base.errors",
    "ShardingError": "_base.errors",
    "ShardwiseError": "_base.errors",
    "UnknownNameError": "_base.errors",
    "UnsupportedError": "_base.errors",
    "Evaluation": "_runtime.evaluate",
    "Max": "_runtime.evaluate",
    "Mean": "_runtime.evaluate",
    "Min": "_runtime.evaluate",
    "Sum": "_runtime.evaluate",
    "evaluate": "_runtime.evaluate",
    "Hardware": "_analysis.explain",
    "Report": "_analysis.explain",
    "explain": "_analysis.explain",
    "Connection": "_runtime.hosts",
    "connect": "_runtime.hosts",
    "Inspection": "_analysis.inspect",
    "inspect": "_analysis.inspect",
    "mesh": "_mesh",
    "Proof": "_analysis.prove",
    "prove": "_analysis.prove",
    "simulate": "_engine.simulate",
    "TrainState": "_runtime.train",
    "data_parallel": "_runtime.train",
    "fit": "_runtime.train",
    "nnx": None,
    "primitives": None,
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        # With `name` and `obj`, Python appends "Did you mean ...?".
        module = importlib.import_module(__name__)
        message = f"module 'shardwise' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=module)
    home = _HOME[name]
    if home is None:
        value = importlib.import_module(f".{name}", __name__)
    else:
        value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
