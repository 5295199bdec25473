"""A program on one mesh: run once, or again with other roundings."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._doing import doing
from .._errors import noting
from .._jax.virtual import under
from .._lower import Pace, Value, Watch, explain_trouble, observe
from .._mesh import abstract
from .._program import Atom, Body, Op, Scan, Var, walk
from .._tracing import Traced, Tracing
from .compare import STILL, Movement, Tolerance, tolerance
from .options import words
from .ranges import are_vast, asks_for_nan, short_range, whole_numbers
from .relate import Held
from .rounding import decides, eps_of, shaken, terms
from .twins import comparable

ALL = Pace(1 << 30)
"""All shards at once: programs that are checked are small."""

SMALL = 1 << 27
"""Up to how many bytes of values it pays to compile quickly and run slowly."""

LIGHT = 1 << 24
"""Up to how many bytes of values a program may be run a hundred times."""

AS_WRITTEN: dict[str, Any] = {"xla_allow_excess_precision": False}
"""What has XLA leave out no cast that is undone, as it does for some devices."""

QUICKLY = AS_WRITTEN | {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""What has XLA compile for a CPU in half the time."""


class Run:
    """A function on one mesh: its program, and what it gives."""

    def __init__(self, tracing: Tracing, args: tuple[Any, ...], like: Run | None = None):
        """`like` is a run with other values: what was compiled for it serves again."""
        self.mesh, self.tracing = tracing.mesh, tracing
        doing(f"tracing {self.on}")
        with noting(f"tracing {self.on}"):
            self.traced: Traced = tracing(args, {})
        self.program = self.traced.program
        self.twins: dict[Var, Var] = {}
        """For values that are `beside` others, those on one device."""
        self.stuck_at: Op | None = None
        """Where devices wait for others that never come, once that was seen."""
        self.settled: frozenset[Op] = frozenset()
        """The casts that lose the same on every mesh, where that is known."""
        self._beside: dict[Var, tuple[Held, np.ndarray]] | None = None
        self._drawn: dict[int, int] = {}
        self._moves: dict[int, list[Movement]] = {}
        self._again = functools.cache(self._shaken)
        known = like._executables if like is not None and like.program is self.program else {}
        self._executables: dict[Any, Callable[..., Any]] = known

    def again(self, args: tuple[Any, ...]) -> Run:
        """The same with other values."""
        return Run(self.tracing, args, like=self)

    @property
    def on(self) -> str:
        """Where it runs, in words."""
        return "the reference" if self.mesh is None else f"on {words(abstract(self.mesh))}"

    @property
    def body(self) -> Body:
        """The operations."""
        return self.program.body

    @property
    def arguments(self) -> list[Var]:
        """The inputs that are arguments, and not what the program closes over."""
        return self.body.ins[len(self.body.ins) - len(self.traced.argument_paths) :]

    @property
    def paths(self) -> list[str]:
        """A name for each result."""
        return self.traced.result_paths

    def observe(self, atoms: Sequence[Atom]) -> list[Held]:
        """Values of the program as all devices hold them."""
        body, watch = self.body, self.program.watch

        def run(*values: Any) -> Any:
            outs, trouble = observe(body, values, watch, ALL, atoms)
            return [Value(plain(out.array), out.dims) for out in outs], trouble

        if not atoms:
            return []
        compiled = self._compiled(tuple(map(id, atoms)), run)
        doing(f"running {self.on}")
        outs, trouble = jax.device_get(compiled(*self.traced.plain))
        if trouble is not None and int(trouble.site):
            self.stuck_at = watch.sites[int(trouble.site) - 1]
            raise explain_trouble(watch.sites, int(trouble.site), np.asarray(trouble.ways))
        return [_held(out) for out in outs]

    def _compiled(self, key: Any, run: Callable[..., Any], *more: Any) -> Callable[..., Any]:
        if key not in self._executables:
            doing(f"compiling {self.on}")
            quick = jax.default_backend() == "cpu" and self._size <= SMALL
            with under(None):  # a simulated program runs on no mesh
                lowered = jax.jit(run).lower(*more, *self.traced.plain)
                options = QUICKLY if quick else AS_WRITTEN
                self._executables[key] = lowered.compile(compiler_options=options)
        return self._executables[key]

    @property
    def is_light(self) -> bool:
        """Whether it may be run a hundred times."""
        return self._size <= LIGHT

    @functools.cached_property
    def _size(self) -> int:
        """The bytes of all values of the program."""
        return _bytes(self.body)

    @functools.cached_property
    def values(self) -> list[Held]:
        """The results as all devices hold them."""
        return self.observe(self.body.outs)

    def results(self) -> list[np.ndarray]:
        """The results as JAX returns them."""
        return [value.first for value in self.values]

    # --- rounding

    def _shaken(self, times: int) -> Callable[[int], list[np.ndarray]]:
        """The results with other roundings, one way for each number."""

        def run(seed: Any, *values: Any) -> Any:
            body = shaken(self.body, seed, times, self.settled)
            outs, _ = observe(body, values, Watch(body.ops), ALL, body.outs)
            return [plain(out.first()) for out in outs]

        compiled = self._compiled(("shaken", times), run, np.uint32(0))
        return lambda seed: jax.device_get(compiled(np.uint32(seed), *self.traced.plain))

    def movement(self, index: int, count: int, times: int = 1) -> Movement:
        """How far rounding moves a result, as seen in at least `count` runs.

        With `times`, how far everything moves it that is so many times as coarse.
        """
        drawn = self._drawn.get(times, 0)
        moves = self._moves.get(times) or [STILL] * len(self.values)
        for seed in range(drawn + 1, count + 1):
            doing(f"measuring what rounding does {self.on}")
            rows = zip(moves, self._again(times)(seed), self.results(), strict=True)
            moves = [move.further(np.asarray(got), want) for move, got, want in rows]
        self._drawn[times], self._moves[times] = max(drawn, count), moves
        return moves[index]

    @functools.cached_property
    def short_range(self) -> Any:
        """A type of the program that ends far below float32; None if there is none."""
        return short_range(self.body)

    @functools.cached_property
    def whole_numbers(self) -> Any:
        """The type of whole numbers that are added up and may leave it; None if there are none."""
        return whole_numbers(self.body)

    @functools.cached_property
    def asks_for_nan(self) -> bool:
        """Whether it asks of its numbers whether they are NaN."""
        return asks_for_nan(self.body)

    @functools.cached_property
    def by_numbers(self) -> bool:
        """Whether numbers may say what meaning does not: sums may leave the range of their types,
        on some meshes and not on others, or something may be NaN."""
        if self.short_range is not None or self.whole_numbers is not None or self.asks_for_nan:
            return True
        return are_vast([*self.traced.plain, *self.results()])

    @functools.cached_property
    def coarsest(self) -> list[float]:
        """For each result the `eps` of the coarsest type among all that it is computed from."""
        return _coarsest(self.body)

    # --- comparison

    def beside(self, base: Run) -> dict[Var, tuple[Held, np.ndarray]]:
        """Values on the way to the results, each with its twin in `base`."""
        if self._beside is None:
            pairs = comparable(self.body, base.body)
            self.twins = dict(pairs)
            got = self.observe([var for var, _ in pairs])
            want = base.observe([twin for _, twin in pairs])
            rows = zip(pairs, got, want, strict=True)
            self._beside = {var: (held, twin.first) for (var, _), held, twin in rows}
        return self._beside

    @functools.cached_property
    def decides(self) -> bool:
        """Whether numbers that round decide on something."""
        return any(map(decides, walk(self.body.ops)))

    def limits(
        self,
        runs: Sequence[Run],
        devices: int,
        rtol: float | None,
        atol: float | None,
        apart: Sequence[float] = (),
    ) -> list[Tolerance]:
        """How far each result may be off, of this program and of the same on other meshes.

        `apart` has the `eps` of the coarsest types that what they should be was computed in.
        """
        most = max((terms(op) for op in walk(self.body.ops)), default=1) * devices
        alike = [one.coarsest for one in runs if one.traced.tree == self.traced.tree]
        # What is cast only where there are others to send it to is as coarse as that.
        coarsest = [max(own) for own in zip(self.coarsest, *alike, strict=True)]
        # And so is what should be, where that was computed coarsely.
        coarsest = [max(own) for own in zip(coarsest, apart or coarsest, strict=True)]
        return [
            tolerance(max(eps, eps_of(aval.dtype)), math.prod(aval.shape), most, rtol, atol)
            for aval, eps in zip(self.program.avals, coarsest, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a result should be, and how far rounding moves that where it was computed apart."""

    value: np.ndarray
    index: int = 0
    run: Run | None = None

    @property
    def coarsest(self) -> float:
        """The `eps` of the coarsest type that it was computed in, if it was apart."""
        return 0.0 if self.run is None else self.run.coarsest[self.index]

    def movement(self, count: int, times: int = 1) -> Movement:
        """How far rounding moves it."""
        return STILL if self.run is None else self.run.movement(self.index, count, times)


def plain(x: Any) -> Any:
    """Random keys as the numbers they are made of; tangents of whole numbers, which have no values,
    as false everywhere."""
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(x.shape, np.bool_)
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _held(value: Value) -> Held:
    axes = tuple(sorted(value.dims))
    array = np.moveaxis(np.asarray(value.array), [value.dims[a] for a in axes], range(len(axes)))
    return Held(array, axes)


def _bytes(body: Body) -> int:
    total = 0
    for op in body.ops:
        total += sum(var.bytes * math.prod(axis.size for axis in var.axes) for var in op.outs)
        times = op.length if isinstance(op, Scan) else 1
        total += times * sum(map(_bytes, op.bodies))
    return total


def _coarsest(body: Body) -> list[float]:
    """For each result the `eps` of the coarsest type among all that it is computed from."""
    known: dict[Var, float] = {}
    for op in body.ops:
        inside = (var for inner in op.bodies for o in walk(inner.ops) for var in o.outs)
        own = max((eps_of(var.dtype) for var in [*op.outs, *inside]), default=0.0)
        given = (known.get(atom, 0.0) for atom in op.ins if isinstance(atom, Var))
        known |= dict.fromkeys(op.outs, max([own, *given]))
    return [known.get(atom, 0.0) if isinstance(atom, Var) else 0.0 for atom in body.outs]


__all__ = ["ALL", "Run", "Wanted", "plain"]
