"""The sharding in the type of a value, on a mesh with Explicit axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax._src import api_util as _api
from jax._src import config as _config
from jax._src import linear_util as _linear
from jax._src import mesh as _mesh
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _partial
from jax.core import ShapedArray, Tracer
from jax.interpreters import ad
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .jaxprs import outside_traces


def unreduced_axes(aval: Any) -> frozenset[str]:
    """Return the axes of an explicit mesh over which a reduction is pending."""
    sharding = getattr(aval, "sharding", None)
    return getattr(getattr(sharding, "spec", None), "unreduced", frozenset())


def reduction_kind(aval: Any) -> str:
    """Return the pending reduction: `sum`, and since JAX 0.12 `max` or `min`."""
    kind = getattr(aval.sharding.spec, "unreduced_kind", None)
    return "sum" if kind is None else kind.name


def spec_of(aval: Any) -> PartitionSpec:
    """Return the spec in a type (on an explicit mesh); an empty one if there is none."""
    sharding = getattr(aval, "sharding", None)
    return getattr(sharding, "spec", PartitionSpec())


def mesh_of(aval: Any) -> Any:
    """Return the mesh in a type, or None."""
    return getattr(getattr(aval, "sharding", None), "mesh", None)


def explicit_spec(x: Any) -> PartitionSpec | None:
    """Return the spec of an array, or a shape, on a mesh with Explicit axes; None if it has none.

    An unsplit array on such a mesh is the same on every device. A value traced under such an
    ambient mesh has that type too, wherever it is placed, so it has no spec.
    """
    aval = jax.typeof(x)
    mesh = mesh_of(aval)
    in_trace = isinstance(x, Tracer) and mesh == jax.sharding.get_abstract_mesh()
    is_explicit = mesh is not None and AxisType.Explicit in mesh.axis_types and not in_trace
    return spec_of(aval) if is_explicit or not is_plain(aval) else None


def with_spec_on(mesh: Any, x: Any) -> Any:
    """Add this mesh to a shape whose sharding is only a spec; return other values unchanged."""
    spec = getattr(x, "_sharding", None) if isinstance(x, jax.ShapeDtypeStruct) else None
    if not isinstance(spec, PartitionSpec) or not _mesh.get_concrete_mesh().empty:
        return x
    sharding = None if mesh is None else NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak_type)


def without_sharding(x: Any) -> Any:
    """Return an array or a shape on no mesh, whatever its type is."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)
    return unplaced(x)


def replicated(x: Any) -> Any:
    """Return a traced value, replicated if its type is sharded."""
    aval = jax.typeof(x)
    return x if is_plain(aval) else jax.sharding.reshard(x, _sharding(aval, PartitionSpec()))


def resharded(x: Any, aval: Any) -> Any:
    """Return a traced value with the sharding of a type."""
    return x if is_plain(aval) else jax.sharding.reshard(x, aval.sharding)


def _sharding(aval: Any, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(aval.sharding.mesh, spec)


def gathered(x: Any) -> Any:
    """Return the value of an array on several devices; pending reductions are computed."""
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended):  # random keys
        first = min(x.devices(), key=lambda device: device.id)
        return jax.device_put(x, jax.sharding.SingleDeviceSharding(first))
    if unreduced_axes(jax.typeof(x)):
        with outside_traces():
            x = jax.sharding.reshard(x, NamedSharding(x.sharding.mesh, PartitionSpec()))
    return np.asarray(x)


def unplaced(x: Any) -> Any:
    """Return the value of an array on a mesh as an array on no mesh; others unchanged."""
    if not isinstance(x, jax.Array) or isinstance(x, Tracer):
        return x
    mesh = mesh_of(jax.typeof(x))
    has_mesh = mesh is not None and not mesh.empty
    return gathered(x) if has_mesh or len(x.devices()) > 1 else x


def transpose_linear(
    f: Callable[..., list[Any]], like: Sequence[Any], cotangents: Sequence[Any]
) -> Any:
    """Return the transpose of a linear function of arrays, at some cotangents.

    `jax.linear_transpose` requires cotangents of the type of the result. But the cotangent of a
    value that is the same everywhere (`reduced`) is a pending sum (`unreduced`), and vice versa.
    """
    dual = [is_plain(aval) or aval.to_ct_aval() == aval for aval in map(jax.typeof, cotangents)]
    if all(dual):
        return jax.linear_transpose(f, *like)(list(cotangents))
    info = _api.debug_info("linear_transpose", f, tuple(like), {})
    wrapped = _linear.wrap_init(f, debug_info=info)
    unknown = [_partial.PartialVal.unknown(aval) for aval in like]
    jaxpr, _, consts = _partial.trace_to_jaxpr_nounits(wrapped, unknown, instantiate=True)
    dummies = [ad.UndefinedPrimal(aval.to_ct_aval()) for aval in like]
    transposed = _ad.backward_pass(jaxpr, True, consts, dummies, list(cotangents))
    return tuple(map(ad.instantiate_zeros, transposed))


