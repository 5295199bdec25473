"""What the steps for plain params and for NNX have in common: options, randomness, running."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...._base.errors import (
    ArgumentError,
    ShardingError,
    explain_error,
    text_of,
)
from ...._mesh import MeshLike, check_at_once
from ...hosts import others
from .feed import Feed, check_feed
from .gradient import Reduced
from .layout import Layout, as_given, count_rows, fill_up, lay_out
from .losses import accumulator
from .part import Place
from .placement import apart, no_mesh, put, put_rows, refuse_deleted

RNG = (None, "shard", "example")

AHEAD = 8
"""How many steps may wait for CPU devices that share a process.

With more than 32, XLA can start one on the thread that an earlier one needs: both wait for ever.
"""


@dataclass(frozen=True)
class Options:
    """How a step is to run; see `data_parallel` for what each means."""

    mesh: MeshLike | None
    axis: str | None
    accumulate: int
    has_aux: bool
    rng: str | None
    seed: Any
    norms: bool
    donate: bool
    at_once: int | str
    feed: str | None = None

    def __post_init__(self) -> None:
        check_feed(self.feed)
        check_at_once(self.at_once, "argument 'at_once'")
        for name in ("has_aux", "norms", "donate"):
            if not isinstance(getattr(self, name), bool | int | np.bool_):
                raise ArgumentError(
                    explain_error(
                        f"{name} is {getattr(self, name)!r}",
                        where=f"argument {name!r}",
                        rule="It is True or False.",
                        remedy=f"{name}=True",
                    )
                )
        if not (self.rng is None or isinstance(self.rng, str)) or self.rng not in RNG:
            raise ShardingError(
                explain_error(
                    f"rng is {self.rng!r}",
                    where="argument 'rng'",
                    rule="A loss is given no key (None), one per 'shard' or one per 'example'.",
                    remedy="rng='example' makes the result independent of the number of devices.",
                )
            )
        if not (_is_number(self.seed) or _is_one_key(self.seed)):
            raise ShardingError(
                explain_error(
                    f"seed is {self.seed!r}",
                    where="argument 'seed'",
                    rule="It is a whole number, or a key: one.",
                    remedy="seed=0, or seed=jax.random.key(0)",
                )
            )

    def layout(self, mesh: MeshLike | None = None) -> Layout:
        """The layout on the mesh given, or else on the step's own."""
        return lay_out(self.mesh if mesh is None else mesh, self.axis, self.accumulate)

    def step_key(self, step: Any) -> Any:
        """The key of one step."""
        seed = self.seed
        key = jax.random.key(seed) if _is_number(seed) else jnp.asarray(seed)
        return jax.random.fold_in(key, step)

    def keys(self, place: Place) -> tuple[Any, ...]:
        """The further argument of the loss, where it wants one."""
        if self.rng is None:
            return ()
        return (place.shard_key() if self.rng == "shard" else place.example_keys(),)


def _share_a_process(mesh: Any) -> bool:
    """Whether several of its devices are the CPU of one process."""
    devices = mesh.local_devices if isinstance(mesh, Mesh) else ()
    return len(devices) > 1 and devices[0].platform == "cpu"


def _is_number(seed: Any) -> bool:
    dtype = getattr(seed, "dtype", np.dtype(int))
    whole = any(jnp.issubdtype(dtype, kind) for kind in (np.integer, np.bool_))
    return hasattr(seed, "__index__") and not getattr(seed, "ndim", 0) and whole


def _is_one_key(seed: Any) -> bool:
    """Whether this is a key; one of the older kind is a few numbers."""
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


Program = Callable[..., Any]
"""`program(layout, padded, static, arrays, kept, batch, count)`, a function of the last four.

It returns a pair: the new arrays, in the structure of the old ones, and whatever else.
"""


