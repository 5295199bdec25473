"""Lower a traced program for a mesh without devices; compile it for that many virtual devices.

The two halves run in different processes: `lower` where the program was traced, `compile_into`
where there may be as many virtual devices as the mesh has. A process can have several CPU clients,
each with its own number of devices, and a description of GPUs is enough to compile for them, so
none of this initialises the devices of either process.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import compiler as _compiler
from jax._src import config as _config
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import xla_client as _client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir import ir as _ir  # pyright: ignore[reportPrivateImportUsage]
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .jaxprs import Open, equations, evaluate, inner_jaxprs, open_jaxpr, primitive_name
from .virtual import under

_DeviceList: Any = _client.DeviceList

PASSES = "shardy-xla|spmd-partitioning"
"""The passes around which the module is dumped: shardings before, one device's program after."""

WIDENING = (
    "all-reduce-promotion",
    "float-normalization-bf16",
    "float-normalization-f8e5m2",
    "float-normalization-f8e4m3fn",
    "float-normalization-f8e4m3b11fnuz",
    "float-normalization-f8e5m2fnuz",
    "float-normalization-f8e4m3fnuz",
)
"""Passes only the CPU backend needs, since it has no arithmetic in these dtypes: it would send
float32 where accelerators send bfloat16."""


H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 3350000000000
  device_memory_size: 80000000000
  l2_cache_size: 52428800
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
}
"""
"""What XLA needs to know of a GPU that it compiles for; figures of NVIDIA's data sheet."""

PLATFORMS: dict[str, str | None] = {"cpu": None, "cuda": None, "h100": H100}
"""The platforms to compile for, those without a device with their description."""

