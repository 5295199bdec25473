"""Programs as data: a list of statements over registers, and how it reads as Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from textwrap import indent

from .text import CALLS, EXPLICIT, FOOTER, HEADER, LOSS, NARROW, STATIC, TRANSFORMS, VALUES

Axes = frozenset[str]
NOWHERE: Axes = frozenset()


@dataclass(frozen=True)
class Register:
    """A value in the body, as one device sees it.

    Attributes:
        varying: The axes that its type varies over when JAX checks types.
        differs: The axes along which it may really differ; the type may promise less.
        bound: A bound of its magnitude, so that rounding errors stay small.
        exact: Whether it is of the numbers that are computed without rounding (`exact.py`).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    varying: Axes = NOWHERE
    differs: Axes = NOWHERE
    bound: float = 1.0
    exact: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def real(self) -> bool:
        return self.dtype == "float32" and not self.exact


@dataclass
class Block:
    """A function: parameters, statements, and what it returns as an expression."""

    name: str
    params: tuple[str, ...]
    statements: list[Statement] = field(default_factory=list)
    result: str = "()"

    def __str__(self) -> str:
        lines = [str(s) for s in self.statements] + [f"return {self.result}"]
        return f"def {self.name}({', '.join(self.params)}):\n" + indent("\n".join(lines), "    ")


@dataclass
class Statement:
    """`targets = expression`, after the functions that the expression calls.

    Without targets it is the expression alone: something is done to a ref.
    """

    targets: tuple[str, ...]
    expression: str
    blocks: tuple[Block, ...] = ()
    registers: tuple[Register, ...] = ()

    def __str__(self) -> str:
        parts = [str(block) for block in self.blocks]
        left = f"{', '.join(self.targets)} = " if self.targets else ""
        return "\n".join([*parts, left + self.expression])


Spec = tuple[tuple[str, ...], ...]
"""For each dimension the axes it is split over."""


