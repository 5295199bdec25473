"""Give a solution more devices than it asks for, and record what it does.

Most exercises ask for a mesh of one device. Here such a mesh gets the number of devices of the run,
however it was created, and the simulator runs every `shard_map`: a deadlock raises an error
immediately, and the traced program shows which collectives are used.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from ... import _jax
from ..._engine.call import call as run_program
from ..._engine.lower import Pace
from ..._engine.tracing import Tracing
from ..._mesh import mesh as virtual_mesh
from ..._program import Collective, Join, Split, walk

ALL = Pace(1 << 30)
MOST = 200
"""The maximum number of records of one kind."""


class Observations:
    """What a solution did during a run."""

    def __init__(self) -> None:
        self.records: dict[str, list[Any]] = {
            name: [] for name in ("shard_maps", "inits", "calls", "optimizers", "updates")
        }
        self.vmaps = 0
        self.programs: list[tuple[Any, list[Any]]] = []
        """Traced programs with their arguments, where these are known."""

    def facts(self) -> dict[str, Any]:
        """Return the records as plain data."""
        return {**{name: rows[:MOST] for name, rows in self.records.items()}, "vmaps": self.vmaps}


class Watching:
    """The hooks of one process, which record into the observations of the current run."""

    def __init__(self, job: Mapping[str, Any]):
        self.observations = Observations()
        self.wide = Widening(job.get("replace"))

    def begin(self) -> Observations:
        """Start a new run with empty observations, and return these."""
        self.observations = Observations()
        return self.observations

    def record(self, kind: str, **facts: Any) -> None:
        """Record a call, with the current line of the learner's file."""
        self.observations.records[kind].append({**facts, "line": _line()})


def install(job: Mapping[str, Any]) -> Watching:
    """Install the hooks."""
    watching = Watching(job)
    watching.wide.install()
    if job.get("unchecked"):
        _switch_check_off()
    if job["kind"] == "run":
        watch_shard_map(watching)
    _watch_calls(watching)
    return watching


def call(function: Callable[..., Any], job: Mapping[str, Any]) -> Any:
    """Call a solution with the arguments of its exercise."""
    args = [given(arg) for arg in job["args"]]
    if job.get("mesh") and job.get("pass_mesh"):
        return function(*args, mesh=real_mesh(job["mesh"]))
    return function(*args)


def given(arg: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, arg)


def divided(args: Sequence[Any]) -> tuple[list[Any], Callable[[Iterable[Any]], list[Any]]]:
    """Return the arguments that JAX traces, and a function that puts such among the others.

    Seeds and counts stay Python numbers.
    """
    fixed = {i: arg for i, arg in enumerate(args) if isinstance(arg, int | float | str)}

    def joined(traced: Iterable[Any]) -> list[Any]:
        rest = iter(traced)
        return [fixed[i] if i in fixed else next(rest) for i in range(len(args))]

    return [given(arg) for i, arg in enumerate(args) if i not in fixed], joined


