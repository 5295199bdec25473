"""Give a solution more devices than it asks for, and record what it does.

Most exercises ask for a mesh of one device. Here such a mesh gets the number of devices of the run,
however it was created, and the simulator runs every `shard_map`: a deadlock raises an error
immediately, and the traced program shows which collectives are used.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
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
        self.maps: list[dict[str, Any]] = []
        self.inits: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.optimizers: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []
        self.vmaps = 0
        self.programs: list[tuple[Any, list[Any]]] = []
        """Traced programs with their arguments, where these are known."""

    def facts(self) -> dict[str, Any]:
        """Return the records as plain data."""
        return {
            "shard_maps": self.maps[:MOST],
            "inits": self.inits[:MOST],
            "calls": self.calls[:MOST],
            "optimizers": self.optimizers[:MOST],
            "updates": self.updates[:MOST],
            "vmaps": self.vmaps,
        }


class Watching:
    """The hooks of one process, which record into the observations of the current run."""

    def __init__(self, job: Mapping[str, Any]):
        self.observations = Observations()
        self.wide = Widening(job.get("replace"))

    def begin(self) -> Observations:
        """Start a new run with empty observations, and return these."""
        self.observations = Observations()
        return self.observations


def install(job: Mapping[str, Any]) -> Watching:
    """Install the hooks."""
    watching = Watching(job)
    watching.wide.install()
    if job.get("unchecked"):
        _switch_check_off()
    if job["kind"] == "run":
        watch_shard_map(watching)
    _watch_linen(watching)
    _watch_nnx(watching)
    _watch_vmap(watching)
    return watching


def call(function: Callable[..., Any], job: Mapping[str, Any]) -> Any:
    """Call a solution with the arguments of its exercise."""
    args = [given(arg) for arg in job["args"]]
    if job.get("mesh") and job.get("pass_mesh"):
        return function(*args, mesh=real_mesh(job["mesh"]))
    return function(*args)


def given(arg: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, arg)


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
    original = jax.shard_map
    old_module = sys.modules["jax.experimental.shard_map"]
    old = old_module.shard_map

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

    jax.shard_map = hooked(original)  # type: ignore[assignment]
    old_module.shard_map = hooked(old)  # type: ignore[attr-defined]


def _switch_check_off() -> None:
    """Run every `shard_map` with `check_vma=False`."""
    old_module = sys.modules["jax.experimental.shard_map"]
    original, old = jax.shard_map, old_module.shard_map

    def new(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "check_vma": False})

    def older(*args: Any, **kwargs: Any) -> Any:
        return old(*args, **{**kwargs, "check_rep": False})

    jax.shard_map = new  # type: ignore[assignment]
    old_module.shard_map = older  # type: ignore[attr-defined]


def _simulated(sharded: Callable[..., Any], body: Any, on: Watching) -> Callable[..., Any]:
    tracing = Tracing(sharded, None)

    @functools.wraps(body)
    def call_simulated(*args: Any, **kwargs: Any) -> Any:
        traced = tracing(args, kwargs)
        on.observations.maps.append(_map_facts(traced.program))
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


def _watch_vmap(on: Watching) -> None:
    original = jax.vmap

    @functools.wraps(original)
    def vmap(*args: Any, **kwargs: Any) -> Any:
        on.observations.vmaps += 1
        return original(*args, **kwargs)

    jax.vmap = vmap  # type: ignore[assignment]


def _shape(args: tuple[Any, ...]) -> list[int]:
    return next((list(a.shape) for a in args if hasattr(a, "shape")), [])


def _watch_linen(on: Watching) -> None:
    import flax.linen as nn

    init, apply = nn.Module.init, nn.Module.apply

    @functools.wraps(init)
    def noted_init(self: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        on.observations.inits.append(
            {"module": type(self).__name__, "shape": _shape(args), "line": _line()}
        )
        return init(self, rngs, *args, **kwargs)

    @functools.wraps(apply)
    def noted_apply(self: Any, variables: Any, *args: Any, **kwargs: Any) -> Any:
        on.observations.calls.append(
            {"module": type(self).__name__, "shape": _shape(args), "line": _line()}
        )
        return apply(self, variables, *args, **kwargs)

    nn.Module.init = noted_init
    nn.Module.apply = noted_apply


def _watch_nnx(on: Watching) -> None:
    from flax import nnx

    called, init, update = nnx.Linear.__call__, nnx.Optimizer.__init__, nnx.Optimizer.update

    @functools.wraps(called)
    def noted_call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        note = {"module": "Linear", "shape": list(inputs.shape), "line": _line()}
        on.observations.calls.append(note)
        return called(self, inputs, *args, **kwargs)

    @functools.wraps(init)
    def noted_init(self: Any, *args: Any, **kwargs: Any) -> None:
        on.observations.optimizers.append({"line": _line()})
        init(self, *args, **kwargs)

    @functools.wraps(update)
    def noted_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        grads = kwargs.get("grads", args[1] if len(args) > 1 else None)
        on.observations.updates.append({"line": _line(), "grads": _numbers(grads)})
        return update(self, *args, **kwargs)

    nnx.Linear.__call__ = noted_call
    nnx.Optimizer.__init__ = noted_init  # type: ignore[method-assign]
    nnx.Optimizer.update = noted_update  # type: ignore[method-assign]


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
    import os

    here = os.path.join(os.getcwd(), "")
    while frame is not None:
        if frame.f_code.co_filename.startswith(here):
            return frame.f_lineno
        frame = frame.f_back
    return 0
