"""The part of a type that says, on a mesh with Explicit axes, how a value lies."""

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


def unreduced_axes(aval: Any) -> frozenset[str]:
    """The axes of an explicit mesh over which a sum is still owed: `unreduced` in a type."""
    sharding = getattr(aval, "sharding", None)
    return getattr(getattr(sharding, "spec", None), "unreduced", frozenset())


def reduction_kind(aval: Any) -> str:
    """How what is owed is to be combined: `sum`, and since JAX 0.12 `max` or `min`."""
    kind = getattr(aval.sharding.spec, "unreduced_kind", None)
    return "sum" if kind is None else kind.name


def spec_of(aval: Any) -> PartitionSpec:
    """How a type says (on an explicit mesh) that its values lie; nothing where it does not."""
    sharding = getattr(aval, "sharding", None)
    return getattr(sharding, "spec", PartitionSpec())


def mesh_of(aval: Any) -> Any:
    """The mesh in a type, or None."""
    return getattr(getattr(aval, "sharding", None), "mesh", None)


def explicit_spec(x: Any) -> PartitionSpec | None:
    """How an array, or a shape, lies on a mesh with Explicit axes; None where it does not say.

    What lies on such a mesh and is not split is the same on every device. A value that is traced
    with such a mesh around has that type too, whether it was put there or not: it does not say.
    """
    aval = jax.typeof(x)
    mesh = mesh_of(aval)
    around = isinstance(x, Tracer) and mesh == jax.sharding.get_abstract_mesh()
    says = mesh is not None and AxisType.Explicit in mesh.axis_types and not around
    return spec_of(aval) if says or not is_plain(aval) else None


def with_spec_on(mesh: Any, x: Any) -> Any:
    """A shape whose sharding is a spec alone, which is about this mesh; all else as it is."""
    spec = getattr(x, "_sharding", None) if isinstance(x, jax.ShapeDtypeStruct) else None
    if not isinstance(spec, PartitionSpec) or not _mesh.get_concrete_mesh().empty:
        return x
    sharding = None if mesh is None else NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak_type)


