"""What the steps for params and for NNX share: options, random keys, the compiled program.

`params.py` and `nnx.py` are adapters: they split a state into arrays and a hashable structure, and
write what a step does to it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...._base.errors import (
    ArgumentError,
    ShardingError,
)
from ...._jax.failures import is_deleted
from ...._mesh import MeshLike, check_at_once
from ...hosts import others
from .feed import Feed
from .gradient import Reduced
from .layout import BatchLayout, count_rows, fill_up, lay_out, to_device_dtypes
from .losses import accumulator
from .part import BatchPart
from .placement import Outputs, no_mesh, put, put_rows, refuse_deleted, without_duplicates

AHEAD = 8
"""How many steps may be queued on CPU devices that share a process.

With more than 32, XLA can start a step on the thread that an earlier one needs, and both deadlock.
"""


@dataclass(frozen=True)
class Options:
    """The options of a step; see `data_parallel`."""

    mesh: MeshLike | None
    axis: str | None
    accumulate: int
    has_aux: bool
    rng: str | None
    seed: Any
    statistics: str
    norms: bool
    donate: bool
    at_once: int | str
    feed: str | None

    def __post_init__(self) -> None:
        _require_choice(
            "feed",
            self.feed,
            (None, "own", "whole"),
            rule="Each process passes its 'own' rows, or all pass the same 'whole' batch.",
            remedy="feed='own'",
        )
        _require_choice(
            "rng",
            self.rng,
            (None, "shard", "example"),
            rule="A loss gets no key (None), one per 'shard' or one per 'example'.",
            remedy="rng='example' makes the result independent of the number of devices.",
        )
        _require_choice(
            "statistics",
            self.statistics,
            ("batch", "shard"),
            rule="Statistics are those of the whole 'batch', or of each 'shard'.",
            remedy="statistics='batch'",
        )
        check_at_once(self.at_once, "argument 'at_once'")
        for name in ("has_aux", "norms", "donate"):
            if not isinstance(getattr(self, name), bool | int | np.bool_):
                raise ArgumentError(
                    f"{name} is {getattr(self, name)!r}",
                    where=f"argument {name!r}",
                    rule="It is True or False.",
                    remedy=f"{name}=True",
                )
        if not (_is_number(self.seed) or _is_single_key(self.seed)):
            raise ShardingError(
                f"seed is {self.seed!r}",
                where="argument 'seed'",
                rule="It is an integer or a single key.",
                remedy="seed=0, or seed=jax.random.key(0)",
            )

    def layout(self, mesh: MeshLike | None = None) -> BatchLayout:
        """Return the layout on a mesh, by default the step's own."""
        return lay_out(self.mesh if mesh is None else mesh, self.axis, self.accumulate)

    def step_key(self, step: Any) -> Any:
        """Return the key of one step."""
        seed = self.seed
        key = jax.random.key(seed) if _is_number(seed) else jnp.asarray(seed)
        return jax.random.fold_in(key, step)

    def keys(self, place: BatchPart) -> tuple[Any, ...]:
        """Return the arguments of the loss beside params and batch: the key, if it takes one."""
        if self.rng is None:
            return ()
        return (place.shard_key() if self.rng == "shard" else place.example_keys(),)


def _require_choice(
    name: str, value: Any, choices: tuple[str | None, ...], *, rule: str, remedy: str
) -> None:
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ShardingError(
            f"{name} is {value!r}", where=f"argument {name!r}", rule=rule, remedy=remedy
        )


def _share_a_process(mesh: Any) -> bool:
    """Return whether several devices of a mesh are CPU devices of one process."""
    devices = mesh.local_devices if isinstance(mesh, Mesh) else ()
    return len(devices) > 1 and devices[0].platform == "cpu"


def _is_number(seed: Any) -> bool:
    dtype = getattr(seed, "dtype", np.dtype(int))
    integral = any(jnp.issubdtype(dtype, kind) for kind in (np.integer, np.bool_))
    return hasattr(seed, "__index__") and not getattr(seed, "ndim", 0) and integral


