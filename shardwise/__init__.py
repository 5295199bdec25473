"""SPMD programs in JAX that are right on any number of devices.

Names are imported when first used, so that `import shardwise` does not wait for JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import nnx as nnx
    from . import primitives as primitives
    from ._check import Finding as Finding
    from ._check import Fix as Fix
    from ._check import Verdict as Verdict
    from ._check import case as case
    from ._errors import ArgumentError as ArgumentError
    from ._errors import DeadlockError as DeadlockError
    from ._errors import MissingPackageError as MissingPackageError
    from ._errors import PeerError as PeerError
    from ._errors import ShardingError as ShardingError
    from ._errors import ShardwiseError as ShardwiseError
    from ._errors import UnknownNameError as UnknownNameError
    from ._errors import UnsupportedError as UnsupportedError
    from ._evaluate import Evaluation as Evaluation
    from ._evaluate import Max as Max
    from ._evaluate import Mean as Mean
    from ._evaluate import Min as Min
    from ._evaluate import Sum as Sum
    from ._evaluate import evaluate as evaluate
    from ._explain import Hardware as Hardware
    from ._explain import Report as Report
    from ._explain import explain as explain
    from ._fixes import check as check
    from ._hosts import Connection as Connection
    from ._hosts import connect as connect
    from ._inspect import Inspection as Inspection
    from ._inspect import inspect as inspect
    from ._mesh import mesh as mesh
    from ._prove import Proof as Proof
    from ._prove import prove as prove
    from ._simulate import simulate as simulate
    from ._train import TrainState as TrainState
    from ._train import data_parallel as data_parallel
    from ._train import fit as fit

_HOME = {
    "Finding": "_check",
    "Fix": "_check",
    "Verdict": "_check",
    "case": "_check",
    "check": "_fixes",
    "ArgumentError": "_errors",
    "DeadlockError": "_errors",
    "MissingPackageError": "_errors",
    "PeerError": "_errors",
    "ShardingError": "_errors",
    "ShardwiseError": "_errors",
    "UnknownNameError": "_errors",
    "UnsupportedError": "_errors",
    "Evaluation": "_evaluate",
    "Max": "_evaluate",
    "Mean": "_evaluate",
    "Min": "_evaluate",
    "Sum": "_evaluate",
    "evaluate": "_evaluate",
    "Hardware": "_explain",
    "Report": "_explain",
    "explain": "_explain",
    "Connection": "_hosts",
    "connect": "_hosts",
    "Inspection": "_inspect",
    "inspect": "_inspect",
    "mesh": "_mesh",
    "Proof": "_prove",
    "prove": "_prove",
    "simulate": "_simulate",
    "TrainState": "_train",
    "data_parallel": "_train",
    "fit": "_train",
    "nnx": None,
    "primitives": None,
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        # With the name and the module Python itself says what may have been meant.
        module = importlib.import_module(__name__)
        what = f"module 'shardwise' has no attribute {name!r}"
        raise AttributeError(what, name=name, obj=module)
    home = _HOME[name]
    if home is None:
        value = importlib.import_module(f".{name}", __name__)
    else:
        value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
