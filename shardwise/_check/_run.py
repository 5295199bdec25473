"""Run a program on several meshes and compare: `check`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _jax
from .._errors import DeadlockError, ShardingError, explain_error
from .._lower import Pace, Value, explain_trouble, observe
from .._mesh import AbstractMesh, Axis, Mesh, abstract, axes_of, resized
from .._mesh import mesh as make_mesh
from .._program import Atom, Body, Collective, Leaf, Var, walk
from .._simulate import Traced, Tracing
from .._static import Static
from ._case import Sizes
from ._compare import Tolerance, moved, shaken, tolerance
from ._diagnose import comparable
from ._explain import Wrong, describe
from ._lint import lint
from ._relate import Held
from ._verdict import Finding, Verdict

Meshes = Sizes | Mesh | AbstractMesh | Sequence[Mesh | AbstractMesh]

ALL = Pace(1 << 30)
"""All shards at once: programs that are checked are small."""


def check(
    f: Callable[..., Any],
    *args: Any,
    mesh: Meshes,
    reference: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Verdict:
    """Is `f` right on any number of devices, and if not, at which line.

    Runs `f` simulated on every mesh asked for and compares each result with that of the mesh of
    ones, or with `reference`. Also reads the program for what may go wrong.

    Args:
        f: The function, with `jax.shard_map` somewhere inside. If it takes a keyword `mesh`, it is
            given it; otherwise it runs under it as the ambient mesh.
        *args: Its arguments: pytrees of arrays, Flax NNX objects. They are left as they are.
        mesh: Axis names, each with a size or a list of sizes: `{"data": [1, 2, 4, 8]}`. With
            several axes every combination is tried. A mesh is tried alone, a list of meshes with
            the same axes one after the other.
        reference: What is right: a function of the same arguments, or its result. Left out, the
            result on the mesh of ones.
        rtol: Relative tolerance; by default it follows the types and the number of terms summed.
        atol: Absolute tolerance, by default 0.
        in_specs: How the arguments lie on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.

    Returns:
        The verdict: true where the program is right on every mesh.

    Raises:
        ShardingError: The program cannot run on one of the meshes: a size does not divide, say.
        UnsupportedError: The program uses something that cannot be simulated.

    Example:
        ```python
        verdict = sw.check(step, params, batch, mesh={"data": [1, 2, 4, 8]})
        assert verdict, verdict
        ```
    """
    meshes = expand(mesh)
    ones = resized(meshes[0], dict.fromkeys(meshes[0].axis_names, 1))
    options = in_specs, Static.of(static_argnums, static_argnames)
    base = Run(f, ones, args, *options)
    wanted = base.results() if reference is None else _reference(reference, base, args)
    limits = base.limits(max(math.prod(m.shape.values()) for m in meshes), rtol, atol)
    findings: list[Finding] = []
    wrong: list[Wrong] = []
    for one in meshes:
        run = base if one == ones else Run(f, one, args, *options)
        findings += lint(run.body, list(axes_of(one).values()))
        try:
            wrong += run.compare(base, wanted, limits)
        except DeadlockError as error:
            findings.append(_deadlock(error, run, one))
    findings = describe(wrong) + findings
    name = getattr(f, "__name__", type(f).__name__)
    return Verdict(_once(findings, wrong), tuple(map(words, meshes)), len(limits), name)


def expand(sizes: Meshes) -> list[AbstractMesh]:
    """All meshes that a description asks for, the smallest first."""
    if isinstance(sizes, Mesh | AbstractMesh):
        return [abstract(sizes)]
    if isinstance(sizes, Sequence) and not isinstance(sizes, str) and sizes:
        found = [abstract(one) for one in sizes]
        if len({(one.axis_names, one.axis_types) for one in found}) == 1:
            return sorted(found, key=lambda m: m.size)
    if not isinstance(sizes, Mapping) or not sizes:
        raise ShardingError(
            explain_error(
                f"mesh is {sizes!r}",
                where="sw.check",
                rule="check needs the axes and the sizes to try.",
                remedy='mesh={"data": [1, 2, 4, 8]}',
            )
        )
    columns = []
    for name, given in sizes.items():
        column = list(given) if isinstance(given, Sequence) else [given]
        if not column:
            raise ShardingError(
                explain_error(
                    f"axis {name!r} has no sizes",
                    where="sw.check",
                    rule="Each axis has at least one size to try.",
                    remedy=f'mesh={{"{name}": [1, 2, 4, 8]}}',
                )
            )
        columns.append(column)
    found = [make_mesh(dict(zip(sizes, row, strict=True))) for row in itertools.product(*columns)]
    return sorted(found, key=lambda m: math.prod(m.shape.values()))


def words(mesh: AbstractMesh) -> str:
    """A mesh in words: `{data: 4, model: 2}`."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in mesh.shape.items()) + "}"


