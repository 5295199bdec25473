"""A program on one mesh, evaluated in float64."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._base.doing import doing
from ..._base.errors import noting
from ..._engine.lower import DivergenceWatch, Pace, StackedValue, explain_divergence, observe
from ..._engine.tracing import Traced, Tracing
from ..._jax.virtual import under
from ..._meaning import step
from ..._mesh import Axis, abstract, words
from ..._program import Atom, Body, Op, Scan, Var, walk
from .body import Lifted, lift
from .cache import compiled
from .extremes import are_vast, asks_for_nan, short_range, wrapping
from .quantities import rounds as rounds_to_integers
from .widths import wide, widened

ALL = Pace(1 << 30)
"""All shards at once, since programs that are checked are small."""

SMALL = 1 << 31
"""Below this many bytes of values, compile fast rather than run fast."""

SHORT = 256
"""Below this many operations a program compiles in a fraction of a second."""

LIGHT = 1 << 24
"""Below this many bytes of values a program may be run a hundred times."""

QUICKLY: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Compiler options that halve XLA's compile time on CPU."""


@dataclasses.dataclass(frozen=True)
class ValueOnMesh:
    """A value on all devices: a leading dimension for each axis over which it differs."""

    array: np.ndarray
    axes: tuple[Axis, ...] = ()

    @property
    def first(self) -> np.ndarray:
        """The value on device 0, which JAX returns for a result declared the same everywhere."""
        return self.array[(0,) * len(self.axes)]

    @property
    def rows(self) -> np.ndarray:
        """The value of each device, one row per device."""
        lead, local = self.array.shape[: len(self.axes)], self.array.shape[len(self.axes) :]
        return self.array.reshape((math.prod(lead), *local))


