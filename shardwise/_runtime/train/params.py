"""`data_parallel` for plain params and for Linen variables, with optax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._base.calls import DEVICES, public, public_methods
from ..._base.errors import ArgumentError, ShardingError, a_type, require
from ..._mesh import MeshLike
from .step.gradient import reduce_gradients
from .step.layout import BatchLayout
from .step.losses import Objective
from .step.optimizers import apply_optimizer
from .step.part import BatchPart
from .step.placement import copied, no_mesh, on_mesh
from .step.runner import Options, TrainingStep, choose
from .step.state import TrainState, kinds_of
from .step.statistics import shapes_of
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
    options = Options(
        mesh, axis, accumulate, has_aux, rng, seed, statistics, norms, donate, at_once, feed
    )
    return DataParallel(loss, optimizer, options, tuple(names))


@public_methods("step")
class DataParallel(TrainingStep):
    """A data-parallel training step; returned by `data_parallel`."""

    trained = "params"
    lost = "the state", "continue with the state that the last step returned"
    owned = True

    def __init__(
        self,
        loss: Callable[..., Any],
        optimizer: optax.GradientTransformation,
        options: Options,
        mutable: tuple[str, ...],
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
        super().__init__(loss, options)
        self._optimizer, self._mutable = optimizer, mutable
        self._structures: set[Any] = set()  # of states that belong to the optimizer
        self._objective = Objective(self._call_loss, options.has_aux, options.statistics)

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
            params, collections = self._place(copied((params, collections)))
        with on_mesh(self.mesh):
            opt_state = self._place(jax.jit(self._optimizer.init)(params))
            return TrainState(params, opt_state, self._place(jnp.int32(0)), collections)

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
        self._check_state(state)
        return self._advance(None, state, batch, mesh)

    def _check_state(self, state: TrainState) -> None:
        """Raise for a state of another optimizer."""
        structure = jax.tree.structure(state)
        if structure in self._structures:
            return
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
        self._structures.add(structure)

    def lower(self, state: TrainState, batch: Any) -> jax.stages.Lowered:
        """Return the step lowered for these arguments: for its text, its memory and its cost.

        Args:
            state: A state, or its shapes: `jax.eval_shape(step.init, params)`.
            batch: A batch, or its shapes.
        """
        self._check_state(state)
        return self._lower(None, state, batch)

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
        return self._place(arrays)

    def _program(
        self,
        layout: BatchLayout,
        padded: bool,
        kind: None,
        arrays: TrainState,
        batch: Any,
        count: Any,
    ) -> tuple[TrainState, dict[str, Any]]:
        import optax

        params, opt_state, collections = old = arrays.params, arrays.opt_state, arrays.collections
        key = self._options.step_key(arrays.step)
        reduced = reduce_gradients(
            self._objective, layout, params, collections, batch, count, key, padded=padded
        )
        update = partial(self._optimizer.update, reduced.grads, opt_state, params)
        updates, opt_state = apply_optimizer(self._optimizer, opt_state, reduced, update)
        new = optax.apply_updates(params, updates), opt_state, reduced.state
        params, opt_state, collections = choose(reduced, new, old)
        state = TrainState(params, opt_state, arrays.step + 1, collections)
        return state, self._metrics(reduced, params)

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
