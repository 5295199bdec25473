"""The one package that touches JAX's internals: what differs between JAX versions is here.

Everything else in shardwise sees a jaxpr through the few functions below, and the simulated
program enters JAX as the one primitive made by `primitive.call_primitive`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import clusters as _clusters
from jax._src import config as _config
from jax._src import core as _core
from jax._src import distributed as _distributed
from jax._src import effects as _effects
from jax._src import source_info_util as _source
from jax._src import traceback_util as _traceback
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _partial
from jax._src.lax import lax as _lax
from jax._src.state import discharge as _discharge
from jax._src.state import types as _state
from jax.core import Tracer, eval_jaxpr
from jax.extend import core as jex
from jax.extend.core import Literal as Literal

# --- jaxprs ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Open:
    """A jaxpr with its constants beside it, whichever class this version of JAX uses."""

    constvars: Sequence[Any]
    consts: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]
    effects: Any


def open_jaxpr(jaxpr: Any) -> Open:
    """Open a `ClosedJaxpr` or `Jaxpr`; since JAX 0.12 the two are one class."""
    consts = getattr(jaxpr, "consts", ())
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return Open(
        inner.constvars, consts, inner.invars, inner.eqns, inner.outvars, frozenset(inner.effects)
    )


def inputs(jaxpr: Any) -> list[Any]:
    """The variables that a program is called with: its constants, then its arguments."""
    opened = open_jaxpr(jaxpr)
    return [*opened.constvars, *opened.invars]


def without_refs(jaxpr: Any) -> tuple[Any, tuple[int, ...]]:
    """A closed jaxpr that holds no mutable refs: what is written to one is threaded through it.

    This is what JAX does itself before it compiles, so reads and writes keep their order.

    Returns:
        The jaxpr, which takes its constants as arguments where it had refs; and which of its
        inputs were refs, constants counted first. Their last values are further results.
    """
    opened = open_jaxpr(jaxpr)
    if not any(_is_state(effect) for effect in opened.effects):
        return jaxpr, ()
    inner = _partial.convert_constvars_jaxpr(getattr(jaxpr, "jaxpr", jaxpr))
    pure = _discharge.discharge_state(jex.ClosedJaxpr(inner, ()))
    first = len(open_jaxpr(pure).consts)
    refs = [i for i, v in enumerate(inner.invars, first) if isinstance(v.aval, _state.AbstractRef)]
    return pure, tuple(refs)


def _is_state(effect: Any) -> bool:
    return isinstance(effect, _state.RefEffect) or effect is _core.internal_mutable_array_effect


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr with other constants than those it was traced with."""
    return eval_jaxpr(jaxpr.jaxpr, consts, *args)


def is_traced(x: Any) -> bool:
    """Whether a value belongs to a trace that is under way."""
    return isinstance(x, Tracer)


def key_impl(dtype: Any) -> Any:
    """The generator behind a type of random keys, as `jax.random.key` takes it."""
    return dtype._impl.name


def is_unknown(x: Any) -> bool:
    """Whether a tangent is one that JAX takes a linear program for, to run or transpose later."""
    return isinstance(x, _partial.JaxprTracer)


def untouched(outs: Sequence[Any]) -> dict[int, Any]:
    """Results inside a `vmap` that are the same for its whole batch, as they are outside it."""
    found = {}
    for index, x in enumerate(outs):
        if not isinstance(x, _batching.BatchTracer):
            found[index] = x
        elif x.batch_dim is None:
            found[index] = x.val
    return found


def trace_context() -> Any:
    """What besides the arguments decides how a function is traced (x64, precision, ...)."""
    return _config.trace_context()


def primitive_name(primitive: Any) -> str:
    """The name; JAX wraps a primitive met in a vector-Jacobian product in a node of its own."""
    return getattr(primitive, "prim", primitive).name


