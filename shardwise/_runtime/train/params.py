"""`data_parallel` for plain params and for Linen variables, with optax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._base.calls import DEVICES, public, public_methods
from ..._base.errors import ArgumentError, ShardingError, a_type, require
from ..._mesh import MeshLike
from .step.gradient import Objective, reduce_gradients
from .step.layout import BatchLayout
from .step.optimizers import extra_arguments, updating
from .step.part import BatchPart
from .step.placement import copied, no_mesh, on_mesh
from .step.runner import (
    Options,
    Runner,
    TrainingStep,
    check_loss,
    choose,
    report,
    step_name,
)
from .step.state import TrainState, kinds_of
from .step.statistics import Statistics, shapes_of
from .step.validate import refuse_boxes, refuse_integers, refuse_no_arrays, refuse_objects

if TYPE_CHECKING:
    import optax


_GOES_TO_THE_STEP = (
    "params and batches go to the step: step = sw.data_parallel(loss, optimizer, mesh=mesh), "
    "state = step.init(params), state, metrics = step(state, batch)"
)


@public(
    "sw.data_parallel",
    devices=DEVICES,
    more=_GOES_TO_THE_STEP,
    params=_GOES_TO_THE_STEP,
    batch=_GOES_TO_THE_STEP,
    learning_rate="the optimizer has it: optax.adamw(1e-3).",
)
def data_parallel(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    *,
    mesh: MeshLike | None = None,
    axis: str | None = None,
    accumulate: int = 1,
    has_aux: bool = False,
    mutable: str | Sequence[str] = (),
    rng: str | None = None,
    seed: Any = 0,
    statistics: str = "batch",
    norms: bool = False,
    donate: bool = True,
    at_once: int | str = 1,
    feed: str | None = None,
) -> DataParallel:
    """Return a training step that equals one-device training on the whole batch, on any mesh.

    The gradient is the weighted sum of gradients divided by the sum of weights, both over all
    devices, and is applied once. A batch may have any number of rows, also fewer than there are
    devices.

    Args:
        loss: `loss(params, batch)`, or `loss(params, batch, rng)` where `rng` is set. It returns
            losses `[rows]`, or `[rows, ...]` such as one per token; `(losses, weights)`; or a
            scalar, the mean over its rows, for batches that divide evenly. It is called with the
            rows of one device, and may use collectives over the data axis.
        optimizer: An optax transformation, such as `optax.adamw(1e-3)`.
        mesh: A real mesh, or a virtual one (`sw.mesh(data=8)`, `{"data": 8}`), on which the step
            accumulates in the memory of one shard. By default, all devices of all processes.
        axis: The mesh axis that the rows are split over, by default the first. Along other axes
            everything is replicated.
        accumulate: Split each device's rows into this many parts, computed one after another.
        has_aux: The loss returns a pair: losses as above, and a dict of further metrics, each
            `[rows]`, `(values, weights)` or a scalar mean.
        mutable: Names of Linen collections that the loss updates, such as `"batch_stats"`. The
            loss then returns a pair, as `Module.apply` with `mutable=` does: its output, and a dict
            of the updated collections.
        rng: `"shard"` gives the loss one key per step and part of the batch; `"example"` an array
            of keys, one per row, which do not depend on the number of devices.
        seed: An integer or a key that the keys are derived from.
        statistics: `"batch"`: state that the loss updates must be that of the whole batch,
            otherwise the step raises an error. `"shard"`: each device may compute its own; they are
            averaged.
        norms: Report `grad_norm` and `param_norm` among the metrics.
        donate: Donate the memory of the state to the new state. The old state cannot be used again.
        at_once: On a virtual mesh, how many shards to compute at once; see `simulate`.
        feed: On a mesh over several processes, what each process passes: `"own"`, rows of its own,
            which are joined in the order of the processes; or `"whole"`, the same batch on all.

    Returns:
        A step. `step.init(params)` returns a state; `step(state, batch)` returns the next state and
        the metrics: `loss`, the sum of `weight`, `updated` (false if the weights add up to zero:
        the state is then unchanged), and those that the loss returns.

    Raises:
        ShardingError: When the step is called: the batch, the loss or the mesh does not fit.

    Example:
        ```python
        import jax, jax.numpy as jnp, optax
        import shardwise as sw

        def loss(params, batch):
            return (batch["x"] @ params["w"] - batch["y"]) ** 2  # one per row

        step = sw.data_parallel(loss, optax.sgd(0.1), mesh=sw.mesh(data=8))
        state = step.init({"w": jnp.zeros(3)})
        batch = {"x": jnp.ones((20, 3)), "y": jnp.ones(20)}
        state, metrics = step(state, batch)
        ```
    """
    names = (mutable,) if isinstance(mutable, str) else () if mutable is None else mutable
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"mutable is {mutable!r}",
            where="sw.data_parallel",
            rule="It names collections of Linen variables that the loss updates.",
            remedy='mutable="batch_stats"',
        )
    options = Options(mesh, axis, accumulate, has_aux, rng, seed, norms, donate, at_once, feed)
    return DataParallel(loss, optimizer, options, tuple(names), Statistics(statistics))


class _Kind:
    """The pytree structure of a state, for which a step is compiled; compared by identity.

    Attributes:
        step: The step.
        structure: The structure of the input state.
        after: The structure of the output state, known once the step was traced.
        stable: Whether the two are equal, as for nearly every optimizer.
    """

    def __init__(self, step: DataParallel, structure: Any) -> None:
        self.step, self.structure = step, structure
        self.set_output(structure)

    def set_output(self, after: Any) -> None:
        """Record the structure of the output state."""
        self.after, self.stable = after, after == self.structure


@public_methods("step")
class DataParallel(TrainingStep):
    """A data-parallel training step; returned by `data_parallel`."""

    def __init__(
        self,
        loss: Callable[..., Any],
        optimizer: optax.GradientTransformation,
        options: Options,
        mutable: tuple[str, ...],
        statistics: Statistics,
    ):
        require("optax", "sw.data_parallel")
        if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
            raise ArgumentError(
                f"optimizer is {a_type(optimizer)}",
                where="sw.data_parallel",
                rule="It takes an optax transformation. An nnx.Optimizer goes to the step of "
                "sw.nnx.data_parallel instead.",
                remedy="sw.data_parallel(loss, optax.adamw(1e-3))",
            )
        self.__name__ = step_name(loss)
        check_loss(loss, options.rng)
        self._loss, self._mutable, self._options = loss, mutable, options
        self._optimizer = optimizer
        self._kinds: dict[Any, _Kind] = {}
        self._objective = Objective(self._call_loss, options.has_aux, statistics)
        deletion = "the state", "continue with the state that the last step returned"
        self._runner = Runner(self._program, options, deletion)

    def init(self, params: Any) -> TrainState:
        """Return the initial state.

        Args:
            params: A pytree of floating-point arrays; or the variables of a Linen module, a
                mapping with `"params"`, of which those are trained. They are copied.
        """
        refuse_objects(params)
        refuse_boxes(params)
        collections = None
        if isinstance(params, Mapping) and "params" in params:
            collections = {name: value for name, value in params.items() if name != "params"}
            params = params["params"]
        missing = sorted(set(self._mutable) - set(collections or {}))
        if missing:
            raise ShardingError(
                f"there is no collection {missing[0]!r}, named in mutable, "
                f"but {sorted(collections or {})}",
                where="step.init",
                rule="mutable names collections of Linen variables that the loss updates.",
                remedy="step.init(model.init(key, x)), all of what init returned.",
            )
        refuse_integers(
            params, "params", "close over constants in the loss, or keep them in the batch."
        )
        refuse_no_arrays(collections)
        with no_mesh():
            params, collections = self._runner.place(copied((params, collections)))
        with on_mesh(self.mesh):
            opt_state = self._runner.place(jax.jit(self._optimizer.init)(params))
            return TrainState(params, opt_state, self._runner.place(jnp.int32(0)), collections)

    def __call__(
        self, state: TrainState, batch: Any, *, mesh: MeshLike | None = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Run one step.

        Args:
            state: From `init`, or from the step before.
            batch: A pytree of arrays of one length.
            mesh: Trace the step for this mesh instead, uncompiled: `sw.check`, `sw.explain` and
                `sw.simulate` pass it.
        """
        if not isinstance(state, TrainState):
            raise ArgumentError(
                f"state is {a_type(state)}",
                where="a data-parallel step",
                rule="A step takes the state that step.init or the previous step returned.",
                remedy="state = step.init(params)",
            )
        leaves, structure = jax.tree.flatten(state)
        recorded = state.recall(leaves)
        if recorded is not None and recorded.step is self and recorded.structure == structure:
            kind, settled = recorded, True
        else:
            kind, settled = self._kind(state, structure), False
        new, metrics = self._runner(kind, leaves, (), batch, mesh, settled)
        new_state: TrainState = jax.tree.unflatten(kind.after, new)
        if mesh is None and kind.stable:
            new_state.remember(kind, new)
        return new_state, metrics

    def _kind(self, state: TrainState, structure: Any) -> _Kind:
        """Return the structure of a state; raise for a state of another optimizer."""
        kind = self._kinds.get(structure)
        if kind is None:
            with no_mesh():
                shapes = shapes_of(state.params)
                expected = jax.tree.structure(jax.eval_shape(self._optimizer.init, shapes))
            if jax.tree.structure(state.opt_state) != expected:
                raise ShardingError(
                    "its opt_state belongs to another optimizer",
                    where="the state",
                    rule="A state belongs to the step whose init returned it.",
                    remedy="state = step.init(state.variables) restarts with these params.",
                )
            kind = self._kinds[structure] = _Kind(self, structure)
        return kind

    def lower(self, state: TrainState, batch: Any) -> jax.stages.Lowered:
        """Return the step lowered for these arguments: for its text, its memory and its cost.

        Args:
            state: A state, or its shapes: `jax.eval_shape(step.init, params)`.
            batch: A batch, or its shapes.
        """
        leaves, structure = jax.tree.flatten(state)
        return self._runner.lower(self._kind(state, structure), leaves, (), batch)

    def advance(self, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Run one step, as `fit` calls it."""
        return self(state, batch)

    def arrays(self, state: Any) -> Any:
        """Return the arrays of a state, for a checkpoint."""
        return state

    def optimizer_kinds(self, state: Any) -> list[str]:
        """Return the names of the parts of the optimizer's state, for a checkpoint."""
        return kinds_of(getattr(state, "opt_state", None), getattr(state, "params", None))

    def restore(self, state: Any, arrays: Any) -> Any:
        """Return the state with the arrays of a checkpoint in it."""
        return self._runner.place(arrays)

    def _program(
        self,
        layout: BatchLayout,
        padded: bool,
        kind: _Kind,
        leaves: list[Any],
        _streams: tuple[()],
        batch: Any,
        count: Any,
    ) -> tuple[list[Any], dict[str, Any]]:
        state: TrainState = jax.tree.unflatten(kind.structure, leaves)
        reduced = reduce_gradients(
            self._objective,
            layout,
            state.params,
            state.collections,
            batch,
            count,
            self._options.step_key(state.step),
            padded=padded,
        )
        extra = extra_arguments(self._optimizer, reduced)
        with updating(state.opt_state):
            updates, opt_state = self._optimizer.update(
                reduced.grads, state.opt_state, state.params, **extra
            )
        from optax import apply_updates

        params = apply_updates(state.params, updates)
        new = choose(
            reduced,
            (params, opt_state, reduced.state),
            (state.params, state.opt_state, state.collections),
        )
        params, opt_state, collections = new
        metrics = report(self._options, reduced, params)
        new = TrainState(params, opt_state, state.step + 1, collections)
        leaves, new_structure = jax.tree.flatten(new)
        kind.set_output(new_structure)
        return leaves, metrics

    def _call_loss(self, params: Any, collections: Any, batch: Any, place: BatchPart) -> Any:
        variables = TrainState(params, None, None, collections).variables
        output = self._loss(variables, batch, *self._options.keys(place))
        if not self._mutable:
            return output, collections
        if not (isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Mapping)):
            raise _no_updates(self._mutable)
        output, updates = output
        if set(updates) != set(self._mutable):
            raise _no_updates(self._mutable, sorted(updates))
        for name in self._mutable:
            _check_unchanged(name, collections[name], updates[name])
        return output, {**collections, **updates}