class Run:
    """A function on one mesh: its program, and what it gives."""

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: AbstractMesh,
        args: tuple[Any, ...],
        in_specs: Any = None,
        static: Static | None = None,
    ):
        self.mesh = mesh
        self.traced: Traced = Tracing(f, mesh, in_specs, static)(args, {})
        self.program = self.traced.program
        self._beside: dict[Var, tuple[Held, np.ndarray]] | None = None

    @property
    def body(self) -> Body:
        """The operations."""
        return self.program.body

    @property
    def paths(self) -> list[str]:
        """A name for each result."""
        return self.traced.result_paths

    def observe(self, atoms: Sequence[Atom]) -> list[Held]:
        """Values of the program as all devices hold them."""
        return self._observer(atoms)(self.traced.values) if atoms else []

    def _observer(self, atoms: Sequence[Atom]) -> Callable[[Sequence[Any]], list[Held]]:
        body, watch = self.body, self.program.watch

        def run(*values: Any) -> Any:
            outs, trouble = observe(body, values, watch, ALL, atoms)
            return [Value(_plain(out.array), out.dims) for out in outs], trouble

        compiled = jax.jit(run)

        def observed(values: Sequence[Any]) -> list[Held]:
            outs, trouble = jax.device_get(compiled(*values))
            if trouble is not None and int(trouble.site):
                raise explain_trouble(watch.sites, int(trouble.site), np.asarray(trouble.ways))
            return [_held(out) for out in outs]

        return observed

    @functools.cached_property
    def _outs(self) -> Callable[[Sequence[Any]], list[Held]]:
        return self._observer(self.body.outs)

    @functools.cached_property
    def values(self) -> list[Held]:
        """The results as all devices hold them."""
        return self._outs(self.traced.values)

    @functools.cached_property
    def noise(self) -> list[float]:
        """By how much each result moves when the inputs' last bits do."""
        rng = np.random.default_rng(0)
        values = [_shaken(value, rng) for value in self.traced.values]
        floats = [np.abs(v).max(initial=0) for v in values if isinstance(v, np.ndarray)]
        scale = float(max(floats, default=0.0))
        rows = zip(self._outs(values), self.results(), strict=True)
        return [moved(held.first, want, scale) for held, want in rows]

    def beside(self, base: Run) -> dict[Var, tuple[Held, np.ndarray]]:
        """Values on the way to the results, each with its twin in `base`."""
        if self._beside is None:
            pairs = comparable(self.body, base.body)
            got = self.observe([var for var, _ in pairs])
            want = base.observe([twin for _, twin in pairs])
            rows = zip(pairs, got, want, strict=True)
            self._beside = {var: (held, twin.first) for (var, _), held, twin in rows}
        return self._beside

    def results(self) -> list[np.ndarray]:
        """The results as JAX returns them."""
        return [value.first for value in self.values]

    def limits(self, devices: int, rtol: float | None, atol: float | None) -> list[Tolerance]:
        """How far each result may be off."""
        eps = max((_eps(v.dtype) for op in walk(self.body.ops) for v in op.outs), default=0.0)
        terms = _terms(self.body) * devices
        return [
            tolerance(max(eps, _eps(aval.dtype)), math.prod(aval.shape), terms, rtol, atol)
            for aval in self.program.avals
        ]

    def compare(
        self, base: Run, wanted: Sequence[np.ndarray], limits: Sequence[Tolerance]
    ) -> list[Wrong]:
        """The results that are wrong here."""
        if self.traced.tree != base.traced.tree:
            return [Wrong(self, base, 0, None, None, Tolerance(0.0), structure=True)]
        found = []
        for index, (value, want, limit) in enumerate(zip(self.values, wanted, limits, strict=True)):
            one = Wrong(self, base, index, value, want, limit)
            if not one.right and limit.shaken:
                limit = dataclasses.replace(limit, atol=max(limit.atol, base.noise[index]))
                one = Wrong(self, base, index, value, want, limit)
            if not one.right:
                found.append(one)
        return found