def bind(primitive: Any, params: dict[str, Any], *args: Any) -> list[Any]:
    """Apply a primitive as its equation would, and give a list of results."""
    primitive = getattr(primitive, "prim", primitive)
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation holds a jaxpr."""
    return isinstance(value, jex.Jaxpr | jex.ClosedJaxpr)


def constants(jaxpr: Any) -> list[Any]:
    """The constants of a jaxpr and of every jaxpr inside it, in the order of the equations."""
    opened = open_jaxpr(jaxpr)
    found = list(opened.consts)
    for eqn in opened.eqns:
        values = [*eqn.params.values(), *eqn.invars]
        while values:
            value = values.pop(0)
            if is_jaxpr(value):
                found += constants(value)
            elif isinstance(value, tuple | list):
                values = [*value, *values]
            elif isinstance(value, jex.Literal):
                found.append(value.val)
    return found


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many constants and how many carried values a `scan` equation has."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


def untyped(constant: Any) -> Any:
    """A constant without the mesh around the place where it was made."""
    return np.asarray(constant) if type(constant).__name__ == "TypedNdArray" else constant


def specs_in(jaxpr: Any) -> list[Any]:
    """The specs of the arguments of all `shard_map`s, in order."""
    found = []
    for eqn in open_jaxpr(jaxpr).eqns:
        if primitive_name(eqn.primitive) == "shard_map":
            found.append(eqn.params["in_specs"])
        values = list(eqn.params.values())
        for value in values:
            if is_jaxpr(value):
                found += specs_in(value)
            elif isinstance(value, tuple | list):
                values += value
    return found


def is_ordered(effect: Any) -> bool:
    """Whether an effect asks for an order among devices, which a simulation cannot give."""
    return "ordered" in type(effect).__name__.lower() or "ordered" in str(effect).lower()


def named_axes(effects: Any) -> set[Any]:
    """The axis names among the effects: how most collectives show themselves."""
    return {effect.name for effect in effects if type(effect).__name__ == "NamedAxisEffect"}


PERMUTES_IN_MESH_ORDER = not hasattr(_config, "raise_on_ppermute_sort_diff")
"""Up to JAX 0.11, `ppermute` over several axes numbers devices in mesh order, as given or not."""


def permutes_as_given() -> bool:
    """Whether `ppermute` takes its axes in any order, as newer JAX does when told to."""
    refuses = getattr(_config, "raise_on_ppermute_sort_diff", None)
    return refuses is not None and not refuses.value


# --- source lines ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Frame:
    """A place in a source file."""

    file: str
    line: int
    function: str
    column: int
    end_column: int


def user_frames(source_info: Any) -> Iterator[Frame]:
    """The frames of an equation from the inside out, JAX's own left out."""
    for frame in _source.user_frames(source_info.traceback):
        yield Frame(
            frame.file_name,
            frame.start_line,
            frame.function_name,
            frame.start_column,
            frame.end_column,
        )


def is_backward(source_info: Any) -> bool:
    """Whether an equation comes from the backward pass of a derivative."""
    return "transpose(" in str(source_info.name_stack)


def is_forward(source_info: Any) -> bool:
    """Whether an equation comes from a forward pass that is differentiated."""
    stack = str(source_info.name_stack)
    return "jvp(" in stack and "transpose(" not in stack


def derivative_frame(source_info: Any) -> Frame | None:
    """For an equation of a derivative: the line that asked for the derivative."""
    inside = False
    frames = source_info.traceback.frames if source_info.traceback else ()
    own = {(frame.file, frame.line): frame for frame in user_frames(source_info)}
    for frame in frames:
        if frame.file_name.endswith("api.py") and "grad" in frame.function_name:
            inside = True
        elif inside and (frame.file_name, frame.line_num) in own:
            return own[frame.file_name, frame.line_num]
    return None


def functions_around(source_info: Any) -> set[str]:
    """The names of the functions in whose calls an equation was made, JAX's own among them."""
    frames = source_info.traceback.frames if source_info.traceback else ()
    return {frame.function_name for frame in frames}


def same_place(source_info: Any) -> Any:
    """A context in which new equations carry the source line and name of an old one."""
    if source_info is None:
        return contextlib.nullcontext()
    name_stack = _source.current_name_stack() + source_info.name_stack
    return _source.user_context(source_info.traceback, name_stack=name_stack)


LIBRARIES = tuple(
    str(Path(root)) for root in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
)
"""Where installed packages live: frames there are a library's, not the user's."""