def without_sharding(x: Any) -> Any:
    """An array or a shape that lies on no mesh, whatever its type says."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)
    return unplaced(x)


def replicated(x: Any) -> Any:
    """A traced value, replicated where its type says that it is not."""
    aval = jax.typeof(x)
    return x if is_plain(aval) else jax.sharding.reshard(x, _sharding(aval, PartitionSpec()))


def resharded(x: Any, aval: Any) -> Any:
    """A traced value, laid out as a type says."""
    return x if is_plain(aval) else jax.sharding.reshard(x, aval.sharding)


def _sharding(aval: Any, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(aval.sharding.mesh, spec)


def gathered(x: Any) -> Any:
    """The value of an array on several devices; what its devices still owe is paid."""
    names = unreduced_axes(jax.typeof(x))
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended):  # random keys
        first = min(x.devices(), key=lambda device: device.id)
        return jax.device_put(x, jax.sharding.SingleDeviceSharding(first))
    if not names:
        return np.asarray(x)
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduction_kind(jax.typeof(x))]
    whole = np.zeros(x.shape, x.dtype)
    mesh = x.sharding.mesh
    shares: dict[Any, Any] = {}
    axes = [i for i, name in enumerate(mesh.axis_names) if name in names]
    spec = PartitionSpec(*x.sharding.spec.partitions)
    parts = jax.sharding.NamedSharding(mesh, spec).devices_indices_map(x.shape)
    where = {device: at for at, device in np.ndenumerate(mesh.devices)}
    for shard in x.addressable_shards:
        at = where[shard.device]
        shares.setdefault(tuple(at[i] for i in axes), []).append((parts[shard.device], shard.data))
    for number, share in enumerate(shares.values()):
        one = np.zeros_like(whole)
        for index, data in share:
            one[index] = np.asarray(data)
        whole = one if number == 0 else combine(whole, one)
    return whole


def unplaced(x: Any) -> Any:
    """The value of an array that lies on a mesh, as one whose type names no mesh; others as is."""
    if not isinstance(x, jax.Array) or isinstance(x, Tracer):
        return x
    mesh = mesh_of(jax.typeof(x))
    on_a_mesh = mesh is not None and not mesh.empty
    return gathered(x) if on_a_mesh or len(x.devices()) > 1 else x


def transpose_linear(
    f: Callable[..., list[Any]], like: Sequence[Any], cotangents: Sequence[Any]
) -> Any:
    """The transpose of a linear function of arrays, at some cotangents.

    `jax.linear_transpose` wants cotangents of the type of the result. That of a value which is
    the same everywhere (`reduced`) is a sum still owed (`unreduced`), and the other way round.
    """
    dual = [is_plain(aval) or aval.to_ct_aval() == aval for aval in map(jax.typeof, cotangents)]
    if all(dual):
        return jax.linear_transpose(f, *like)(list(cotangents))
    info = _api.debug_info("linear_transpose", f, tuple(like), {})
    wrapped = _linear.wrap_init(f, debug_info=info)
    unknown = [_partial.PartialVal.unknown(aval) for aval in like]
    jaxpr, _, consts = _partial.trace_to_jaxpr_nounits(wrapped, unknown, instantiate=True)
    dummies = [ad.UndefinedPrimal(aval.to_ct_aval()) for aval in like]
    found = _ad.backward_pass(jaxpr, True, consts, dummies, list(cotangents))
    return tuple(map(ad.instantiate_zeros, found))


def is_plain(aval: Any) -> bool:
    """Whether a type says nothing of the way its values lie."""
    spec = spec_of(aval)
    apart = getattr(spec, "unreduced", ()) or getattr(spec, "reduced", ())
    return not apart and all(entry is None for entry in spec.partitions)


def struct(x: Any, aval: Any) -> Any:
    """What to trace with in place of `x`, where a program sees it as of type `aval`."""
    seen = jax.typeof(x)
    mesh = mesh_of(seen)
    foreign = mesh is not None and not mesh.empty and mesh != mesh_of(aval)
    if seen.shape == aval.shape and is_plain(aval) and is_plain(seen) and not foreign:
        return x
    weak = getattr(seen, "weak_type", False)
    sharding = None if is_plain(aval) else aval.sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, sharding=sharding)


def batched(aval: Any, batch: Any, dim: int | None) -> Any:
    """The type of a batch of values along dimension `dim`, of which `batch` is the type outside."""
    if dim is None:
        return aval
    shape = (*aval.shape[:dim], batch.shape[dim], *aval.shape[dim:])
    if not is_plain(batch):
        return _typed(batch, shape, batch.sharding)  # the batch itself may be split
    rows = [*spec_of(aval).partitions, *[None] * (len(aval.shape) - len(spec_of(aval).partitions))]
    return _with(aval, shape, [*rows[:dim], None, *rows[dim:]])


def stacked(aval: Any, sizes: Sequence[int]) -> Any:
    """The type of the values of several devices, stacked in front."""
    return _with(aval, (*sizes, *aval.shape), [*[None] * len(sizes), *spec_of(aval).partitions])


def unstacked(aval: Any, depth: int) -> Any:
    """The type of the value of one device, where so many axes in front are those of devices."""
    return _with(aval, aval.shape[depth:], spec_of(aval).partitions[depth:]) if depth else aval


def without_manual_axes(aval: Any) -> Any:
    """A type without what a `shard_map` around says of it: a simulated program stands outside."""
    return _typed(aval, aval.shape, None if is_plain(aval) else aval.sharding)


def _with(aval: Any, shape: Sequence[int], rows: Sequence[Any]) -> Any:
    if is_plain(aval):
        return _typed(aval, shape, None)
    return _typed(aval, shape, _sharding(aval, spec_of(aval).update(partitions=tuple(rows))))


def _typed(aval: Any, shape: Sequence[int], sharding: Any) -> Any:
    weak = getattr(aval, "weak_type", False)
    return ShapedArray(tuple(shape), aval.dtype, weak_type=weak, sharding=sharding)


def types_in_trace(avals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Types as a trace sees them that knows the mesh around, and those of what it was given.

    Inside a `shard_map` that checks, they differ between devices as what it was given does.
    """
    known = {jax.sharding.get_abstract_mesh(), *map(mesh_of, given)}
    around = next((one for one in given if one.mat.varying), None)

    def see(aval: Any) -> Any:
        if is_plain(aval) or mesh_of(aval) not in known:
            aval = _typed(aval, aval.shape, None)
        if around is None:
            return aval
        spec = spec_of(aval) if mesh_of(aval) == mesh_of(around) else PartitionSpec()
        sharding = _sharding(around, spec)
        return _typed(aval, aval.shape, sharding).update_manual_axis_type(around.mat)

    return list(map(see, avals))


def varying(avals: Sequence[Any]) -> frozenset[str]:
    """The axes of a `shard_map` around along which any of these types differs."""
    return frozenset().union(*(aval.mat.varying for aval in avals))


def with_equal_varying_axes(values: Sequence[Any]) -> list[Any]:
    """The values, each as one that differs between devices wherever one of them does."""
    axes = varying(list(map(jax.typeof, values)))
    if not axes:
        return list(values)
    others = [tuple(sorted(axes - jax.typeof(x).mat.varying)) for x in values]
    return [
        jax.lax.pcast(x, more, to="varying") if more else x
        for x, more in zip(values, others, strict=True)
    ]


unchecked = partial(_config._check_vma, False)
"""A context in which JAX does not look at what differs between devices."""


def mesh_in_use(args: Sequence[Any]) -> Mesh | None:
    """The mesh that arrays lie on, where they lie on one of several devices."""
    for x in args:
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.num_devices > 1:
            return sharding.mesh if isinstance(sharding.mesh, Mesh) else None
    return None


def put_on_mesh(x: Any, aval: Any, mesh: Mesh | None) -> Any:
    """An array laid out on a mesh as a type says, where the type is about that mesh."""
    if mesh is None or is_plain(aval) or mesh_of(aval) != mesh.abstract_mesh:
        return x
    if unreduced_axes(aval):  # JAX makes shares only of what is on the mesh already
        x = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    return jax.device_put(x, NamedSharding(mesh, spec_of(aval)))