class Runner:
    """Runs the program of a step: compiled, on the step's mesh, with its state donated.

    Args:
        program: What a step computes.
        options: How it is to run.
        lost: What it is and what to do, for a state whose memory was given away.
    """

    def __init__(self, program: Program, options: Options, lost: tuple[str, str]):
        self.program, self.options, self._lost = program, options, lost
        self.layout = options.layout()
        self._feed = Feed(self.layout, options.feed)
        self._parts = self.layout.parts
        self._rows = P(self.layout.axis)
        mesh = self.layout.mesh
        lies: dict[str, Any] = {}
        if isinstance(mesh, Mesh) and not self._feed.shared:
            lies = {"in_shardings": (None, None, NamedSharding(mesh, self._rows), None)}
        self._compiled = jax.jit(
            self._run, static_argnums=(0, 1), donate_argnums=2 if options.donate else (), **lies
        )
        self._waiting: deque[jax.Array] | None = deque() if _share_a_process(mesh) else None

    def __call__(
        self, static: Any, arrays: Any, kept: Any, batch: Any, mesh: Any, settled: bool = False
    ) -> Any:
        """Run a step.

        Args:
            static: What is no array, hashable.
            arrays: The state, whose memory the new one takes.
            kept: Arrays that stay the caller's.
            batch: The rows.
            mesh: Another mesh than the step's own, to write the program for: it is not compiled.
            settled: The arrays are those that a step gave, all of them and in their order.
        """
        if not settled:
            refuse_deleted(jax.tree.leaves(arrays), *self._lost)
        rows = count_rows(batch)
        batch = as_given(batch)
        if mesh is not None:
            layout = self.options.layout(mesh)
            batch, padded = fill_up(batch, rows, layout.parts)
            return self.program(layout, padded, static, arrays, kept, batch, jnp.int32(rows))
        with no_mesh():
            given = self._placed(static, arrays, kept, batch, rows, settled)
            try:
                # Counted: a process that ends after fewer steps is told to those that wait for it.
                with others.news().step() if self.shared else contextlib.nullcontext():
                    made = self._compiled(*given)
            except (RuntimeError, ValueError) as error:
                if settled and "deleted" in text_of(error):  # one of them, by somebody else
                    refuse_deleted(jax.tree.leaves(arrays), *self._lost)
                raise
        if self._waiting is not None:
            self._waiting.append(jax.tree.leaves(made[1])[-1])
            if len(self._waiting) > AHEAD:
                jax.block_until_ready(self._waiting.popleft())
        return made

    @property
    def shared(self) -> bool:
        """Whether it runs on the devices of several processes."""
        return self._feed.shared

    @property
    def feed(self) -> str | None:
        """What each process hands over; None if there is only one."""
        return self._feed.kind if self._feed.shared else None

    def lower(self, static: Any, arrays: Any, kept: Any, batch: Any) -> Any:
        """The step lowered for these arguments, or their shapes, as `jax.jit(f).lower` does."""
        rows = count_rows(batch)
        batch = as_given(batch)
        with no_mesh():
            return self._compiled.lower(*self._placed(static, arrays, kept, batch, rows))

    def _placed(
        self, static: Any, arrays: Any, kept: Any, batch: Any, rows: int, settled: bool = False
    ) -> tuple[Any, ...]:
        kept = self.place(kept) if kept else kept
        if not settled:
            arrays = self.place(arrays)
            arrays = apart(arrays) if self.options.donate else arrays
        if self._feed.shared:

            def fits(padded: bool, batch: Any, count: Any) -> None:
                jax.eval_shape(
                    lambda *args: self.program(self.layout, padded, static, *args),
                    arrays, kept, batch, count,
                )  # fmt: skip

            batch, count, padded = self._feed(batch, rows, fits)
        else:
            batch, padded = fill_up(batch, rows, self._parts)
            batch = put_rows(batch, self.layout.mesh, self._rows)
            count = rows if padded else None  # a number less to bring to the device
        return padded, static, arrays, kept, batch, count

    def place(self, arrays: Any) -> Any:
        """Put arrays on every device of the mesh, unless they are there already."""
        return put(arrays, self.layout.mesh, P())

    def _run(
        self, padded: bool, static: Any, arrays: Any, kept: Any, batch: Any, count: Any
    ) -> Any:
        if count is None:
            count = jnp.int32(count_rows(batch))

        def run(arrays: Any, kept: Any, batch: Any, count: Any) -> Any:
            return self.program(self.layout, padded, static, arrays, kept, batch, count)

        if self.layout.virtual:
            run = _simulated(run, self.options.at_once)
        return run(arrays, kept, batch, count)


def _simulated(f: Callable[..., Any], at_once: int | str) -> Callable[..., Any]:
    """A function on one device; NNX variables among its arguments are left to the caller."""
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


def step_name(loss: Callable[..., Any]) -> str:
    """How reports call the step."""
    return f"data_parallel({getattr(loss, '__name__', type(loss).__name__)})"


def described(name: str, layout: Layout) -> str:
    """A step in a line: what it does, on which mesh, along which axis."""
    sizes = ", ".join(f"{axis}: {size}" for axis, size in layout.mesh.shape.items())
    return (
        f"<step {name} on {{{sizes}}}, rows along {layout.axis!r}, accumulate={layout.accumulate}>"
    )


def check_loss(loss: Callable[..., Any], rng: str | None, trained: str = "params") -> None:
    """Refuse a loss that cannot be called with a key, or not without."""
    count = 2 if rng is None else 3
    try:
        inspect.signature(loss).bind(*[None] * count)
    except ValueError:  # a function that does not tell
        return
    except TypeError as error:
        given = f"({trained}, batch)" if rng is None else f"({trained}, batch, rng)"
        raise ShardingError(
            explain_error(
                f"it cannot be called with {given}: {error}",
                where="the loss",
                rule="A loss takes what is trained and the rows, and with rng= a key as well.",
                remedy="rng='shard' or rng='example' if it wants a key; "
                "functools.partial for what else it takes.",
            )
        ) from None


def choose(reduced: Reduced, new: Any, old: Any) -> Any:
    """The updated state, or the old one if the weights add up to zero."""
    if reduced.certain:
        return new
    updated = reduced.metrics["weight"] != 0
    return jax.tree.map(lambda a, b: jnp.where(updated, a, b), new, old)


def report(options: Options, reduced: Reduced, params: Any) -> dict[str, Any]:
    """The metrics of a step."""
    metrics = dict(reduced.metrics)
    metrics["updated"] = metrics["weight"] != 0
    if options.norms:
        import optax

        metrics["grad_norm"] = optax.tree.norm(_widened(reduced.grads))
        metrics["param_norm"] = optax.tree.norm(_widened(params))
    return metrics


def _widened(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(accumulator(x.dtype)), tree)