# --- errors of JAX that a user meets, read ---------------------------------------------------

INDIVISIBLE = re.compile(
    r"maps array axis (?P<dim>\d+) \(of size (?P<size>\d+)\) to mesh ax[ei]s "
    r"(?P<axes>.+?) \(of (?:total )?size (?P<n>\d+)\)"
)
"""One bullet of JAX's message about a dimension that does not divide."""

INDIVISIBLE_ARGUMENT = re.compile(
    r"the passed (?P<argument>\S+) of shape (?P<shape>\w+\[[\d,]*\])"
    r"(?:, where [^\n]*?parameter '(?P<name>\w+)')?"
)
"""The start of such a bullet: which argument it is about."""

UNBOUND_AXIS = re.compile(r"unbound axis name:? '?(?P<axis>\w+)'?")
"""JAX's message about a collective over an axis that no mesh has."""

FROZEN_MESH = re.compile(r"context mesh .* should match the mesh passed to shard_map", re.S)
"""JAX's message when a `shard_map` object meets a second mesh."""


STATELESS_AXES = re.compile(r"can only accept axis_name .* axes: \((?P<axes>[^)]*)\)", re.S)
"""JAX's message about a reduction over several axes of which one is not there."""

SPEC_AXIS = re.compile(r"refers to '(?P<axis>\w+)'")
"""JAX's message about a spec that names an axis the mesh lacks."""

SPEC_COUNT = re.compile(r"pytree structure error.*shard_map (?P<specs>in_specs|out_specs)", re.S)
"""JAX's message about specs that do not match the arguments or results."""

SPEC_MISMATCH = re.compile(
    r"in_specs passed to shard_map: (?P<said>.+?) does not match the specs of the input: "
    r"(?P<found>.+?) for arg: (?P<arg>.+?)\.(?:\s|$)",
    re.S,
)
"""JAX's message about an argument that lies, on an explicit mesh, otherwise than the spec says."""

NO_MESH = re.compile(r"context mesh cannot be empty")
"""JAX's message about a `shard_map` that has no mesh and finds none around it."""


NO_DEVICES = re.compile(
    r"AbstractMesh does not implement|not implemented for `jax.sharding.AbstractMesh`"
    r"|`get_mesh` can only be used outside|untyped custom call to xla.sdy"
)
"""JAX's messages where a program asks a virtual mesh for what only devices have."""


def is_about_types(error: Exception) -> bool:
    """Whether JAX refuses the way arrays lie on an explicit mesh."""
    if type(error).__name__ == "ShardingTypeError":
        return True
    return bool(SPEC_MISMATCH.search(f"{error} {error.__cause__}"))


def is_own(file: str) -> bool:
    """Whether a source file is JAX's."""
    return file.startswith(_HOME)


def is_shard_map(file: str) -> bool:
    """Whether a source file is that of `shard_map`."""
    return is_own(file) and Path(file).name == "shard_map.py"


_HOME = str(Path(jax.__file__).parent)

api_boundary = _traceback.api_boundary
"""A decorator: from here on, tracebacks are shown as the user has asked JAX to show them."""


def whole_tracebacks() -> Any:
    """A context in which JAX leaves its own frames in the tracebacks of its errors."""
    return _config.traceback_filtering("off")


# --- effects ----------------------------------------------------------------------------------


def without_axes(effects: Any) -> set[Any]:
    """Effects as seen outside a mesh."""
    return {effect for effect in effects if type(effect).__name__ != "NamedAxisEffect"}


class MayDeadlock(_effects.Effect):
    """The effect of a program that may find a deadlock: it must run, and may raise."""

    def __repr__(self) -> str:
        return "MayDeadlock"


MAY_DEADLOCK = MayDeadlock()

for _allowed in (
    _effects.lowerable_effects,
    _effects.control_flow_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
    _effects.remat_allowed_effects,
):
    _allowed.add_type(MayDeadlock)


# --- an exception of ours out of a compiled program -------------------------------------------


