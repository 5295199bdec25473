"""The internals of JAX that shardwise uses, and whether the installed JAX has them.

Private names of JAX change without notice. Each one that this package uses is listed here, with its
use. The list is compared with the installed JAX once, before the rest of this package is imported:
an incompatible JAX raises one error that lists all differences instead of an AttributeError during
a trace. `make probe JAX=0.13.0` tries another version; `docs/supported.md` lists those that were
tried. `tests/test_probe.py` compares the list with the code.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

WORKS = ("0.10.2", "0.12.0.1")
"""The oldest and the newest version of JAX that were tried."""

NEEDED: dict[str, dict[str, str]] = {
    "jax._src.api": {
        "pspec_to_sharding": "= name val",
    },
    "jax._src.api_util": {
        "debug_info": "4",
    },
    "jax._src.clusters": {
        "ClusterEnv": "",
    },
    "jax._src.config": {
        "_check_vma": "",
        "hlo_source_file_canonicalization_regex": "",
        "trace_context": "0",
        "traceback_filtering": "1",
        "traceback_in_locations_limit": "1",
        "use_shardy_partitioner": "",
    },
    "jax._src.core": {
        "DebugInfo": "4",
        "EvalTrace": "",
        "Primitive": "",
        "ShapeDtypeStruct": "",
        "Var": "1",
        "check_eval_args": "1",
        "closed_call_p": "",
        "current_jaxpr_eqn_context": "0",
        "eval_context": "",
        "eval_jaxpr": "2",
        "internal_mutable_array_effect": "",
        "modify_spec_for_auto_manual": "2",
        "no_axis_name": "",
        "no_effects": "",
        "set_current_trace": "1",
        "trace_ctx": "",
        "typeof": "1",
    },
    "jax._src.custom_derivatives": {
        "custom_jvp_call_p": "",
        "custom_vjp_call_p": "",
    },
    "jax._src.distributed": {
        "global_state": "",
    },
    "jax._src.effects": {
        "Effect": "",
        "control_flow_allowed_effects": "",
        "custom_derivatives_allowed_effects": "",
        "lowerable_effects": "",
        "remat_allowed_effects": "",
    },
    "jax._src.interpreters.ad": {
        "backward_pass": "5",
    },
    "jax._src.interpreters.batching": {
        "BatchTracer": "",
        "fancy_primitive_batchers": "",
    },
    "jax._src.interpreters.mlir": {
        "jaxpr_subcomp": "5 const_lowering dim_var_values outer_traceback",
        "make_ir_context": "0",
        "module_to_bytecode": "1",
    },
    "jax._src.interpreters.partial_eval": {
        "DynamicJaxprTrace": "",
        "JaxprTracer": "",
        "PartialVal": "",
        "RecomputeType": "",
        "convert_constvars_jaxpr": "1",
        "custom_partial_eval_rules": "",
        "dce_jaxpr": "2 instantiate",
        "ensure_enum": "1",
        "lower_jaxpr2": "1",
        "partial_eval_jaxpr_custom_rules": "",
        "trace_to_jaxpr_nounits": "2 instantiate",
    },
    "jax._src.interpreters.pxla": {
        "batch_spec": "3",
    },
    "jax._src.lax.lax": {
        "_convert_element_type": "2 weak_type",
        "broadcast": "= operand sizes out_sharding",
        "full": "",
    },
    "jax._src.linear_util": {
        "wrap_init": "1 debug_info",
    },
    "jax._src.mesh": {
        "empty_abstract_mesh": "",
        "empty_concrete_mesh": "",
        "get_abstract_mesh": "0",
        "get_concrete_mesh": "0",
    },
    "jax._src.numpy.util": {
        "canonicalize_device_to_sharding": "= device",
    },
    "jax._src.pjit": {
        "_create_sharding_for_array": "= mesh x name api_name",
        "_pjit_batcher_for_sharding": "= s dim spmd_axis_name *",
    },
    "jax._src.shard_map": {
        "Infer": "",
        "_shmap_checks": "= mesh axis_names in_specs out_specs _smap",
    },
    "jax._src.sharding_impls": {
        "set_mesh": "",
    },
    "jax._src.source_info_util": {
        "current": "0",
        "current_name_stack": "0",
        "new_source_info": "0",
        "user_context": "1 name_stack",
        "user_frames": "1",
    },
    "jax._src.state.discharge": {
        "_discharge_rules": "",
        "_discharge_state": "",
        "discharge_state": "1",
    },
    "jax._src.state.types": {
        "AbstractRef": "",
        "RefEffect": "",
    },
    "jax._src.traceback_util": {
        "api_boundary": "",
    },
    "jax._src.xla_bridge": {
        "backends_are_initialized": "0",
        "get_backend": "= platform",
    },
    "jax.interpreters.ad": {
        "UndefinedPrimal": "1",
        "Zero": "1",
        "instantiate_zeros": "",
        "is_undefined_primal": "1",
        "primitive_jvps": "",
        "primitive_transposes": "",
    },
    "jax.interpreters.batching": {
        "fancy_primitive_batchers": "",
        "primitive_batchers": "",
    },
    "jax.interpreters.mlir": {
        "lower_fun": "1 multiple_results",
        "register_lowering": "2 cacheable",
    },
    "jax._src.compiler": {
        "backend_compile_and_load": "5",
        "get_compile_options": "0 num_replicas num_partitions device_assignment backend",
    },
    "jax._src.lib.mlir.ir": {
        "Block": "",
        "FlatSymbolRefAttr": "",
        "Module": "",
        "StringAttr": "",
    },
    "jax._src.lib.xla_client": {
        "DeviceList": "",
        "make_cpu_client": "0 num_devices",
    },
}
"""Names by module. An empty string: the name exists. `2 weak_type`: it can be called with two
positional arguments and a keyword `weak_type`. `= name val`: it is replaced while a program is
traced, so these must be its parameters; `*` at the end allows more."""

ALTERNATIVES: tuple[tuple[str, ...], ...] = (
    (
        "jax._src.config.abstract_mesh_context_manager",
        "jax._src.mesh.abstract_mesh_context_manager",
    ),
    ("jax._src.config.device_context", "jax._src.mesh.device_context"),
)
"""Names that moved: one in each row exists."""

OPTIONAL = ("jax._src.config.raise_on_ppermute_sort_diff",)
"""Names that only some versions have; they are not required."""


def require() -> None:
    """Raise an error that lists every difference, if the installed JAX does not fit."""
    missing = list(differences())
    if not missing:
        return
    import jax

    from .._base.errors import UnsupportedError

    oldest, newest = WORKS
    raise UnsupportedError(
        f"JAX {jax.__version__} is not supported by this version of shardwise: "
        + "; ".join(missing),
        rule="shardwise uses internals of JAX, which differ between its versions.",
        remedy=f"upgrade shardwise, or pip install 'jax>={oldest},<={newest}'.",
    )


def differences() -> Iterator[str]:
    """Yield the names that are missing or have another signature in the installed JAX."""
    for module, names in NEEDED.items():
        for name, use in names.items():
            try:
                value = pkgutil.resolve_name(f"{module}.{name}")
            except (ImportError, AttributeError):
                yield f"{module}.{name} is missing"
            else:
                if not _fits(value, use):
                    yield f"{module}.{name}{inspect.signature(value)} was used as ({use})"
    for row in ALTERNATIVES:
        if not any(map(_exists, row)):
            yield f"{' and '.join(row)} are missing"


def _exists(path: str) -> bool:
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


def _fits(value: Any, use: str) -> bool:
    """Return whether a value can be used like this; without a signature it is assumed to fit."""
    if not use:
        return True
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return True
    first, *rest = use.split()
    if first != "=":
        return _accepts(signature, int(first), rest)
    parameters = list(signature.parameters)
    return parameters[: len(rest) - 1] == rest[:-1] if rest[-1] == "*" else parameters == rest


def _accepts(signature: inspect.Signature, positional: int, keywords: list[str]) -> bool:
    """Return whether a call with these arguments, and perhaps more, can be bound."""
    try:
        signature.bind_partial(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True