def is_plain(aval: Any) -> bool:
    """Return whether a type has no sharding."""
    spec = spec_of(aval)
    return not (spec.unreduced or spec.reduced) and all(row is None for row in spec.partitions)


def struct(x: Any, aval: Any) -> Any:
    """Return a stand-in for `x` to trace with, if it has type `aval` in the program."""
    actual = jax.typeof(x)
    mesh = mesh_of(actual)
    foreign = mesh is not None and not mesh.empty and mesh != mesh_of(aval)
    if actual.shape == aval.shape and is_plain(aval) and is_plain(actual) and not foreign:
        return x
    weak = getattr(actual, "weak_type", False)
    sharding = None if is_plain(aval) else aval.sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, sharding=sharding)


def batched(aval: Any, batch: Any, dim: int | None) -> Any:
    """Return the type of a batch of values along dimension `dim`, of type `batch` outside."""
    if dim is None:
        return aval
    shape = (*aval.shape[:dim], batch.shape[dim], *aval.shape[dim:])
    if not is_plain(batch):
        return _typed(batch, shape, batch.sharding)  # the batch itself may be split
    rows = [*spec_of(aval).partitions, *[None] * (len(aval.shape) - len(spec_of(aval).partitions))]
    return _with(aval, shape, [*rows[:dim], None, *rows[dim:]])


def stacked(aval: Any, sizes: Sequence[int]) -> Any:
    """Return the type of the values of several devices, stacked in front."""
    return _with(aval, (*sizes, *aval.shape), [*[None] * len(sizes), *spec_of(aval).partitions])


def unstacked(aval: Any, depth: int) -> Any:
    """Return the type of the value of one device, without `depth` axes of devices in front."""
    return _with(aval, aval.shape[depth:], spec_of(aval).partitions[depth:]) if depth else aval


def without_manual_axes(aval: Any) -> Any:
    """Return a type without the axes of a `shard_map` around: a simulated program is outside."""
    return _typed(aval, aval.shape, None if is_plain(aval) else aval.sharding)


def _with(aval: Any, shape: Sequence[int], rows: Sequence[Any]) -> Any:
    if is_plain(aval):
        return _typed(aval, shape, None)
    return _typed(aval, shape, _sharding(aval, spec_of(aval).update(partitions=tuple(rows))))


def _typed(aval: Any, shape: Sequence[int], sharding: Any) -> Any:
    weak = getattr(aval, "weak_type", False)
    return ShapedArray(tuple(shape), aval.dtype, weak_type=weak, sharding=sharding)


def types_in_trace(avals: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return types for a trace with the ambient mesh and the meshes of the inputs.

    Inside a `shard_map` with `check_vma`, they vary over the axes of the inputs.
    """
    meshes = {jax.sharding.get_abstract_mesh(), *map(mesh_of, inputs)}
    context = next((input_aval for input_aval in inputs if input_aval.mat.varying), None)

    def convert(aval: Any) -> Any:
        if is_plain(aval) or mesh_of(aval) not in meshes:
            aval = _typed(aval, aval.shape, None)
        if context is None:
            return aval
        spec = spec_of(aval) if mesh_of(aval) == mesh_of(context) else PartitionSpec()
        sharding = _sharding(context, spec)
        return _typed(aval, aval.shape, sharding).update_manual_axis_type(context.mat)

    return list(map(convert, avals))


def varying(avals: Sequence[Any]) -> frozenset[str]:
    """Return the axes of an outer `shard_map` along which any of these types varies."""
    return frozenset().union(*(aval.mat.varying for aval in avals))


def with_equal_varying_axes(values: Sequence[Any]) -> list[Any]:
    """Cast the values so that each varies along all axes that any of them varies along."""
    axes = varying(list(map(jax.typeof, values)))
    if not axes:
        return list(values)
    missing = [tuple(sorted(axes - jax.typeof(x).mat.varying)) for x in values]
    return [
        jax.lax.pcast(x, names, to="varying") if names else x
        for x, names in zip(values, missing, strict=True)
    ]


unchecked = partial(_config._check_vma, False)
"""A context in which JAX does not check what varies between devices."""


def mesh_in_use(args: Sequence[Any]) -> Mesh | None:
    """Return the mesh of the arrays, if they are on one of several devices."""
    for x in args:
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.num_devices > 1:
            return sharding.mesh if isinstance(sharding.mesh, Mesh) else None
    return None


def put_on_mesh(x: Any, aval: Any, mesh: Mesh | None) -> Any:
    """Return an array with the sharding of a type on a mesh, if the type has that mesh."""
    if mesh is None or is_plain(aval) or mesh_of(aval) != mesh.abstract_mesh:
        return x
    if unreduced_axes(aval):  # JAX creates shares only from arrays on the mesh
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    return jax.device_put(x, NamedSharding(mesh, spec_of(aval)))
