"""A traced function: its jaxpr, its inputs and outputs, and its operations, built on demand."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from ... import _jax
from ..._base.errors import UnsupportedError, text_of
from ..._jax import messages, types
from ..._jax.failures import is_closed_over_ref
from ..._jax.virtual import under
from ..._program import (
    Body,
    Collective,
    RequestedAxes,
    StackAxes,
    annotate,
    build,
    choose_stack_axes,
    stack_outputs,
    stacked_shape,
    unstack_inputs,
    walk,
)
from ..._program.collectives import exchange_in_a_batch, no_derivative
from ..lower import Divergence, DivergenceWatch, Pace, execute


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while many small objects are created that all stay alive.

    Otherwise Python would collect often, and scan all objects of JAX each time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class SimulatedProgram:
    """A traced function.

    The jaxpr has the values of the user's program. Where a program is part of a derivative, some of
    its inputs and results are passed from and to other parts, for every device: `input_axes` and
    `result_axes` contain the axes in front of these. Constants are the first inputs.
    """

    def __init__(
        self,
        jaxpr: Any,
        input_axes: Sequence[StackAxes] | None = None,
        requested: Sequence[RequestedAxes] | None = None,
        refs: Sequence[int] = (),
        split_replicated: bool = False,
    ):
        opened = _jax.open_jaxpr(jaxpr)
        count = len(opened.constvars) + len(opened.invars)
        self.jaxpr = jaxpr
        self.mesh = jax.sharding.get_abstract_mesh()
        """The mesh around it when it was traced."""
        input_axes = input_axes or ()
        missing = count - len(input_axes)
        self.input_axes: tuple[StackAxes, ...] = (*[None] * missing, *input_axes)
        self.refs = tuple(refs)
        """The inputs that are mutable refs to the caller."""
        self.transformed = jaxpr
        """The jaxpr that JAX transforms; `drop_dead` removes unused operations from it."""
        self.parts: Callable[..., list[Any]] | None = None
        """For a forward derivative: computes the same results in two calls, the second linear."""
        self.derived: dict[Any, Any] = {}
        """Derivatives and batches of this program, so that each is traced once."""
        self._build = functools.partial(build, split_replicated=split_replicated)
        self._requested: tuple[RequestedAxes, ...] = tuple(
            requested or (None,) * len(opened.outvars)
        )
        self._compiled: dict[Pace, Callable[..., Any]] = {}

    def inline(self, name: str) -> None:
        """Replace a primitive that stands for a program by it; call this before `body`."""
        self._build = functools.partial(self._build, through=name)

    @functools.cached_property
    @_without_garbage_collection()
    def _parts(self) -> tuple[Body, tuple[StackAxes, ...]]:
        shares_in = [axes is not None for axes in self.input_axes]
        shares_out = [axes is not None for axes in self._requested]
        with under(self.mesh):  # the rule of an unused custom_vjp is traced here
            body = self._build(self.jaxpr, shares_in=shares_in, shares_out=shares_out)
        body = unstack_inputs(body, self.input_axes)
        stack_axes = choose_stack_axes(body, self._requested)
        body = stack_outputs(body, stack_axes)
        annotate(body)
        return body, stack_axes

    @property
    def body(self) -> Body:
        """Return the operations, annotated."""
        return self._parts[0]

    @property
    def result_axes(self) -> tuple[StackAxes, ...]:
        """Return the axes in front of each result."""
        if any(axes == "every" for axes in self._requested):
            return self._parts[1]
        return self._requested  # pyright: ignore[reportReturnType]

    @functools.cached_property
    def watch(self) -> DivergenceWatch:
        """Return the operations in which devices may diverge."""
        return DivergenceWatch(self.body.ops)

    @functools.cached_property
    def avals(self) -> list[Any]:
        """Return the types of the results."""
        return [
            types.stacked(aval, stacked_shape(axes, ()))
            for axes, aval in zip(self.result_axes, self.results, strict=True)
        ]

    @property
    def arguments(self) -> list[Any]:
        """Return the types of the inputs, constants first, on one device."""
        return [types.without_manual_axes(v.aval) for v in _jax.inputs(self.jaxpr)]

    @property
    def results(self) -> list[Any]:
        """Return the types of the results, on one device."""
        return [types.without_manual_axes(v.aval) for v in _jax.open_jaxpr(self.jaxpr).outvars]

    @functools.cached_property
    def outer_axes(self) -> set[Any]:
        """Return the axes of outer `vmap`s that it uses."""
        return _jax.named_axes(_jax.open_jaxpr(self.jaxpr).effects)

    @functools.cached_property
    def effects(self) -> set[Any]:
        """Return its side effects."""
        effects = _jax.without_axes(_jax.open_jaxpr(self.jaxpr).effects)
        # A tangent program that JAX only transposes need not be executable.
        with contextlib.suppress(UnsupportedError):
            effects |= {_jax.MAY_DEADLOCK} if self.watch.sites else set()
        return effects

    def function(self, *args: Any) -> list[Any]:
        """Evaluate the program as JAX sees it, to be traced. Constants come first in `args`."""
        count = len(_jax.open_jaxpr(self.jaxpr).consts)
        try:
            return list(_jax.evaluate(self.transformed, args[:count], args[count:]))
        except AssertionError as error:
            if _jax.is_ragged_batch(error):
                raise exchange_in_a_batch() from error
            raise
        except (NotImplementedError, ValueError):
            self.drop_dead()
        try:
            return list(_jax.evaluate(self.transformed, args[:count], args[count:]))
        except NotImplementedError as error:
            match = messages.NO_DERIVATIVE.search(text_of(error))
            if match is None:
                raise
            collectives = [op for op in walk(self.body.ops) if isinstance(op, Collective)]
            locations = (str(op.where) for op in collectives if op.name == match["name"])
            raise no_derivative(match["name"], next(locations, "")) from error

    def drop_dead(self) -> None:
        """Drop unused operations, as in `build`: JAX may be unable to transform one of them."""
        self.transformed = _jax.without_dead(self.jaxpr)

    @_without_garbage_collection()
    def run(self, args: Sequence[Any], pace: Pace) -> tuple[list[Any], Divergence | None]:
        """Run the lowered program; results have the types that JAX gives them, weak types
        included."""
        outs, divergence = execute(self.body, args, self.watch, pace)
        return list(map(_jax.cast, outs, self.avals)), divergence

    def compiled(self, pace: Pace) -> Callable[..., Any]:
        """Return the lowered program, compiled."""
        if pace not in self._compiled:
            self._compiled[pace] = jax.jit(lambda *args: self.run(args, pace))
        return self._compiled[pace]


def trace(f: Callable[..., Any], *args: Any) -> tuple[SimulatedProgram, list[Any]]:
    """Trace `f`; return the program and the constants that it closes over.

    The last values of refs among its inputs follow the results.
    """
    try:
        jaxpr = jax.make_jaxpr(f)(*args)
    except AttributeError as error:
        if not is_closed_over_ref(error):
            raise
        raise UnsupportedError(
            "a shard_map closes over a mutable ref",
            where="the function that is simulated",
            rule="JAX itself has no spec for a ref that a body closes over.",
            remedy="pass the ref as an argument of the shard_map, with a spec.",
        ) from error
    program, consts = _without_refs(jaxpr)
    _jax.refuse_leaked(consts)
    return program, consts


def _without_refs(jaxpr: Any, **stack_axes: Any) -> tuple[SimulatedProgram, list[Any]]:
    """Return the program of a jaxpr without refs, and the constants to call it with."""
    try:
        pure, refs = _jax.without_refs(jaxpr)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"JAX cannot convert this use of a mutable ref (jax.new_ref) to pure code: {error}",
            where="the function that is simulated",
            remedy="pass the value instead of the ref.",
        ) from error
    consts = list(_jax.open_jaxpr(pure).consts)
    consts += [] if pure is jaxpr else list(_jax.open_jaxpr(jaxpr).consts)
    return SimulatedProgram(pure, refs=refs, **stack_axes), consts


def derive(
    program: SimulatedProgram,
    name: Any,
    f: Callable[..., Any],
    args: Sequence[Any],
    types_inside: Sequence[Any],
    input_axes: Sequence[StackAxes],
    requested: Callable[[int], Sequence[RequestedAxes]],
    note: Callable[[], Any] = list,
) -> tuple[SimulatedProgram, list[Any], Any]:
    """Return the program of `f`, a transformation of another program; `note` is called after
    tracing.

    `types_inside` are the types of `args` inside `f`, where their shardings may differ.
    `input_axes` has the axes in front of each of them, `requested` those of this many results.
    """
    key = (name, tuple(map(_type_key, args)), _jax.trace_context())
    if key not in program.derived:
        avals = list(map(types.struct, args, types_inside))
        with under(program.mesh):
            jaxpr = jax.make_jaxpr(f)(*avals)
            if any(map(_jax.is_traced, jaxpr.consts)):
                # A user's rule (`custom_vjp`) closes over a value of the body. Drop unused
                # operations, and trace again, with a new function to bypass JAX's cache.
                program.drop_dead()
                jaxpr = jax.make_jaxpr(lambda *args: f(*args))(*avals)
                _refuse_closed_over(jaxpr.consts)
            count = len(_jax.open_jaxpr(jaxpr).outvars)
            derived, consts = _without_refs(
                jaxpr, input_axes=input_axes, requested=requested(count)
            )
        program.derived[key] = derived, consts, note()
    return program.derived[key]


def _refuse_closed_over(consts: Sequence[Any]) -> None:
    """Raise for a derivative rule that closes over a value of a finished trace."""
    try:
        _jax.refuse_leaked(consts)
    except jax.errors.UnexpectedTracerError as error:
        raise UnsupportedError(
            "the rule of a custom_vjp or custom_jvp closes over a value of the body",
            where="the derivative of a simulated function",
            rule="A simulated function is traced before it is differentiated, as under jax.jit, "
            "and the values of that trace are not available to the rule.",
            remedy="pass the value to it as an argument; or differentiate inside: "
            "sw.simulate(jax.grad(f)).",
        ) from error


def _type_key(x: Any) -> Any:
    aval = jax.typeof(x)
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)
