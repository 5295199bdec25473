"""The step: `fn` and the reduction of its output, as one compiled program for all lanes.

The program is a `shard_map` over the data axis without a single collective: each lane (a position
along that axis, with its devices) runs the same code on a batch of the same shape. One compile
therefore serves every lane and every step, and a lane computes the same bits whether it has
neighbours or not. (`jit` called once per device would compile once per device.) `check_vma` is off:
nothing is reduced over the axis, and with it on, an ordinary `scan` inside `fn` would need a
`pcast`.
"""

from __future__ import annotations

import functools
import inspect
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ...._base.calls import called_wrongly
from ...._base.errors import ShardingError, a_type, note, text_of
from ..data.source import DataSource, ExampleLeaf
from ..lanes import Lanes
from ..reduce.metrics import Reduction, check_rows, check_shapes, named
from ..reduce.plan import MetricsPlan, make_plan
from .state import State

Compiled = Any


@dataclass(frozen=True)
class Function:
    """`fn` with everything that does not change during a run.

    Attributes:
        call: A function of the state's arrays, a batch's leaves and the mask, returning metrics.
        structure: The tree structure of a batch.
        fn: The caller's function.
        state: The state.
        rows: The leaves of an example.
        masked: Whether `fn` takes `mask`.
        mesh: The mesh that `fn` is traced for.
    """

    call: Callable[[list[Any], list[Any], Any], Any]
    structure: Any
    fn: Callable[..., Any]
    state: State
    rows: list[ExampleLeaf]
    masked: bool
    mesh: Mesh

    def checked(self, arrays: list[Any], leaves: list[Any], valid: Any) -> Any:
        """Return the result of `call`; raise if it cannot be reduced."""
        output = self.call(arrays, leaves, valid)
        named(output)
        return output

    def shapes(self, batch: int) -> tuple[Any, Any, Any]:
        """Return the arguments of `call` for a batch of this size, as shapes."""
        leaves = [jax.ShapeDtypeStruct((batch, *row.shape), row.dtype) for row in self.rows]
        return self.state.arrays, leaves, jax.ShapeDtypeStruct((batch,), jnp.bool_)


def bind(fn: Callable[..., Any], state: State, source: DataSource, lanes: Lanes) -> Function:
    """Bind `fn` to the structure of its state and of the data, and to the devices."""
    masked = _takes_mask(fn)

    def call(arrays: list[Any], leaves: list[Any], valid: Any) -> Any:
        batch = jax.tree.unflatten(source.structure, leaves)
        extra = {"mask": valid} if masked else {}
        return fn(state.rebuild(arrays), batch, **extra)

    return Function(call, source.structure, fn, state, source.rows, masked, lanes.mesh)