NODE = 8
"""GPUs of one host."""


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program in the form that the compiler takes."""

    module: bytes
    devices: int
    shardy: bool
    """Whether it is written for the partitioner Shardy, not GSPMD."""
    platform: str = "cpu"
    """A name of `PLATFORMS`."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """The sharding and donation that a program declares for one of its inputs."""

    spec: PartitionSpec | None = None
    donated: bool = False


def lower(
    jaxpr: Any,
    types: Sequence[Any],
    mesh: Mesh | AbstractMesh,
    donated: Sequence[int] = (),
    constrained: Mapping[int, PartitionSpec] | None = None,
    platform: str = "cpu",
) -> Lowered:
    """Lower a closed jaxpr.

    Args:
        jaxpr: The program.
        types: Its inputs, constants first, with shardings.
        mesh: The mesh of these shardings.
        donated: Inputs whose memory results may take.
        constrained: Inputs that the program constrains to another sharding before anything else.
        platform: A name of `PLATFORMS`.
    """
    consts = len(open_jaxpr(jaxpr).constvars)

    def program(*args: Any) -> list[Any]:
        flat = list(args)
        for index, spec in (constrained or {}).items():
            flat[index] = jax.lax.with_sharding_constraint(flat[index], NamedSharding(mesh, spec))
        return evaluate(jaxpr, flat[:consts], flat[consts:])

    mesh = _traced_for(jaxpr, mesh)
    abstract_mesh = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    # By default only the innermost ten frames are recorded, which may all be a library's.
    with under(abstract_mesh), _config.traceback_in_locations_limit(-1):
        jitted = jax.jit(program, keep_unused=True, donate_argnums=tuple(donated))
        module: Any = (
            jitted.trace(*(_on(mesh, aval) for aval in types))
            .lower(lowering_platforms=("cpu" if platform == "cpu" else "cuda",))
            .compiler_ir()
        )
    parts = module.operation.attributes["mhlo.num_partitions"].value
    shardy = bool(_config.use_shardy_partitioner.value)
    return Lowered(_mlir.module_to_bytecode(module), int(parts), shardy, platform)


def _traced_for(jaxpr: Any, mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """Return the mesh in the types of a program, if there is one.

    It equals `mesh`, except that the mesh of an array on devices also contains their kind.
    """
    meshes = (
        getattr(getattr(v.aval, "sharding", None), "mesh", None) for v in open_jaxpr(jaxpr).invars
    )
    return next(
        (
            candidate
            for candidate in meshes
            if candidate is not None and candidate.shape == mesh.shape
        ),
        mesh,
    )


def _on(mesh: Mesh | AbstractMesh, aval: Any) -> Any:
    """Return an input on exactly the mesh that the program was traced for."""
    sharding = aval.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh.shape != mesh.shape:
        return aval
    return aval.update(sharding=NamedSharding(mesh, sharding.spec))


@functools.lru_cache(maxsize=4)
def _cpus(devices: int) -> Any:
    return _client.make_cpu_client(num_devices=devices)


def _devices(platform: str, count: int) -> Sequence[Any]:
    """Return virtual devices to compile for; GPUs are those of this machine, or as described."""
    if platform == "cpu":
        return _cpus(count).devices()
    hosts, each = (count // NODE, NODE) if count % NODE == 0 else (1, count)
    target = PLATFORMS[platform]
    described = {} if target is None else {"target_config": target}
    topology = f"1x{hosts}x{each}"
    return topologies.get_topology_desc("", "cuda", topology=topology, **described).devices


def compile_into(folder: str, lowered: Lowered) -> None:
    """Compile for that many virtual devices and leave the compiler's dumps in a folder.

    For CPUs, low-precision types are not widened. The CPU backend then fails to emit machine code
    for some programs, but only after the dumps are written.
    """
    jax.config.update("jax_use_shardy_partitioner", lowered.shardy)
    virtual = _devices(lowered.platform, lowered.devices)
    Path(folder, "kind").write_text(virtual[0].device_kind)
    client = virtual[0].client
    options = _compiler.get_compile_options(
        num_replicas=1,
        num_partitions=lowered.devices,
        device_assignment=np.arange(lowered.devices).reshape(1, -1),
        backend=client,
    )
    debug = options.executable_build_options.debug_options
    debug.xla_dump_to = folder
    debug.xla_dump_hlo_pass_re = PASSES
    debug.xla_backend_optimization_level = 0
    debug.xla_llvm_disable_expensive_passes = True
    if lowered.platform == "cpu":
        debug.xla_disable_hlo_passes = ",".join(WIDENING)
    with _mlir.make_ir_context():
        module = _ir.Module.parse(lowered.module)
        devices = _DeviceList(tuple(virtual))
        _compiler.backend_compile_and_load(client, module, devices, options, [])


# --- declared shardings of inputs


def placed_inputs(jaxpr: Any) -> list[Placed]:
    """Return what the first equation that constrains each input declares: a `jit` or a
    constraint."""
    opened = open_jaxpr(jaxpr)
    return [_placed(opened, var) for var in (*opened.constvars, *opened.invars)]


def _placed(opened: Open, var: Any) -> Placed:
    for eqn in opened.eqns:
        index = next((i for i, atom in enumerate(eqn.invars) if atom is var), None)
        if index is None:
            continue
        name, params = primitive_name(eqn.primitive), eqn.params
        if name == "sharding_constraint":
            return Placed(_spec(params["sharding"]))
        if name == "jit" and "in_shardings" in params:
            donated = params["donated_invars"][index]
            spec = _spec(params["in_shardings"][index])
            inner = open_jaxpr(params["jaxpr"])
            if spec is None:
                spec = _placed(inner, inner.invars[index]).spec
            if spec is not None or donated:
                return Placed(spec, donated)
    return Placed()


def named_sharding(value: Any) -> NamedSharding | None:
    """Return the sharding of an array or a shape over several devices, or None."""
    try:
        sharding = getattr(value, "sharding", None)
    except TypeError:  # a shape with a spec, and no mesh is set
        return None
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1 else None


def _spec(sharding: Any) -> PartitionSpec | None:
    return sharding.spec if isinstance(sharding, NamedSharding) else None


def meshes_in(jaxpr: Any) -> list[Mesh | AbstractMesh]:
    """Return the meshes that a program names, each once, those with devices first."""
    parts = [part for eqn in equations(jaxpr) for part in _params(eqn)]
    named = [part.mesh if isinstance(part, NamedSharding) else part for part in parts]
    meshes = dict.fromkeys(m for m in named if isinstance(m, Mesh | AbstractMesh) and not m.empty)
    return sorted(meshes, key=lambda mesh: isinstance(mesh, AbstractMesh))


def is_partitioned(jaxpr: Any) -> bool:
    """Return whether constraints or types shard values over axes that are not manual."""
    for eqn in equations(jaxpr):
        shardings = [] if primitive_name(eqn.primitive) == "jit" else _params(eqn)
        if not any(True for _ in inner_jaxprs(eqn)):
            shardings += [getattr(atom.aval, "sharding", None) for atom in eqn.invars]
        if any(map(_is_split, shardings)):
            return True
    return False


def _params(eqn: Any) -> list[Any]:
    """Return the parameters of an equation, one by one."""
    return [part for value in eqn.params.values() for part in _parts(value)]


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _is_split(sharding: Any) -> bool:
    if not isinstance(sharding, NamedSharding):
        return False
    names = (name for row in sharding.spec if row for name in _parts(row))
    return any(sharding.mesh.shape.get(name, 1) > 1 for name in names)


def automatic(mesh: Mesh | AbstractMesh) -> bool:
    """Return whether all axes are Auto."""
    return all(kind == AxisType.Auto for kind in mesh.axis_types)
