"""`data_parallel` for Flax NNX: a model and an optimizer, both updated in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..._base.calls import DEVICES, public, public_methods
from ..._base.errors import ArgumentError, ShardingError, a_type
from ..._mesh import MeshLike
from .nnx_variables import Kind, Variables
from .step.gradient import reduce_gradients
from .step.layout import BatchLayout
from .step.losses import Objective
from .step.optimizers import apply_optimizer
from .step.part import BatchPart
from .step.placement import no_mesh
from .step.runner import Options, TrainingStep, choose
from .step.state import kinds_of
from .step.validate import refuse_integers

_GOES_TO_THE_STEP = (
    "the model and the optimizer go to the step: step = sw.nnx.data_parallel(loss, mesh=mesh), "
    "metrics = step(model, optimizer, batch)"
)


@public(
    "sw.nnx.data_parallel",
    devices=DEVICES,
    more=_GOES_TO_THE_STEP,
    model=_GOES_TO_THE_STEP,
    optimizer=_GOES_TO_THE_STEP,
    batch=_GOES_TO_THE_STEP,
)
def data_parallel(
    loss: Callable[..., Any],
    *,
    mesh: MeshLike | None = None,
    axis: str | None = None,
    accumulate: int = 1,
    has_aux: bool = False,
    rng: str | None = None,
    seed: Any = 0,
    statistics: str = "batch",
    norms: bool = False,
    donate: bool = True,
    at_once: int | str = 1,
    feed: str | None = None,
) -> ObjectStep:
    """Return a training step for NNX that equals one-device training on any mesh.

    `step(model, optimizer, batch)` updates both in place and returns the metrics. It trains the
    variables that the optimizer selects: `nnx.Optimizer(model, tx, wrt=nnx.Param)`. Streams of
    `nnx.Rngs` in the model are split, so that every part of the batch has its own keys; after the
    step each stream has advanced by one.

    The arguments, and what the loss may return, are those of `sw.data_parallel`; the loss takes the
    model instead of the params: `loss(model, batch)`, or `loss(model, batch, rng)`.

    Example:
        ```python
        import jax.numpy as jnp, optax
        import shardwise as sw
        from flax import nnx

        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        step = sw.nnx.data_parallel(lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean(-1))
        metrics = step(model, optimizer, {"x": jnp.ones((20, 3)), "y": jnp.ones((20, 1))})
        ```
    """
    options = Options(
        mesh, axis, accumulate, has_aux, rng, seed, statistics, norms, donate, at_once, feed
    )
    return ObjectStep(loss, options)


@public_methods("step")
class ObjectStep(TrainingStep):
    """A data-parallel training step on NNX objects; returned by `data_parallel`."""

    trained = "model"
    lost = "the model", "create it again, or use donate=False"
    owned = False

    def __init__(self, loss: Callable[..., Any], options: Options):
        super().__init__(loss, options)
        self._kinds: dict[Any, Kind] = {}

    def __call__(
        self, model: Any, optimizer: Any, batch: Any, *, mesh: MeshLike | None = None
    ) -> dict[str, jax.Array]:
        """Run one step.

        Args:
            model: An NNX module, updated in place.
            optimizer: Its `nnx.Optimizer`, updated in place.
            batch: A pytree of arrays of one length.
            mesh: Trace the step for this mesh instead, uncompiled: `sw.check`, `sw.explain` and
                `sw.simulate` pass it.
        """
        kind, variables = self._flatten(model, optimizer)
        new, metrics = self._advance(kind, [part.arrays for part in variables], batch, mesh)
        for part, values in zip(variables, new, strict=True):
            part.write(values)
        return metrics

    def lower(self, model: Any, optimizer: Any, batch: Any) -> jax.stages.Lowered:
        """Return the step lowered for these arguments: for its text, its memory and its cost."""
        kind, variables = self._flatten(model, optimizer)
        return self._lower(kind, [part.arrays for part in variables], batch)

    def _flatten(self, model: Any, optimizer: Any) -> tuple[Kind, tuple[Variables, ...]]:
        """Return the structure, and its variables: trained, other, of the optimizer, random
        streams."""
        _check_types(model, optimizer)
        graph, params, rest, streams = nnx.split(model, optimizer.wrt, _NOT_RNG, ...)
        optimizer_graph, state = nnx.split(optimizer)
        variables = (
            Variables(model, params),
            Variables(model, rest),
            Variables(optimizer, state),
            Variables(model, streams),
        )
        shapes = tuple(leaf.shape for part in variables[::2] for leaf in part.arrays)
        key = graph, optimizer_graph, shapes, tuple(part.values for part in variables)
        kind = self._kinds.get(key)
        if kind is None:
            with no_mesh():
                _check_match(optimizer, params)
            kind = self._kinds[key] = Kind(graph, optimizer_graph, variables)
        return kind, variables

    def advance(self, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Run one step, as `fit` calls it: the state is the pair of model and optimizer."""
        model, optimizer = _pair(state)
        return state, self(model, optimizer, batch)

    def arrays(self, state: Any) -> Any:
        """Return the arrays of a state, for a checkpoint."""
        return nnx.state(state)

    def optimizer_kinds(self, state: Any) -> list[str]:
        """Return the names of the parts of the optimizer's state, for a checkpoint."""
        return kinds_of(getattr(_pair(state)[1], "opt_state", None))

    def restore(self, state: Any, arrays: Any) -> Any:
        """Return the state with the arrays of a checkpoint in it."""
        nnx.update(state, self._place(arrays))
        return state

    def _program(
        self,
        layout: BatchLayout,
        padded: bool,
        kind: Kind,
        arrays: list[list[Any]],
        batch: Any,
        count: Any,
    ) -> tuple[list[list[Any]], dict[str, Any]]:
        params, rest, state, keys = kind.states(*arrays)
        # Copies, since an update in place would change the inputs of the step too.
        optimizer = nnx.merge(kind.optimizer, state, copy=True)
        loss = self._call_loss(kind.model, optimizer.wrt)
        objective = Objective(loss, self._options.has_aux, self._options.statistics)
        others = {"model": rest, "rngs": keys}
        key = self._options.step_key(optimizer.step[...])
        reduced = reduce_gradients(
            objective, layout, params, others, batch, count, key, padded=padded
        )
        rest_after = reduced.state["model"]
        model = nnx.merge(kind.model, params, rest_after, keys, copy=True)
        update = partial(optimizer.update, model, reduced.grads)
        apply_optimizer(optimizer.tx, optimizer.opt_state, reduced, update)
        new = (nnx.state(model, optimizer.wrt), rest_after, nnx.state(optimizer))
        new = choose(reduced, new, (params, rest, state))
        return kind.flat(*new, _advanced(keys)), self._metrics(reduced, new[0])

    def _call_loss(self, graph: Any, wrt: Any) -> Callable[..., Any]:
        def loss(params: Any, state: Any, batch: Any, place: BatchPart) -> Any:
            streams = _split(state["rngs"], place)
            model = nnx.merge(graph, params, state["model"], streams, copy=True)
            output = self._loss(model, batch, *self._options.keys(place))
            new_graph, _, new, _ = nnx.split(model, wrt, _NOT_RNG, ...)
            if new_graph != graph:
                raise _restructured()
            return output, {**state, "model": new}

        return loss