def _takes_mask(fn: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(fn).parameters.get("mask")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind in (
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    )


def plan(function: Function, batch: int, length: int | None) -> MetricsPlan:
    """Return the plan for the result of `fn` for a batch of this size."""
    result = _remembered(function, ("plan", batch), lambda: _trace(function, batch, length is None))
    if result.objects and not function.masked and (length is None or length % batch):
        raise ShardingError(
            f"it returns metric objects ({', '.join(result.objects)}) and takes no mask.",
            where="fn",
            rule="The last step is padded, and only fn can exclude padding from its metric "
            "objects.",
            remedy="def fn(state, batch, mask): ... and pass mask to the metric.",
        )
    return result


def _trace(function: Function, batch: int, drawn: bool) -> MetricsPlan:
    try:
        with jax.set_mesh(function.mesh):
            output = jax.eval_shape(function.checked, *function.shapes(batch))
    except Exception as error:
        extra = ["mask"] if function.masked else []
        call_error = called_wrongly(
            function.fn,
            (None, None),
            dict.fromkeys(extra),
            error,
            description=f"({', '.join(['state', 'batch', *extra])})",
            rule="evaluate calls it with the state, which may be None, and a batch.",
            remedy="def fn(state, batch): ...",
        )
        if call_error is not None:
            raise call_error from None
        listed = ", ".join(f"{r.label}: {r.dtype}{[batch, *r.shape]}" for r in function.rows)
        note(error, f"shardwise.evaluate: while tracing fn on a batch of {batch} ({listed})")
        hint = _hint(error, function)
        if hint:
            note(error, f"shardwise.evaluate: {hint}")
        raise
    if drawn:
        _refuse_examples(function, named(output))
    result = make_plan(output, batch)
    twice = _metrics_of_twice(function, batch)
    check_shapes(twice, 2 * batch)
    check_rows(named(output), twice, batch)
    return result


def _refuse_examples(function: Function, metrics: dict[str, Any]) -> None:
    """Raise for an iterable of single examples.

    Single examples that are vectors look like a batch of numbers; `fn`, written for a batch, then
    returns one number.
    """
    if any(row.shape for row in function.rows):
        return
    if all(isinstance(m, Reduction) and not m.values.shape for m in metrics.values()):
        listed = ", ".join(row.label for row in function.rows)
        raise ShardingError(
            f"its arrays ({listed}) have one axis, and fn returns a single number: the data seems "
            "not to be batched.",
            where="argument 'data'",
            rule="An iterable yields batches: the first axis of every array is the batch.",
            remedy="batch the data, dataset.batch(64) in Grain, or give a dataset with __len__ "
            "and __getitem__. If it is batched, fn has to return a value for each row.",
        )


def _hint(error: Exception, function: Function) -> str:
    """Return a hint where `fn` seems to expect another structure of its arguments."""
    text, example = text_of(error), jax.tree.unflatten(function.structure, function.rows)
    if isinstance(error, TypeError) and _BY_NAME.search(text) and not isinstance(example, dict):
        structure = "one array" if isinstance(example, ExampleLeaf) else a_type(example)
        return (
            f"a batch has the structure of the data, which is {structure}. Named arrays make it a "
            "dict: data={'x': x}, on the command line --data x=x.npy"
        )
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if key is not None and isinstance(example, dict) and key not in example:
        names = ", ".join(map(repr, example))
        state = function.state.rebuild(function.state.arrays)
        if isinstance(state, dict) and key in state:
            return (
                f"a batch is a dict of {names}, as the data is, and the state has {key!r}: are the "
                "two swapped? The order is sw.evaluate(fn, state, data)"
            )
        option = f": data={{{key!r}: ...}}, on the command line --data {key}=FILE.npy"
        advice = f". To add it{option}" if isinstance(key, str) else ""
        return f"a batch has the structure of the data, which is a dict of {names}{advice}"
    failed = isinstance(error, TypeError | AttributeError) and "NoneType" in text
    state = function.state
    if failed and not state.arrays and state.rebuild([]) is None:
        return (
            "the state is None. It is the second argument, on the command line --state MODULE:NAME"
        )
    return ""


_BY_NAME = re.compile(r"string indexing|indices must be integers or slices, not str")
"""The errors of indexing arrays, tuples and lists by name."""


def _metrics_of_twice(function: Function, batch: int) -> dict[str, Any]:
    """Return the metrics for twice the batch, to distinguish `[batch]` from a fixed length.

    A function that accepts one size only is not checked.
    """
    try:
        with jax.set_mesh(function.mesh):
            return named(jax.eval_shape(function.call, *function.shapes(2 * batch)))
    except Exception:
        return {}


def compile_step(function: Function, plan: MetricsPlan, lanes: Lanes, batch: int) -> Compiled:
    """Compile the step for all lanes."""
    return _remembered(
        function, ("step", batch, lanes), lambda: _compile(function, plan, lanes, batch)
    )


_memory: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _remembered(function: Function, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return the cached result for the same `fn` and shapes, or compute it.

    As with `jax.jit`, the function is compared by identity: one that reads a changed global is not
    traced again. The cache is dropped with the function.
    """
    full_key = (*key, function.state.static, *_types(function), _settings())
    try:
        cache = _memory.setdefault(function.fn, {})
        if full_key in cache:
            return cache[full_key]
    except TypeError:  # the function or the static part of its state cannot be hashed
        return make()
    result = cache[full_key] = make()
    return result


def _types(function: Function) -> tuple[Any, ...]:
    arrays = tuple((jax.typeof(a), a.sharding) for a in function.state.arrays)
    return arrays, tuple(function.rows), str(function.structure)


def _settings() -> tuple[Any, ...]:
    config: Any = jax.config
    return (
        config.jax_enable_x64,
        config.jax_default_matmul_precision,
        config.jax_numpy_dtype_promotion,
    )


def _compile(function: Function, plan: MetricsPlan, lanes: Lanes, batch: int) -> Compiled:
    shared, split = PartitionSpec(), PartitionSpec(lanes.axis)

    @functools.partial(
        jax.shard_map,
        mesh=lanes.mesh,
        in_specs=(shared, split, split),
        out_specs=split,
        axis_names={lanes.axis},
        check_vma=False,
    )
    def shardwise_evaluate_step(arrays: list[Any], leaves: list[Any], rows: Any) -> Any:
        valid = jnp.arange(batch, dtype=jnp.int32) < rows[0]
        return plan.step(function.call(arrays, leaves, valid), valid)[None]

    total = batch * len(lanes)
    leaves = [
        jax.ShapeDtypeStruct((total, *row.shape), row.dtype, sharding=lanes.split)
        for row in function.rows
    ]
    rows = jax.ShapeDtypeStruct((len(lanes),), jnp.int32, sharding=lanes.split)
    with jax.set_mesh(lanes.mesh):
        jitted = jax.jit(shardwise_evaluate_step, out_shardings=lanes.split)
        return jitted.lower(function.state.arrays, leaves, rows).compile()