def _reference(reference: Any, base: Run, args: tuple[Any, ...]) -> list[np.ndarray]:
    result = reference(*args) if callable(reference) else reference
    leaves, tree = jax.tree.flatten(result)
    if len(leaves) != len(base.paths):
        raise ShardingError(
            explain_error(
                f"the reference has {len(leaves)} arrays ({tree}), the program {len(base.paths)}",
                where="sw.check",
                rule="The reference has the structure of the program's result.",
                remedy="return the same pytree from both.",
            )
        )
    return [np.asarray(_plain(jnp.asarray(leaf))) for leaf in leaves]


def _plain(x: Any) -> Any:
    """Random keys as the numbers they are made of."""
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _shaken(x: Any, rng: np.random.Generator) -> Any:
    is_float = not _jax.is_traced(x) and jnp.asarray(x).dtype in (jnp.float32, jnp.float64)
    return shaken(np.asarray(x), rng) if is_float else x


def _held(value: Value) -> Held:
    axes = tuple(sorted(value.dims))
    array = np.moveaxis(np.asarray(value.array), [value.dims[a] for a in axes], range(len(axes)))
    return Held(array, axes)


def _eps(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _terms(body: Body) -> int:
    """The largest number of terms that one device adds up in one sum."""
    most = 1
    for op in walk(body.ops):
        if isinstance(op, Leaf) and isinstance(op.ins[0] if op.ins else None, Var):
            lhs = op.ins[0]
            assert isinstance(lhs, Var)
            if op.name == "dot_general":
                dims = op.params["dimension_numbers"][0][0]
            elif op.name == "reduce_sum":
                dims = op.params["axes"]
            else:
                continue
            most = max(most, math.prod(lhs.shape[d] for d in dims))
    return most


def _deadlock(error: DeadlockError, run: Run, mesh: AbstractMesh) -> Finding:
    op = run.program.watch.sites[0]
    waits = next(c for b in op.bodies for c in walk(b.ops) if isinstance(c, Collective))
    head, *rest = str(error).split("\n  Remedy: ")
    return Finding(
        "SW301",
        head,
        waits.where,
        remedy=rest[0] if rest else "",
        mesh=words(mesh),
    )


SAID_BY = {"SW202": {"SW301"}, "SW203": {"SW104", "SW105", "SW301"}}
"""Suspicions that need no word of their own once running has shown the fact."""


def _once(findings: Sequence[Finding], wrong: Sequence[Wrong]) -> tuple[Finding, ...]:
    """Each finding once; what reading suspected is certain where running shows it."""
    shown = {w.suspect for w in wrong}
    told = {finding.code for finding in findings if finding.certain}
    kept: dict[Any, Finding] = {}
    for finding in findings:
        if told & SAID_BY.get(finding.code, set()):
            continue
        if (finding.code, finding.where) in shown:
            finding = dataclasses.replace(finding, certain=True)
        key = (finding.code, finding.where, finding.leaf)
        if key not in kept or (finding.certain and not kept[key].certain):
            kept[key] = finding
    return tuple(sorted(kept.values(), key=lambda finding: not finding.certain))


__all__ = ["Axis", "check", "expand", "words"]
