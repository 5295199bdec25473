"""Draw a random SPMD program that JAX accepts.

Types are tracked as JAX tracks them, so that casts can be put where JAX asks for them. What really
differs between devices is tracked beside, so that no collective stands under a predicate on which
its devices disagree: such a program would hang on real devices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count

from . import exact
from .draw import Draw
from .hanging import hang, hang_in_a_loop
from .language import NOWHERE, Argument, Block, Output, Program, Register, Spec
from .maze import maze
from .meeting import collective
from .mutable import ref
from .nesting import batched, branch, called, counted, custom, derivative, scan, while_loop
from .plain import (
    KEYS,
    binary,
    contraction,
    integer,
    place,
    randomness,
    reduction,
    reshaping,
    rounding,
    selection,
    unary,
)
from .scope import Scope
from .text import EXPLICIT

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
    (2, rounding),
    (4, exact.exact),
    (14, collective),
]
NESTING = [
    (4, scan),
    (3, counted),
    (3, while_loop),
    (7, branch),
    (4, derivative),
    (2, batched),
    (2, called),
    (1, custom),
    (4, maze),
    (1, ref),
]


def statement(s: Scope) -> None:
    deep = s.depth >= s.deepest or next(s.names) > 90
    s.draw.weighted(PLAIN if deep else PLAIN + NESTING)(s)


# --- whole programs -----------------------------------------------------------------------------

SHAPES = [{"x": 2}, {"x": 4}, {"x": 8}, {"x": 3}, {"x": 5}, {"x": 1}]
SHAPES += [{"x": 2, "y": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 3}, {"x": 1, "y": 4}, {"x": 3, "y": 1}]
SHAPES += [{"x": 2, "y": 2, "z": 2}, {"x": 2, "y": 1, "z": 3}, {"y": 2, "z": 1, "x": 4}]

AROUND = [(12, "plain"), (3, "jit"), (6, "grad"), (2, "remat"), (4, "jvp"), (3, "vmap")]
AROUND += [(4, "vjp"), (4, "linearize"), (2, "jacfwd"), (2, "jacrev"), (2, "hessian")]
AROUND += [(2, "vmap of grad"), (2, "grad of vmap"), (2, "named vmap"), (2, "refs")]
FORWARD = ("jvp", "linearize", "jacfwd", "hessian")
REVERSE = ("grad", "remat", "vjp", "jacrev", "hessian", "vmap of grad", "grad of vmap")
# A derivative alone need not compute the value, and with it the collective that hangs.
VALUED = ("plain", "jit", "grad", "remat", "jvp", "vjp", "linearize", "vmap", "named vmap")
BATCHED = ("vmap", "named vmap", "vmap of grad", "grad of vmap", "jacfwd", "jacrev", "hessian")

FORMS = [(40, "shard_map"), (2, "ref argument"), (2, "static"), (3, "nested")]
FORMS += [(3, "explicit"), (2, "inferred"), (2, "placed")]


def generate(draw: Draw, length: int = 9, hangs: bool = False) -> Program:
    """Draw a program of up to `length` statements at the top level, on demand one that hangs."""
    form = "shard_map" if hangs else draw.weighted(FORMS)
    sizes = draw.pick([shape for shape in SHAPES if _possible(shape, form, hangs)])
    around = draw.weighted([(w, a) for w, a in AROUND if not hangs or a in VALUED])
    check = draw.chance(50)
    arguments, registers = _arguments(draw, sizes, form, check, min(1 + length, 5))
    s = Scope(
        draw=draw,
        sizes=sizes,
        check=check,
        block=Block("body", tuple(a.name for a in arguments)),
        registers=registers,
        meet=frozenset(sizes),
        names=count(),
        features={f"{len(sizes)} axes", around, form},
        step=statement,
        smooth=around in FORWARD + REVERSE,
        forward=around in FORWARD,
        reverse=around in REVERSE,
        batched=around in BATCHED,
        rough=draw.pick(["float16", "bfloat16"]) if draw.chance(6) else None,
        kinds={a.name: a.values for a in arguments},
        most=min(length, 3),
        deepest=2 if length > 2 else 1,
    )
    _opened(s, arguments)
    for _ in range(draw.integer(max(1, length // 3), length)):
        statement(s)
    if draw.chance(60):
        exact.exact(s)
    if hangs:
        draw.pick([hang, hang_in_a_loop])(s)
        unary(s)
    outputs = _outputs(s, form)
    program = Program(sizes, s.check, arguments, s.block, outputs, around, form)
    program.features = s.features | {"check_vma" if s.check else "no check_vma"}
    program.outside = around != "plain" and draw.chance(65)
    program.features |= {f"{around} of the simulated"} if program.outside else set()
    program.at_once = draw.pick([1, 1, 1, 2, 3, 9, 9, "auto"])
    # Step by step, JAX compiles every step by itself.
    program.jit = draw.chance(92 if program.outside else 80)
    program.hangs = hangs
    program.rough = s.rough
    program.x64 = not hangs and draw.chance(5)
    program.features |= {"float64"} if program.x64 else set()
    return program


def _possible(sizes: dict[str, int], form: str, hangs: bool) -> bool:
    if form == "nested" and len(sizes) == 1:
        return False
    return not (hangs and max(sizes.values()) == 1)


def _arguments(
    draw: Draw, sizes: dict[str, int], form: str, check: bool, most: int
) -> tuple[list[Argument], list[Register]]:
    arguments, registers = [], []
    for number in range(draw.integer(2, most)):
        argument, register = _argument(draw, sizes, form, number)
        free = [axis for axis in sizes if axis not in register.varying]
        if form == "explicit" and check and register.real and free and draw.chance(50):
            argument = replace(argument, reduced=(draw.pick(free),))
        arguments.append(argument)
        registers.append(register)
    return arguments, registers


def _argument(
    draw: Draw, sizes: dict[str, int], form: str, number: int
) -> tuple[Argument, Register]:
    """Floats first, then integers, then of any kind."""
    kinds = [(3, "float"), (6, "exact"), (1, "key"), (1, "scalar")]
    kind = draw.weighted(kinds) if number > 1 else ("float", "int")[number]
    shapes = {"int": [(), (2,)], "exact": [(2,), (2, 3)], "key": [(1,)], "scalar": [()]}
    local = draw.pick(shapes.get(kind, [(2,), (2, 3), (3,), (1, 2), ()]))
    axes = draw.subset(list(sizes), 0) if local else ()
    name = f"{'a' if kind == 'float' else kind[0]}{number}"
    spec = _spec(draw, axes, len(local))
    shape = exact.whole_shape(local, spec, sizes)
    argument = {
        "float": Argument(name, shape, "float32", spec),
        "int": Argument(name, shape, "int32", spec, "counts"),
        "key": Argument(name, shape, draw.pick(KEYS), spec, "key"),
        "scalar": Argument(name, shape, "float32", spec, "scalar"),
    }.get(kind) or exact.argument(draw, name, shape, spec)
    over = frozenset(axes)
    return argument, Register(
        name, local, argument.dtype, over, over, 9.0 if kind == "scalar" else 1.0, kind == "exact"
    )


def _opened(s: Scope, arguments: list[Argument]) -> None:
    """What is done to arguments first."""
    for argument, register in zip(arguments, list(s.registers), strict=True):
        if argument.values == "scalar":
            # A weak type goes from the argument to the results.
            s.features.add("weak types")
            new, text = s.new((), "weak", NOWHERE, NOWHERE), f"{argument.name} * 2.0"
        elif argument.reduced:
            s.features.add("reduced")
            varying = register.varying | set(argument.reduced)
            new = s.new(register.shape, "float32", varying, register.differs)
            text = f"lax.pcast({argument.name}, {argument.reduced}, to='varying')"
        else:
            continue
        s.registers.remove(register)
        s.write(new, text)


def _spec(draw: Draw, axes: tuple[str, ...], rank: int) -> Spec:
    """The axes, in the given order, spread over the dimensions."""
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in axes:
        entries[draw.integer(0, rank - 1)].append(axis)
    return tuple(map(tuple, entries))


def _outputs(s: Scope, form: str) -> list[Output]:
    """Some of the last registers, split over what they vary over, and now and then over more."""
    written = list(s.registers)
    chosen = written[-s.draw.integer(1, 3) :] + [s.reals()[-1], s.real()]
    chosen += [r for r in written if r.exact][-3:] + [r for r in written if r.dtype == "weak"][:1]
    chosen = list(dict.fromkeys(r for r in chosen if r.dtype not in KEYS))
    chosen.append(_digest(s))
    outputs = [_output(s, register, form) for register in chosen]
    s.block.result = "".join(f"{o.name}, " for o in outputs).strip()
    return outputs


def _output(s: Scope, register: Register, form: str) -> Output:
    if register.dtype == "weak":
        return Output(register.name, ())
    if not register.shape:
        register = _with_shape(s, register)
    axes = set(register.varying)
    owed: tuple[str, ...] = ()
    if form in EXPLICIT and register.real and axes and s.draw.chance(40):
        owed = (s.draw.pick(sorted(axes)),)
        axes -= set(owed)
        register = _unreduced(s, register, owed)
    elif not s.check and s.draw.chance(25):
        s.features.add("an output that only seems replicated")
        axes -= set(s.draw.subset(sorted(axes)))
    elif s.draw.chance(20):
        axes |= set(s.draw.subset(list(s.sizes)))
    order = tuple(s.draw.shuffled(sorted(axes)))
    spec = _spec(s.draw, order, len(register.shape))
    return Output(register.name, spec, owed, register.exact)


def _unreduced(s: Scope, r: Register, axes: tuple[str, ...]) -> Register:
    s.features.add("unreduced")
    if not s.check:
        return r
    return s.write(
        s.new(r.shape, r.dtype, r.varying, r.differs),
        f"lax.pcast({r.name}, {axes}, to='unreduced')",
    )


def _digest(s: Scope) -> Register:
    """A number for each register that nothing uses, so that every statement counts."""
    text = str(s.block)
    reals = [r for r in s.reals() if len(re.findall(rf"\b{r.name}\b", text)) < 2]
    reals = reals or s.reals()[-1:]
    varying = NOWHERE.union(*(r.varying for r in reals))
    differs = NOWHERE.union(*(r.differs for r in reals))
    names = ", ".join(r.name for r in reals)
    return s.write(s.new((len(reals),), "float32", varying, differs), f"digest({names})")


def _with_shape(s: Scope, r: Register) -> Register:
    new = s.new((1,), r.dtype, r.varying, r.differs, r.bound, r.exact)
    return s.write(new, f"{r.name}[None]")
