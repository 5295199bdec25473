"""What each primitive of JAX is to the simulator: inlined, dropped, a collective, or refused."""

from __future__ import annotations

import dataclasses

INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "linear_call": "callee",
    "custom_vmap_call": "call",
    "xla_metadata_call": "jaxpr",
    "composite": "jaxpr",
    "custom_partitioning": "call",
}
"""Calls, and the parameter that holds what is called. Derivatives were taken before we came."""

DROPPED = {
    "pvary",
    "pcast",
    "reduced_vary_cast",
    "reduced_vary_cast_p",
    "preduced",
    "vary_unreduced_cast",
    "vary_unreduced_cast_p",
    "stop_gradient",
}
"""Equations that change what JAX knows of a value, not the value."""

RELAID = {"sharding_constraint", "mesh_cast", "reshard", "device_put", "copy"}
"""Equations that change where a value is. The value stays, unless a sum is owed before or after."""

PLACED = ("sharding", "out_sharding", "dst_sharding")
"""Parameters that only say where a result lives."""


@dataclasses.dataclass(frozen=True)
class Form:
    """How a primitive of JAX reads in the table of collectives: our parameter, its parameter."""

    name: str
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    together: bool = False
    """Whether its operands make one result; else each of them has its own."""


_GATHER = Form("all_gather", {"dimension": "all_gather_dimension", "tiled": "tiled"})
_SCATTER = Form("psum_scatter", {"dimension": "scatter_dimension", "tiled": "tiled"})

COLLECTIVES = {
    "psum": Form("psum"),
    "psum_invariant": Form("psum"),
    "unreduced_psum": Form("psum"),
    "pmax": Form("pmax"),
    "pmin": Form("pmin"),
    "all_gather": _GATHER,
    "all_gather_invariant": _GATHER,
    "all_gather_reduced": _GATHER,
    "reduce_scatter": _SCATTER,
    "unreduced_reduce_scatter": _SCATTER,
    "all_to_all": Form("all_to_all", {"split": "split_axis", "concat": "concat_axis"}),
    "ppermute": Form("ppermute", {"perm": "perm"}),
    "pbroadcast": Form("pbroadcast", {"source": "source"}),
    "ragged_all_to_all": Form("ragged_all_to_all", together=True),
}

REDUCTIONS = ("psum", "pmax", "pmin")
"""Those that may be taken over one axis after the other."""

REFUSED = {"psend", "precv", "pbroadcast_dynamic", "pgather"}
"""Primitives that exchange something and have no rule."""

AXIS_PARAMS = ("axis_name", "axis_names", "axes", "axis")
"""Parameters under which primitives of JAX name mesh axes."""

REMOTE = {"dma_start", "semaphore_signal", "semaphore_wait", "get_barrier_semaphore"}
"""What a Pallas kernel uses to talk to other devices."""
