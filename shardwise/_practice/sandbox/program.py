"""A solution as data: its StableHLO program, run in a process that never runs its Python.

`export` traces the whole function to StableHLO in the solution's own process. Another process runs
that program (`replay`) on new arguments, and reads from it which collectives its result depends on.
Neither can be forged: a program that computes the right numbers with the right collectives is a
solution.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ... import _jax
from . import hooks, wire

COLLECTIVES = {
    "stablehlo.all_reduce": "psum",
    "stablehlo.all_gather": "all_gather",
    "stablehlo.reduce_scatter": "psum_scatter",
    "stablehlo.collective_permute": "ppermute",
    "stablehlo.all_to_all": "all_to_all",
}
"""The names in `jax.lax` of the compiler's collectives."""

NATIVE = re.compile(r"Sharding|SPMD\w+ToS\w+|xla\.sdy\.\w+|mhlo\.\w+|lapack_\w+|ApproxTopK|TopK")
"""The native functions that a program may call. Others, such as callbacks into Python, take
addresses from the program, and would let it take over the process that replays it."""


def export(function: Callable[..., Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program of a function, with the form of its result."""
    arrays, joined = hooks.divided(job["args"])
    form: list[Any] = []

    def flat(*traced: Any) -> tuple[Any, ...]:
        result = hooks.call(function, {**job, "args": joined(traced)})
        leaves: list[Any] = []

        def note(value: Any) -> dict[str, int]:
            leaves.append(jnp.asarray(value))
            return {"leaf": len(leaves) - 1}

        form.append(wire.pack(result, note))
        return tuple(leaves)

    exported = jax.export.export(jax.jit(flat, keep_unused=True))(*arrays)
    return {
        "module": base64.b64encode(exported.mlir_module_serialized).decode("ascii"),
        "form": form[-1],
        "outs": [
            {"shape": list(aval.shape), "dtype": str(aval.dtype)} for aval in exported.out_avals
        ],
    }


def _filled(form: Any, leaves: Sequence[Any]) -> Any:
    if "dict" in form:
        return {"dict": {key: _filled(item, leaves) for key, item in form["dict"].items()}}
    if "list" in form:
        return {"list": [_filled(item, leaves) for item in form["list"]]}
    return wire.pack(leaves[form["leaf"]]) if "leaf" in form else {"none": True}


def replay(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program on the arguments of a job; return its result, and what the devices do."""
    program = job["program"]
    arrays, _ = hooks.divided(job["args"])
    placed = NamedSharding(hooks.real_mesh(job["mesh"]), PartitionSpec())
    outs = [jax.ShapeDtypeStruct(out["shape"], out["dtype"]) for out in program["outs"]]

    def same_form(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(out.shape, out.dtype) for out in outs)

    # A program with the same arguments and results, whose module is replaced by the given one.
    resharded = jax.jit(same_form, keep_unused=True, in_shardings=placed, out_shardings=placed)
    template = jax.export.export(resharded)(*arrays)
    module = base64.b64decode(program["module"])
    exported = dataclasses.replace(template, mlir_module_serialized=module)
    program_facts = facts(exported.mlir_module())
    results = jax.jit(exported.call)(*jax.device_put(arrays, placed))
    leaves = [np.asarray(leaf) for leaf in results]
    return {"value": _filled(program["form"], leaves), "facts": program_facts}


def facts(text: str) -> dict[str, Any]:
    """Return the collectives and meshes of a program, as the requirements of exercises use them.

    Raises:
        ValueError: It calls native code that no solution needs.
    """
    summary = _jax.summarize(text)
    unknown = sorted(name for name in summary.custom_calls if not NATIVE.fullmatch(name))
    if unknown:
        raise ValueError(f"it calls native code: {', '.join(unknown)}")
    used = [
        _collective(jax_name)
        for name, jax_name in COLLECTIVES.items()
        if name in summary.operations
    ]
    maps = [
        {
            "mesh": entry.axes,
            "split": sorted(entry.split),
            "checked": True,
            "rows": [],
            "collectives": used,
        }
        for entry in summary.shard_maps
    ]
    return {**hooks.Observations().facts(), "shard_maps": maps}


def _collective(name: str) -> dict[str, Any]:
    return {"name": name, "axes": [], "line": 0, "backward": False, "differs": [], "shape": []}