class Run:
    """A function on one mesh: its program and its results."""

    def __init__(self, tracing: Tracing, args: tuple[Any, ...], like: Run | None = None):
        """Trace the function; `like` is a run with other values whose compiled code is reused."""
        self.mesh, self.tracing = tracing.mesh, tracing
        doing(f"tracing {self.on}")
        with noting(f"tracing {self.on}"):
            self.traced: Traced = tracing(args, {})
        self.program = self.traced.program
        self.stuck_at: Op | None = None
        """The operation at which devices wait forever, once a run showed that."""
        self._perturbed: dict[float, list[list[np.ndarray]]] = {}
        executables = like._executables if like is not None and like.program is self.program else {}
        self._executables: dict[Any, Callable[..., Any]] = executables
        self._unrounded = False

    def again(self, args: tuple[Any, ...]) -> Run:
        """Run the same program with other values."""
        return Run(self.tracing, args, like=self)

    @functools.cached_property
    def unrounded(self) -> Run:
        """The same program without its rounding to integers."""
        run = copy.copy(self)
        for name in ("lifted", "rounds", "unrounded", "values", "_watch"):
            run.__dict__.pop(name, None)
        run._unrounded, run._perturbed, run._executables = True, {}, {}
        return run

    @property
    def on(self) -> str:
        """Where it runs, for messages."""
        return "the reference" if self.mesh is None else f"on {words(abstract(self.mesh))}"

    @property
    def sizes(self) -> dict[str, int]:
        """The axis sizes of the mesh."""
        return {} if self.mesh is None else dict(self.mesh.shape)

    @property
    def body(self) -> Body:
        """The operations of the program."""
        return self.program.body

    @property
    def arguments(self) -> list[Var]:
        """The inputs that are arguments, without the values that the function closes over."""
        return self.body.ins[len(self.body.ins) - len(self.traced.argument_paths) :]

    @property
    def paths(self) -> list[str]:
        """The name of each result."""
        return self.traced.result_paths

    @functools.cached_property
    def lifted(self) -> Lifted:
        """The program in float64."""
        vast = are_vast(self.traced.plain)
        return lift(self.body, vast=vast, unrounded=self._unrounded)

    @functools.cached_property
    def _watch(self) -> DivergenceWatch:
        return DivergenceWatch(self.lifted.body.ops)

    def observe(self, atoms: Sequence[Atom]) -> list[ValueOnMesh]:
        """Compute values of the program in float64 on all devices."""
        if not atoms:
            return []
        outs, trouble = self._run(atoms, self._wide)
        if trouble is not None and int(trouble.site):
            sites = self._watch.sites
            self.stuck_at = sites[int(trouble.site) - 1]
            raise explain_divergence(sites, int(trouble.site), np.asarray(trouble.branches))
        return [_device_values(out) for out in outs]

    def evaluate(self, body: Body) -> list[ValueOnMesh]:
        """Return the results of a variant of the lifted program on all devices."""
        if not body.outs:
            return []
        outs, _ = self._evaluate(body, body.outs, self._wide)
        return [_device_values(out) for out in outs]

    def _run(self, atoms: Sequence[Atom], values: Sequence[Any]) -> Any:
        targets = [self.lifted.of(atom) for atom in atoms]
        return self._evaluate(self.lifted.body, targets, values, atoms)

    def _evaluate(
        self,
        body: Body,
        targets: Sequence[Atom],
        values: Sequence[Any],
        names: Sequence[Atom] | None = None,
    ) -> Any:
        def run(*values: Any) -> Any:
            outs, trouble = observe(body, values, DivergenceWatch(body.ops), ALL, targets)
            return [StackedValue(plain(value.array), value.dims) for value in outs], trouble

        with jax.enable_x64(True), step():
            executable = self._compiled(tuple(map(id, names or targets)), run)
            doing(f"running {self.on}")
            return jax.device_get(executable(*values))

    def _compiled(self, key: Any, run: Callable[..., Any]) -> Callable[..., Any]:
        if key not in self._executables:
            doing(f"compiling {self.on}")
            quick = jax.default_backend() == "cpu" and self._size <= SMALL
            with under(None):  # a simulated program runs on no mesh
                lowered = jax.jit(run).lower(*self._wide)
                self._executables[key] = compiled(lowered, QUICKLY if quick else {})
        return self._executables[key]

    @functools.cached_property
    def _wide(self) -> list[Any]:
        """The inputs in float64."""
        rows = zip(self.traced.plain, self.body.ins, strict=True)
        return [widened(value, var.dtype) for value, var in rows]

    @property
    def compiled_variants(self) -> int:
        """The number of times it was compiled: for its results, and for values on the way."""
        return len(self._executables)

    @property
    def is_light(self) -> bool:
        """Whether it is cheap enough to run a hundred times."""
        return self._size <= LIGHT

    @functools.cached_property
    def is_short(self) -> bool:
        """Whether it compiles in a fraction of a second."""
        return self.is_light and sum(1 for _ in walk(self.body.ops)) <= SHORT

    @functools.cached_property
    def _size(self) -> int:
        """The total bytes of all values of the program."""
        return _bytes(self.body)

    @functools.cached_property
    def values(self) -> list[ValueOnMesh]:
        """The results on all devices."""
        return self.observe(self.body.outs)

    def results(self) -> list[np.ndarray]:
        """Return the results as JAX would return them."""
        return [value.first for value in self.values]

    # --- sensitivity to the arguments

    def perturbed(self, count: int, by: float) -> list[list[np.ndarray]]:
        """Return the results for arguments that are perturbed, in `count` ways."""
        rows = self._perturbed.setdefault(by, [])
        for seed in range(len(rows), count):
            doing(f"changing the arguments {self.on}")
            outs, _ = self._run(self.body.outs, _changed(self._wide, by, seed))
            rows.append([_device_values(out).first for out in outs])
        return rows[:count]

    @functools.cached_property
    def rounds(self) -> bool:
        """Whether it rounds floating-point numbers to integers."""
        return not self._unrounded and any(map(rounds_to_integers, self.body.ops))

    @functools.cached_property
    def scale(self) -> float:
        """The largest absolute value among arguments and results."""
        arrays = [x for x in [*self._wide, *self.results()] if isinstance(x, np.ndarray)]
        sizes = [np.abs(wide(x))[np.isfinite(wide(x))].max(initial=0.0) for x in arrays]
        return float(max(sizes, default=0.0))

    def wrapping(self, body: Body | None = None) -> Any:
        """Return the narrowest integer dtype whose sums in a body may wrap around, or None."""
        values = [x for x in self.traced.plain if not _jax.is_traced(x)]
        return wrapping(body or self.body, values, self.mesh.size if self.mesh else 1)

    @functools.cached_property
    def by_numbers(self) -> bool:
        """Whether numbers may differ where the analysis proves equality: sums may overflow on some
        meshes and not on others, or values may be NaN."""
        if self.wrapping() is not None or short_range(self.body) is not None:
            return True
        return asks_for_nan(self.body) or are_vast([*self.traced.plain, *self.results()])

    @property
    def dtypes(self) -> list[Any]:
        """The declared dtypes of the results, as NumPy dtypes."""
        return [_plain_dtype(aval.dtype) for aval in self.program.avals]


def plain(x: Any) -> Any:
    """Return random keys as their integer data, and float0 tangents, which hold no values, as
    arrays of False."""
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return np.zeros(x.shape, np.bool_)
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _device_values(value: StackedValue) -> ValueOnMesh:
    axes = tuple(sorted(value.dims))
    array = np.moveaxis(np.asarray(value.array), [value.dims[a] for a in axes], range(len(axes)))
    return ValueOnMesh(array, axes)


def _bytes(body: Body) -> int:
    total = 0
    for op in body.ops:
        total += sum(var.bytes * math.prod(axis.size for axis in var.axes) for var in op.outs)
        times = op.length if isinstance(op, Scan) else 1
        total += times * sum(map(_bytes, op.bodies))
    return total


def _changed(values: Sequence[Any], by: float, seed: int) -> list[Any]:
    """Return arguments with every floating-point number multiplied by a factor close to 1."""
    rng = np.random.default_rng(seed)

    def changed(x: Any) -> Any:
        if not isinstance(x, np.ndarray) or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return x * (1 + by * rng.uniform(-1, 1, x.shape))

    return list(map(changed, values))


def _plain_dtype(dtype: Any) -> Any:
    """Return the dtype of the result of `plain` for an array of a dtype."""
    if dtype == jax.dtypes.float0:
        return np.dtype(np.bool_)
    return np.dtype(np.uint32) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else np.dtype(dtype)