def _is_single_key(seed: Any) -> bool:
    """Return whether this is one key, typed or raw."""
    if not isinstance(seed, jax.Array | np.ndarray):
        return False
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return not seed.ndim
    if seed.dtype != np.uint32:
        return False
    try:
        return not jax.random.wrap_key_data(jnp.asarray(seed)).ndim
    except (TypeError, ValueError):  # of another length
        return False


class TrainingStep:
    """A data-parallel training step: its program, compiled, on its mesh, with its state donated.

    Args:
        loss: The loss.
        options: The options of the step.

    Attributes:
        trained: The first argument of the loss, for messages.
        lost: Subject and remedy of the error about a state whose memory was donated.
        owned: Whether the arrays of a state belong to the step; otherwise the caller may also use
            them, and they are copied before they are donated.
    """

    trained: ClassVar[str]
    lost: ClassVar[tuple[str, str]]
    owned: ClassVar[bool]

    def __init__(self, loss: Callable[..., Any], options: Options) -> None:
        self.__name__ = f"data_parallel({getattr(loss, '__name__', type(loss).__name__)})"
        _check_loss(loss, options.rng, self.trained)
        self._loss, self._options, self._outputs = loss, options, Outputs()
        self._layout = options.layout()
        self._feed = Feed(self._layout, options.feed)
        mesh = self._layout.mesh
        shardings: dict[str, Any] = {}
        if isinstance(mesh, Mesh) and not self._feed.shared:
            rows = NamedSharding(mesh, P(self._layout.axis))
            shardings = {"in_shardings": (None, rows, None)}
        self._compiled = jax.jit(
            self._run,
            static_argnums=(0, 1),
            donate_argnums=2 if options.donate else (),
            **shardings,
        )
        self._waiting: deque[jax.Array] | None = deque() if _share_a_process(mesh) else None

    def _program(
        self, layout: BatchLayout, padded: bool, kind: Any, arrays: Any, batch: Any, count: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the new arrays, in the structure of the old ones, and the metrics.

        Args:
            layout: The mesh and how the rows are split over it.
            padded: Whether some rows may not be real.
            kind: The structure of the state.
            arrays: The arrays of the state.
            batch: The rows.
            count: How many of the rows are real.
        """
        raise NotImplementedError

    def _advance(
        self, kind: Any, arrays: Any, batch: Any, mesh: MeshLike | None
    ) -> tuple[Any, dict[str, Any]]:
        """Run a step.

        Args:
            kind: The structure of the state, hashable.
            arrays: The arrays of the state, which are donated.
            batch: The rows.
            mesh: Another mesh to trace the program for; it is not compiled.
        """
        leaves = jax.tree.leaves(arrays)
        settled = self._outputs.are(leaves)
        if not settled:
            refuse_deleted(leaves, *self.lost)
        rows = count_rows(batch)
        batch = to_device_dtypes(batch)
        if mesh is not None:
            layout = self._options.layout(mesh)
            batch, padded = fill_up(batch, rows, layout.parts)
            return self._program(layout, padded, kind, arrays, batch, jnp.int32(rows))
        with no_mesh():
            inputs = self._placed(kind, arrays, batch, rows, settled)
            try:
                # Counted to detect a process that ends after fewer steps.
                with others.news().step() if self.shared else contextlib.nullcontext():
                    new, metrics = self._compiled(*inputs)
            except (RuntimeError, ValueError) as error:
                if settled and is_deleted(error):  # one array, by the caller
                    refuse_deleted(leaves, *self.lost)
                raise
        self._outputs.remember(jax.tree.leaves(new))
        if self._waiting is not None:
            self._waiting.append(metrics["updated"])
            if len(self._waiting) > AHEAD:
                jax.block_until_ready(self._waiting.popleft())
        return new, metrics

    def _lower(self, kind: Any, arrays: Any, batch: Any) -> jax.stages.Lowered:
        """Return the step lowered for these arguments, or their shapes."""
        rows = count_rows(batch)
        batch = to_device_dtypes(batch)
        with no_mesh():
            return self._compiled.lower(*self._placed(kind, arrays, batch, rows))

    def _placed(
        self, kind: Any, arrays: Any, batch: Any, rows: int, settled: bool = False
    ) -> tuple[Any, ...]:
        """Return the arguments of the compiled program, on its devices."""
        if not settled:
            if self._options.donate and not self.owned:
                arrays = self._outputs.donatable(arrays)
            arrays = self._place(arrays)
            arrays = without_duplicates(arrays) if self._options.donate else arrays
        layout = self._layout
        if self.shared:

            def fits(padded: bool, batch: Any, count: Any) -> None:
                jax.eval_shape(
                    lambda *args: self._program(layout, padded, kind, *args), arrays, batch, count
                )

            batch, count, padded = self._feed(batch, rows, fits)
        else:
            batch, padded = fill_up(batch, rows, layout.parts)
            batch = put_rows(batch, layout.mesh, P(layout.axis))
            count = rows if padded else None  # one number less to transfer
        return padded, kind, arrays, batch, count

    def _place(self, arrays: Any) -> Any:
        """Put arrays on every device of the mesh, unless they are there already."""
        return put(arrays, self._layout.mesh, P())

    def _run(self, padded: bool, kind: Any, arrays: Any, batch: Any, count: Any) -> Any:
        if count is None:
            count = jnp.int32(count_rows(batch))

        def run(arrays: Any, batch: Any, count: Any) -> Any:
            return self._program(self._layout, padded, kind, arrays, batch, count)

        if self._layout.virtual:
            run = _simulated(run, self._options.at_once)
        return run(arrays, batch, count)

    def _metrics(self, reduced: Reduced, params: Any) -> dict[str, Any]:
        """Return the metrics of a step."""
        metrics = dict(reduced.metrics)
        metrics["updated"] = metrics["weight"] != 0
        if self._options.norms:
            import optax

            metrics["grad_norm"] = optax.tree.norm(_widened(reduced.grads))
            metrics["param_norm"] = optax.tree.norm(_widened(params))
        return metrics

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh it runs on."""
        return self._layout.mesh

    @property
    def shared(self) -> bool:
        """Whether it runs on the devices of several processes."""
        return self._feed.shared

    @property
    def feed(self) -> str | None:
        """What each process passes as its batch; None if there is only one process."""
        return self._feed.kind if self.shared else None

    def __repr__(self) -> str:
        layout = self._layout
        sizes = ", ".join(f"{axis}: {size}" for axis, size in layout.mesh.shape.items())
        rows = f"rows along {layout.axis!r}, accumulate={layout.accumulate}"
        return f"<step {self.__name__} on {{{sizes}}}, {rows}>"


def _simulated(f: Callable[..., Any], at_once: int | str) -> Callable[..., Any]:
    """Return a function simulated on one device, with any pytrees as arguments."""
    from ...._engine.simulate import simulate

    def call(*args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        out_tree: Any = None

        def flat_f(*flat: Any) -> list[Any]:
            nonlocal out_tree
            leaves, out_tree = jax.tree.flatten(f(*jax.tree.unflatten(tree, flat)))
            return leaves

        leaves = simulate(flat_f, at_once=at_once)(*flat)
        return jax.tree.unflatten(out_tree, leaves)

    return call


def _check_loss(loss: Callable[..., Any], rng: str | None, trained: str) -> None:
    """Raise if a loss cannot be called with the arguments of the step."""
    count = 2 if rng is None else 3
    try:
        inspect.signature(loss).bind(*[None] * count)
    except ValueError:  # its signature is not known
        return
    except TypeError as error:
        arguments = f"({trained}, batch)" if rng is None else f"({trained}, batch, rng)"
        raise ShardingError(
            f"it cannot be called with {arguments}: {error}",
            where="the loss",
            rule="A loss takes what is trained and the rows, and with rng= a key as well.",
            remedy="rng='shard' or rng='example' if it takes a key; functools.partial for other "
            "arguments.",
        ) from None


def choose(reduced: Reduced, new: Any, old: Any) -> Any:
    """Return the updated state, or the old one if the weights add up to zero."""
    if reduced.certain:
        return new
    updated = reduced.metrics["weight"] != 0
    return jax.tree.map(lambda a, b: jnp.where(updated, a, b), new, old)


def _widened(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(accumulator(x.dtype)), tree)
