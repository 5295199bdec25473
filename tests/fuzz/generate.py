"""Draw a random SPMD program that JAX accepts.

Types are tracked as JAX tracks them, so that casts can be put where JAX asks for them. What really
differs between devices is tracked beside, so that no collective stands under a predicate on which
its devices disagree: such a program would hang on real devices.
"""

from __future__ import annotations

from itertools import count
from math import prod

from .draw import Draw
from .hanging import hang, hang_in_a_loop
from .language import NOWHERE, Argument, Block, Program, Register, Spec
from .meeting import collective
from .nesting import batched, branch, called, counted, derivative, scan, while_loop
from .plain import (
    binary,
    contraction,
    integer,
    place,
    randomness,
    reduction,
    reshaping,
    selection,
    unary,
)
from .scope import Scope

PLAIN = [
    (6, unary),
    (6, binary),
    (3, contraction),
    (3, reduction),
    (3, reshaping),
    (3, place),
    (4, integer),
    (3, selection),
    (2, randomness),
    (14, collective),
]
NESTING = [
    (4, scan),
    (3, counted),
    (3, while_loop),
    (5, branch),
    (4, derivative),
    (2, batched),
    (2, called),
]


def statement(s: Scope) -> None:
    deep = s.depth >= 2 or next(s.names) > 90
    s.draw.weighted(PLAIN if deep else PLAIN + NESTING)(s)


# --- whole programs -----------------------------------------------------------------------------

SHAPES = [{"x": 2}, {"x": 4}, {"x": 8}, {"x": 3}, {"x": 5}, {"x": 1}]
SHAPES += [{"x": 2, "y": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 3}, {"x": 1, "y": 4}, {"x": 3, "y": 1}]
SHAPES += [{"x": 2, "y": 2, "z": 2}, {"x": 2, "y": 1, "z": 3}, {"y": 2, "z": 1, "x": 4}]

AROUND = [(8, "plain"), (2, "jit"), (4, "grad"), (1, "remat"), (2, "jvp"), (2, "vmap")]


def generate(draw: Draw, length: int = 9, hangs: bool = False) -> Program:
    """Draw a program of up to `length` statements at the top level, on demand one that hangs."""
    sizes = draw.pick([s for s in SHAPES if max(s.values()) > 1] if hangs else SHAPES)
    around = draw.weighted(AROUND)
    features: set[str] = {f"{len(sizes)} axes", around}
    arguments, registers = _arguments(draw, sizes)
    s = Scope(
        draw=draw,
        sizes=sizes,
        check=draw.chance(50),
        block=Block("body", tuple(a.name for a in arguments)),
        registers=registers,
        meet=frozenset(sizes),
        names=count(),
        features=features,
        step=statement,
        smooth=around in ("grad", "jvp", "remat"),
        forward=around == "jvp",
    )
    for _ in range(draw.integer(3, length)):
        statement(s)
    if hangs:
        draw.pick([hang, hang_in_a_loop])(s)
        unary(s)
    outputs = _outputs(s)
    program = Program(sizes, s.check, arguments, s.block, outputs, around, features=features)
    program.outside = around != "plain" and draw.chance(50)
    program.at_once = draw.pick([1, 2, 3, "auto", 9])
    program.jit = draw.chance(40)
    program.hangs = hangs
    features |= {"check_vma" if s.check else "no check_vma"}
    features |= {f"{around} of the simulated"} if program.outside else set()
    return program


def _arguments(draw: Draw, sizes: dict[str, int]) -> tuple[list[Argument], list[Register]]:
    arguments, registers = [], []
    for number in range(draw.integer(2, 4)):
        dtype = "int32" if number == 1 else "float32"
        shapes = [(), (2,)] if number == 1 else [(2,), (2, 3), (3,), (1, 2), ()]
        local = draw.pick(shapes)
        spec = _spec(draw, draw.subset(list(sizes)) if local else (), len(local))
        axes = frozenset(a for entry in spec for a in entry)
        whole = tuple(d * prod(sizes[a] for a in e) for d, e in zip(local, spec, strict=True))
        name = f"{'i' if dtype == 'int32' else 'a'}{number}"
        arguments.append(Argument(name, whole, dtype, spec))
        registers.append(Register(name, local, dtype, axes, axes))
    return arguments, registers


def _spec(draw: Draw, axes: tuple[str, ...], rank: int) -> Spec:
    """The axes, in the given order, spread over the dimensions."""
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in axes:
        entries[draw.integer(0, rank - 1)].append(axis)
    return tuple(map(tuple, entries))


def _outputs(s: Scope) -> list[tuple[str, Spec]]:
    """Some of the last registers, split over what they vary over, and now and then over more."""
    written = list(s.registers)
    chosen = list(dict.fromkeys(written[-s.draw.integer(1, 3) :] + [s.reals()[-1], s.real()]))
    chosen.append(_digest(s))
    outputs = []
    for register in chosen:
        if not register.shape:
            register = _with_shape(s, register)
        axes = set(register.varying)
        if not s.check and s.draw.chance(25):
            s.features.add("an output that only seems replicated")
            axes -= set(s.draw.subset(sorted(axes)))
        elif s.draw.chance(20):
            axes |= set(s.draw.subset(list(s.sizes)))
        order = tuple(s.draw.shuffled(sorted(axes)))
        outputs.append((register.name, _spec(s.draw, order, len(register.shape))))
    s.block.result = "".join(f"{name}, " for name, _ in outputs).strip()
    return outputs


def _digest(s: Scope) -> Register:
    """A number for each register, so that every statement counts."""
    reals = s.reals()
    varying = NOWHERE.union(*(r.varying for r in reals))
    differs = NOWHERE.union(*(r.differs for r in reals))
    names = ", ".join(r.name for r in reals)
    return s.write(s.new((len(reals),), "float32", varying, differs), f"digest({names})")


def _with_shape(s: Scope, r: Register) -> Register:
    new = s.new((1,), r.dtype, r.varying, r.differs, r.bound)
    return s.write(new, f"{r.name}[None]")