@dataclass(frozen=True)
class Argument:
    """An argument of the program: its whole shape, and how it is split.

    Attributes:
        values: Which values it holds: a key of `VALUES`.
        reduced: The axes along which it is the same and its derivative is still to be summed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: Spec
    values: str = "uniform"
    reduced: tuple[str, ...] = ()

    @property
    def smooth(self) -> bool:
        return self.dtype in ("float32", *NARROW) and self.values == "uniform"

    def code(self, seed: int) -> str:
        """The argument as an expression."""
        words = 2 if self.dtype == "threefry2x32" else 4
        form = VALUES[self.values]
        return form.format(seed=seed, shape=self.shape, dtype=self.dtype, words=words)


@dataclass(frozen=True)
class Output:
    """A result of the body: a register, how it is split, along which axes a sum is owed."""

    name: str
    spec: Spec
    unreduced: tuple[str, ...] = ()
    exact: bool = False


@dataclass
class Program:
    """A whole program and the way it is run.

    Attributes:
        form: How the body is mapped: a key of `CALLS`.
        around: What is applied to it: a key of `TRANSFORMS`.
        outside: Whether that is applied to the simulated function, or inside it.
        rough: A narrow type that some values were rounded to on the way.
    """

    mesh: dict[str, int]
    check_vma: bool
    arguments: list[Argument]
    body: Block
    outputs: list[Output]
    around: str = "plain"
    form: str = "shard_map"
    outside: bool = False
    at_once: int | str = 1
    jit: bool = False
    hangs: bool = False
    x64: bool = False
    rough: str | None = None
    features: set[str] = dataclasses.field(default_factory=set)

    def code(self) -> str:
        """The program as Python: `program(*args, mesh)`, and `transform`, applied around it."""
        parts = [HEADER, str(self.body), self._call(), self._transform()]
        code = "\n\n\n".join(parts) + "\n"
        return code.replace("float32", "float64") if self.x64 else code

    def _call(self) -> str:
        names = ", ".join(a.name for a in self.arguments)
        run = "named(run)" if self.around == "named vmap" else "run"
        return CALLS[self.form].format(
            names=names,
            first=self.arguments[0].name,
            rest=", ".join(a.name for a in self.arguments[1:]),
            ins=_tuple(spec_code(a.spec, reduced=a.reduced) for a in self.arguments),
            outs=_tuple(spec_code(o.spec, unreduced=o.unreduced) for o in self.outputs),
            whole=_tuple("P()" for _ in self.outputs),
            **self._nested(),
            held=[axis for entry in self.arguments[0].spec for axis in entry],
            axis=next(iter(self.mesh)),
            check=self.check_vma,
            last=f"{run}({names})" if self.outside else f"transform({run})({names})",
        )

    def _nested(self) -> dict[str, str]:
        """The specs of an outer call over the first axis, and of an inner one over the others."""
        first, *others = self.mesh
        parts = {}
        for part, axes in (("outer", {first}), ("inner", set(others))):
            ins = [spec_code(only(a.spec, axes)) for a in self.arguments]
            outs = [spec_code(only(o.spec, axes)) for o in self.outputs]
            parts |= {f"{part}_ins": _tuple(ins), f"{part}_outs": _tuple(outs)}
        return {**parts, "inner_axes": f"{{{', '.join(map(repr, others))}}}"}

    def _transform(self) -> str:
        """`jax.grad` and its like, as a function of a function."""
        smooth = tuple(k for k, a in enumerate(self.arguments) if a.smooth)
        fill = {"smooth": smooth, "first": smooth[:1], "count": len(self.arguments)}
        return "def transform(run):\n" + LOSS + TRANSFORMS[self.around].format(**fill)

    @property
    def explicit(self) -> bool:
        """Whether the mesh has Explicit axes; it is then around the program, not handed to it."""
        return self.form in EXPLICIT

    @property
    def specs(self) -> str:
        """How the real arguments lie."""
        placed = self.form == "placed"
        return _tuple(spec_code(a.spec) if placed else "P()" for a in self.arguments)

    @property
    def real(self) -> str:
        """The program on the mesh `mesh`, as an expression."""
        bound = ["mesh=mesh"] if not self.explicit else []
        return f"functools.partial({', '.join(['program', *bound, *self._static()])})"

    @property
    def simulated(self) -> str:
        """The simulated program on the mesh `virtual`, as an expression."""
        options = [f"at_once={self.at_once!r}", "mesh=virtual"]
        options += [f"in_specs={self.specs}"] if self.form == "placed" else []
        options += ["static_argnames=('how', 'act')"] if self.form == "static" else []
        call = f"sw.simulate(program, {', '.join(options)})"
        return f"functools.partial({', '.join([call, *self._static()])})"

    def _static(self) -> list[str]:
        if self.form != "static":
            return []
        return [f"how={STATIC['how']!r}", f"act={STATIC['act']}"]

    def script(self) -> str:
        """A file that runs the program both ways and prints both results."""
        args = "\n".join(f"    {a.code(k)}," for k, a in enumerate(self.arguments))
        return FOOTER.format(
            x64='jax.config.update("jax_enable_x64", True)\n' if self.x64 else "",
            code=self.code(),
            args=args.replace("float32", "float64") if self.x64 else args,
            sizes=self.mesh,
            rank=len(self.mesh),
            type="Explicit" if self.explicit else "Auto",
            around="jax.set_mesh(mesh)" if self.explicit else "contextlib.nullcontext()",
            specs=self.specs,
            real=self.real,
            simulated=self.simulated,
            outside=self.outside,
            jit=self.jit,
        )


def only(spec: Spec, axes: set[str]) -> Spec:
    """The part of a spec that names these axes."""
    return tuple(tuple(a for a in entry if a in axes) for entry in spec)


def _tuple(parts: Iterable[str]) -> str:
    parts = list(parts)
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def spec_code(spec: Spec, **extra: tuple[str, ...]) -> str:
    entries = [repr(axes[0] if len(axes) == 1 else axes) if axes else "None" for axes in spec]
    while entries and entries[-1] == "None":
        entries.pop()
    entries += [f"{name}={{{', '.join(map(repr, axes))}}}" for name, axes in extra.items() if axes]
    return f"P({', '.join(entries)})"