def surface(error: type[Exception], found: Callable[[str], Exception | None]) -> None:
    """Let `error`, raised by a callback inside a compiled program, reach the caller as itself.

    XLA turns any exception of a callback into a `JaxRuntimeError` that holds its text. From the
    first call on, a `JaxRuntimeError` in whose text `found` recognises ours becomes an instance
    of both classes. Should a later JAX build its errors in another way, the caller gets the plain
    `JaxRuntimeError`, with the same text.
    """
    base = jax.errors.JaxRuntimeError
    if error in _SURFACED:
        return
    init = base.__init__

    class Surfaced(base, error):  # in this order the memory layouts agree
        def __str__(self) -> str:
            return str(self.found)

    Surfaced.__name__ = Surfaced.__qualname__ = error.__name__
    Surfaced.__module__ = error.__module__

    def recognise(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        match = found(str(args[0])) if args and type(self) is base else None
        if match is not None:
            with contextlib.suppress(TypeError):
                self.__class__ = Surfaced
                self.found = match

    base.__init__ = recognise
    _SURFACED.add(error)


_SURFACED: set[type[Exception]] = set()


def shape_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a value's type."""
    return tuple(aval.shape), aval.dtype


def cast(x: Any, aval: Any) -> Any:
    """An array with the dtype and the weakness of a type."""
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
        return x
    return _lax._convert_element_type(x, aval.dtype, weak_type=aval.weak_type)


# --- several processes ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What a scheduler says about this process, as JAX reads it from the environment."""

    name: str
    coordinator: str
    processes: int
    process: int
    local_devices: list[int] | None


def find_cluster(timeout: int, method: str | None = None) -> Cluster | None:
    """The scheduler that JAX recognises here: Slurm, Open MPI, Kubernetes, Cloud TPU; or None.

    Args:
        timeout: Seconds to wait for the address of the first process.
        method: Ask this one only, such as `mpi4py`, which has to be asked for.
    """
    kinds = _clusters.ClusterEnv._cluster_types
    if method is None:
        found = (k for k in kinds if not k.opt_in_only_method and k.is_env_present())
    else:
        found = (k for k in kinds if k.name == method and k.is_env_present())
    kind = next(found, None)
    if kind is None:
        return None
    address = kind.get_coordinator_address(timeout, os.environ.get("JAX_COORDINATOR_PORT"))
    local = kind.get_local_process_id()
    name = kind.name or kind.__name__.removesuffix("Cluster").lower()
    return Cluster(
        name,
        address,
        kind.get_process_count(),
        kind.get_process_id(),
        None if local is None else [local],
    )


def distributed_client() -> Any:
    """The client of JAX's coordination service, or None: get, set and barriers by name."""
    return _distributed.global_state.client


def distributed_place() -> tuple[int, int]:
    """The number of this process and how many there are, without starting the devices."""
    state = _distributed.global_state
    return (0, 1) if state.client is None else (state.process_id, state.num_processes)


def backends_have_started() -> bool:
    """Whether JAX has looked for its devices already; it can join no others after that."""
    return _xla_bridge.backends_are_initialized()


_left: list[Any] = []


def leave_distributed() -> None:
    """Take no part in the end of the job, where JAX waits for all processes.

    A process that has failed would wait there for others that wait for it. The objects are kept:
    their destructors wait, too.
    """
    state = _distributed.global_state
    _left.append((state.preemption_sync_manager, state.client, state.service))
    state.preemption_sync_manager = state.client = state.service = None


def shard_map_arguments(jaxpr: Any) -> Iterator[tuple[int, list[tuple[str, bool]]]]:
    """For each `shard_map`, by the identity of its source: its arguments, and which are split."""
    for eqn in open_jaxpr(jaxpr).eqns:
        if primitive_name(eqn.primitive) == "shard_map":
            names = getattr(getattr(eqn.params["jaxpr"], "debug_info", None), "arg_names", ()) or ()
            specs = eqn.params["in_specs"]
            known = [str(name or "") for name in names]
            # What a body closes over comes in front of its own arguments, without a name.
            known = ([""] * len(specs) + known)[-len(specs) :] if specs else []
            split = [any(entry is not None for entry in spec) for spec in specs]
            yield id(eqn.source_info), list(zip(known, split, strict=False))
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if is_jaxpr(inner):
                    yield from shard_map_arguments(inner)