_NOT_RNG = nnx.Not(nnx.RngState)


def _split(streams: Any, place: BatchPart) -> Any:
    """Return the random streams for one part of the batch, each with a different key."""

    def split(key: Any, count: Any) -> Any:
        return jax.random.fold_in(jax.random.fold_in(key, count), place.part)

    flat = dict(nnx.to_flat_state(streams))
    new = {}
    for path, variable in flat.items():
        if isinstance(variable, nnx.RngKey):
            split_all = split
            for _ in range(variable[...].ndim):
                split_all = jax.vmap(split_all)
            value = split_all(variable[...], flat[(*path[:-1], "count")][...])
        else:
            value = jnp.zeros_like(variable[...])
        new[path] = variable.replace(value)
    return nnx.from_flat_state(new)


def _advanced(streams: Any) -> Any:
    """Return the streams after one key was drawn from each."""
    return jax.tree.map(
        lambda v: v.replace(v[...] + 1) if isinstance(v, nnx.RngCount) else v,
        streams,
        is_leaf=lambda x: isinstance(x, nnx.Variable),
    )


def _pair(state: Any) -> tuple[Any, Any]:
    """Return the model and the optimizer that `fit` was given."""
    if isinstance(state, tuple) and len(state) == 2:
        return state
    raise ArgumentError(
        f"state is {a_type(state)}",
        where="sw.fit",
        rule="For NNX the state is the pair of model and optimizer.",
        remedy="sw.fit(step, (model, optimizer), batches, steps=...)",
    )


def _check_types(model: Any, optimizer: Any) -> None:
    if not isinstance(model, nnx.Module | nnx.Pytree):
        raise ArgumentError(
            f"model is {a_type(model)}",
            where="a data-parallel step",
            rule="The step of sw.nnx.data_parallel takes an NNX model, its optimizer and a batch.",
            remedy="step(model, optimizer, batch); for plain params: sw.data_parallel.",
        )
    if not isinstance(optimizer, nnx.Optimizer) or hasattr(optimizer, "model"):
        raise ArgumentError(
            f"optimizer is {a_type(optimizer)}",
            where="a data-parallel step",
            rule="The optimizer is created once, from the model and a filter of what to train.",
            remedy="optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)",
        )


def _check_match(optimizer: Any, params: Any) -> None:
    if not jax.tree.leaves(params):
        raise ShardingError(
            f"wrt={optimizer.wrt} selects no variable of the model",
            where="the optimizer",
            rule="wrt selects what is trained.",
            remedy="nnx.Optimizer(model, tx, wrt=nnx.Param)",
        )
    refuse_integers(params, f"the variables that wrt={optimizer.wrt} selects", "wrt=nnx.Param")
    expected = jax.eval_shape(lambda p: optimizer.tx.init(nnx.as_pure(p)), params)
    needed = [(x.shape, x.dtype) for x in jax.tree.leaves(expected)]
    actual = [(x.shape, x.dtype) for x in jax.tree.leaves(nnx.as_pure(optimizer.opt_state))]
    if needed != actual:
        mismatches = [(w, h) for w, h in zip(needed, actual, strict=False) if w != h]
        detail = (
            f"an array of {list(mismatches[0][1][0])} where this model needs "
            f"{list(mismatches[0][0][0])}"
            if mismatches
            else f"{len(actual)} arrays where this model needs {len(needed)}"
        )
        raise ShardingError(
            f"it was built for another model: its state has {detail}",
            where="the optimizer",
            rule="An optimizer keeps state for each parameter of the model it was built with.",
            remedy="optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param), once, with this model",
        )


def _restructured() -> ShardingError:
    return ShardingError(
        "it changed the structure of the model",
        where="the loss",
        rule="A loss may change values in a model, not add or remove variables or settings: "
        "the next step would be another program.",
        remedy="remove sown values before it returns, nnx.pop(model, nnx.Intermediate); call "
        "model.train() before the first step.",
    )