def _check_unchanged(name: str, old: Any, new: Any) -> None:
    """Raise if a collection has grown: the next step would need another program."""

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {
            jax.tree_util.keystr(p, simple=True, separator="."): jnp.shape(x) for p, x in leaves
        }

    old_shapes, new_shapes = shapes(old), shapes(new)
    if old_shapes != new_shapes:
        first = min(
            key for key in {*old_shapes, *new_shapes} if old_shapes.get(key) != new_shapes.get(key)
        )
        shape = [list(x[first]) if first in x else "not there" for x in (old_shapes, new_shapes)]
        raise ShardingError(
            f"{name}.{first} was {shape[0]} before it and is {shape[1]} after it",
            where="the loss",
            rule="A collection that a loss updates keeps its arrays and their shapes.",
            remedy="omit collections that are sown anew in every step from mutable and from the "
            "variables passed to step.init; return them as metrics, with has_aux=True.",
        )


def _no_updates(mutable: tuple[str, ...], names: list[str] | None = None) -> ShardingError:
    problem = "it returned no updated collections" if names is None else f"it returned {names}"
    return ShardingError(
        f"{problem}; mutable names {list(mutable)}",
        where="the loss",
        rule="With mutable= a loss returns a pair: losses, and a dict of those collections.",
        remedy="y, updates = model.apply(variables, x, mutable=[...]); return losses, updates",
    )