def real_mesh(sizes: Mapping[str, int]) -> Mesh:
    """Return a mesh of the devices of this process."""
    count = math.prod(sizes.values())
    devices = np.array(jax.devices()[:count]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


class Widening:
    """Replacements for meshes of one device: the same axes with more devices."""

    def __init__(self, count: int | None):
        self.count = count

    def install(self) -> None:
        original = Mesh.__new__

        def wider(cls: Any, devices: Any, axis_names: Any, *args: Any, **kwargs: Any) -> Any:
            array = devices if isinstance(devices, np.ndarray) else np.array(devices)
            if self.count and array.size == 1 and array.ndim:
                shape = (self.count, *(1,) * (array.ndim - 1))
                devices = np.array(jax.devices()[: self.count]).reshape(shape)
            return original(cls, devices, axis_names, *args, **kwargs)

        Mesh.__new__ = wider  # type: ignore[method-assign]

    def virtual(self, mesh: Any) -> Any:
        """Return a virtual mesh of one device with more devices."""
        if not self.count or not isinstance(mesh, AbstractMesh) or mesh.size != 1:
            return mesh
        first, *others = mesh.axis_names
        return virtual_mesh({str(first): self.count, **dict.fromkeys(map(str, others), 1)})


def watch_shard_map(on: Watching) -> None:
    """Run every `shard_map` with the simulator, and record what it does."""

    def hooked(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def shard_map(*args: Any, **kwargs: Any) -> Any:
            if not args and "f" not in kwargs:
                return lambda f: shard_map(f, **kwargs)
            if "mesh" in kwargs:
                kwargs["mesh"] = on.wide.virtual(kwargs["mesh"])
            elif len(args) > 1:
                args = (args[0], on.wide.virtual(args[1]), *args[2:])
            return _simulated(make(*args, **kwargs), args[0] if args else kwargs["f"], on)

        return shard_map

    for module in (jax, sys.modules["jax.experimental.shard_map"]):
        module.shard_map = hooked(module.shard_map)  # type: ignore[attr-defined]


def _switch_check_off() -> None:
    """Run every `shard_map` with `check_vma=False`."""
    old_module = sys.modules["jax.experimental.shard_map"]
    modules: list[tuple[Any, str]] = [(jax, "check_vma"), (old_module, "check_rep")]
    for module, option in modules:
        module.shard_map = functools.partial(_replacing, module.shard_map, {option: False})


def _replacing(f: Callable[..., Any], options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return f(*args, **{**kwargs, **options})


def _simulated(sharded: Callable[..., Any], body: Any, on: Watching) -> Callable[..., Any]:
    tracing = Tracing(sharded, None)

    @functools.wraps(body)
    def call_simulated(*args: Any, **kwargs: Any) -> Any:
        traced = tracing(args, kwargs)
        on.observations.records["shard_maps"].append(_map_facts(traced.program))
        on.observations.programs.append((traced.program, traced.values))
        return traced.finish(run_program(traced.program, ALL, traced.values))

    return call_simulated


def _map_facts(program: Any) -> dict[str, Any]:
    ops = list(walk(program.body.ops))
    axes = {axis.name: axis.size for op in ops for axis in op.scope}
    split = [axis.name for op in ops if isinstance(op, Split) for axis in op.axes]
    return {
        "mesh": axes,
        "split": sorted(set(split)),
        "checked": all(op.checked for op in ops if isinstance(op, Join)),
        "rows": [
            {"shape": list(op.outs[0].shape), "axes": [axis.name for axis in op.axes]}
            for op in ops
            if isinstance(op, Split)
        ][:20],
        "collectives": [
            {
                "name": op.name,
                "axes": [axis.name for axis in op.axes],
                "line": op.where.line,
                "backward": op.backward,
                "differs": sorted(axis.name for axis in op.ins[0].axes),
                "shape": list(getattr(op.ins[0], "shape", ())),
            }
            for op in ops
            if isinstance(op, Collective)
        ][:MOST],
    }


def _before(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Call `note` with the arguments of each call of a function or method, before it runs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, noted)


def _watch_calls(on: Watching) -> None:
    import flax.linen as nn
    from flax import nnx

    def count_vmap(*_: Any, **__: Any) -> None:
        on.observations.vmaps += 1

    def linen(kind: str) -> Callable[..., None]:
        def note(self: Any, _: Any = None, *args: Any, **__: Any) -> None:
            shape = next((list(a.shape) for a in args if hasattr(a, "shape")), [])
            on.record(kind, module=type(self).__name__, shape=shape)

        return note

    def note_linear(_: Any, inputs: Any, *args: Any, **__: Any) -> None:
        on.record("calls", module="Linear", shape=list(inputs.shape))

    def note_update(_: Any, *args: Any, **kwargs: Any) -> None:
        grads = kwargs.get("grads", args[1] if len(args) > 1 else None)
        on.record("updates", grads=_numbers(grads))

    _before(jax, "vmap", count_vmap)
    _before(nn.Module, "init", linen("inits"))
    _before(nn.Module, "apply", linen("calls"))
    _before(nnx.Linear, "__call__", note_linear)
    _before(nnx.Optimizer, "__init__", lambda *_, **__: on.record("optimizers"))
    _before(nnx.Optimizer, "update", note_update)


def _numbers(tree: Any) -> list[Any]:
    """Return the leaves of a tree of gradients as flat lists, if they are known and small."""
    lists = []
    for leaf in jax.tree.leaves(tree):
        if _jax.is_traced(leaf) or np.size(leaf) > 4096:
            return []
        lists.append(np.asarray(leaf, np.float64).reshape(-1).tolist())
    return lists


def _line() -> int:
    """Return the current line of the learner's file: the innermost frame in its folder."""
    frame: Any = sys._getframe(2)
    here = os.path.join(os.getcwd(), "")
    while frame is not None:
        if frame.f_code.co_filename.startswith(here):
            return frame.f_lineno
        frame = frame.f_back
    return 0
