"""What can be said of a program by reading it, without running it.

Each rule gives findings that may be right after all; none fails a verdict by itself. Running
decides, and a finding here that explains a wrong result there becomes certain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from ..._engine.lower import Watch
from ..._mesh import Axis
from ..._program import (
    Atom,
    AxisIndex,
    Body,
    Collective,
    Join,
    Leaf,
    Op,
    Split,
    Var,
    Where,
    annotate,
    collectives_in,
    differing,
    is_sharded,
    walk,
    within,
)
from ..._program.primitives import of
from .diagnose import gradient_before
from .flow import ancestors
from .two_ways import two_ways
from .verdict import NOT_SHARDED, NOWHERE, Finding

LARGE = 1 << 20
"""From how many gathered bytes on it is worth a word."""


def lint(body: Body, axes: list[Axis]) -> list[Finding]:
    """All findings of all rules, in program order."""
    return [finding for rule in RULES for finding in rule(body, axes)]


def _reduced_again(body: Body, axes: list[Axis]) -> Iterator[Finding]:
    for op in collectives_in(body.ops):
        again = [axis for axis in op.axes if axis.size > 1 and axis not in op.ins[0].axes]
        if op.name == "psum" and again and not op.backward and _is_of_data(body, op.ins[0]):
            over = repr(again[0].name)
            gradient = gradient_before(body, op.ins[0])
            averages = within(op.source, "pmean")
            remedy = f"leave the sum out, or average: jax.lax.pmean(..., {over})."
            remedy = "leave it out: it averages equal values." if averages else remedy
            why = ""
            if gradient is not None:
                why = (
                    ". A gradient of replicated parameters is: autodiff has already summed it over "
                    "the devices, so a further sum or mean cannot correct it"
                )
                remedy = two_ways(gradient, over)
            yield Finding(
                "SW201",
                f"{'pmean' if averages else op.name} over {over} of a value that is already the "
                f"same along it{why}",
                op.where,
                remedy=remedy,
                certain=False,
            )


def _is_of_data(body: Body, atom: Atom) -> bool:
    """Whether a value depends on an argument: a number of examples does not, and may be summed."""
    if not isinstance(atom, Var):
        return False
    ins = {*body.ins}
    return atom in ins or any(not ins.isdisjoint(op.ins) for op in ancestors(body, atom))


def made_up_for(found: Finding) -> Finding:
    """The same where every result is right: something else makes up for the further sum."""
    if found.message.startswith("pmean"):
        return found
    return dataclasses.replace(
        found,
        message=f"{found.message}. Every result is right, so something makes up for it",
        remedy="nothing, if that is meant, as where it is divided by the number of devices. "
        "Without it, nothing is sent along the axis.",
    )


def _may_part(body: Body, axes: list[Axis]) -> Iterator[Finding]:
    for op in Watch(body.ops).sites:
        inside = next(c for b in op.bodies for c in collectives_in(b.ops))
        yield Finding(
            "SW202",
            f"{inside} is under a decision that may differ between the devices; where it "
            "does, some wait forever",
            op.where,
            remedy="compute the collective on every device and select with jnp.where, or take the "
            "decision from a reduced value.",
            certain=False,
        )


def parted(body: Body) -> Iterator[tuple[Join, Axis]]:
    """What is declared the same along an axis, and computed from values that differ along it."""
    joins = [op for op in walk(body.ops) if isinstance(op, Join)]
    apart = {op: {*op.replicated} & op.ins[0].axes for op in joins}
    if any(apart.values()):
        # A loop keeps all it gives for each device, also what is the same on all of them.
        differing(body)
        apart = {op: {*op.replicated} & op.ins[0].axes for op in joins}
        annotate(body)
    for op, axes in apart.items():
        yield from [(op, axis) for axis in sorted(axes) if axis.size > 1][:1]


def _differs(body: Body, axes: list[Axis]) -> Iterator[Finding]:
    for op, axis in parted(body):
        yield Finding(
            "SW203",
            f"a result is declared the same along {axis.name!r} and computed from values that "
            "differ along it, with JAX's own check off",
            place_of_values(body, op),
            remedy="nothing, if the devices end up alike by another way than a reduction, as round "
            "a ring of ppermute. If they are alike by chance, other data shows it.",
            certain=False,
        )


def place_of_values(body: Body, join: Join) -> Where:
    """The line that makes what is declared the same."""
    return maker_of(body, join.ins[0], join).where


def came_out(found: Finding, apart: bool, shown: bool) -> Finding:
    """The same with what running showed: whether the devices' values differ, and the results."""
    if not apart:
        return dataclasses.replace(
            found, message=f"{found.message}. It came out the same on all devices here"
        )
    first = "the first device's is used" + ("" if shown else ", which no result shows")
    return dataclasses.replace(
        found,
        message=f"{found.message}. It came out different on the devices here; {first}",
        remedy=("look first at the other findings, which may be the reason. Else " if shown else "")
        + "reduce it, or declare it split in out_specs. With check_vma on, JAX itself shows such a "
        "place.",
        certain=shown,
    )


def not_sharded() -> Finding:
    """What is said of a program that the mesh has no part in."""
    return Finding(
        "SW204",
        NOT_SHARDED,
        NOWHERE,
        remedy="sw.explain(f, *args, mesh=mesh) shows what the compiler sends, and from which "
        "line; on the command line, shardwise explain. To check what each device does, write it as "
        "a function and map it: jax.shard_map(body, mesh=mesh, in_specs=..., out_specs=...).",
        certain=False,
    )


def axes_used(body: Body) -> set[Axis]:
    """The axes that a spec or a collective of the program names."""
    used: set[Axis] = set()
    for op in walk(body.ops):
        if isinstance(op, Split | Join | Collective):
            used |= set(op.axes)
        if isinstance(op, AxisIndex):
            used.add(op.axis)
    return used


def _unused(body: Body, axes: list[Axis]) -> Iterator[Finding]:
    if not is_sharded(body):
        if any(axis.size > 1 for axis in axes):
            yield not_sharded()
        return
    used = axes_used(body)
    first = next((op for op in walk(body.ops) if isinstance(op, Split | Join)), None)
    for axis in axes:
        if axis not in used and axis.size > 1:
            yield Finding(
                "SW204",
                f"nothing in the program uses mesh axis {axis.name!r}: its devices all do the same "
                "work",
                first.where if first else NOWHERE,
                remedy="name the axis in a spec or a collective, or leave it out of the mesh.",
                certain=False,
            )


def _gathered_to_reduce(body: Body, axes: list[Axis]) -> Iterator[Finding]:
    readers: dict[Var, list[Op]] = {}
    for op in walk(body.ops):
        for atom in op.ins:
            if isinstance(atom, Var):
                readers.setdefault(atom, []).append(op)
    for op in collectives_in(body.ops):
        users = readers.get(op.outs[0], [])
        reduces = [
            user for user in users if isinstance(user, Leaf) and of(user.name).acts == "reduces"
        ]
        if op.name == "all_gather" and users and reduces == users and op.outs[0].bytes >= LARGE:
            yield Finding(
                "SW205",
                f"all_gather brings {op.outs[0].bytes / 1e6:.1f} MB to every device, and the "
                "result is only reduced again",
                op.where,
                remedy="reduce first: jax.lax.psum (or pmax) sends the size of the result.",
                certain=False,
            )


RULES: tuple[Callable[[Body, list[Axis]], Iterator[Finding]], ...] = (
    _reduced_again,
    _may_part,
    _differs,
    _unused,
    _gathered_to_reduce,
)


def maker_of(body: Body, atom: Atom, otherwise: Op) -> Op:
    """The operation that made a value; `otherwise` for an input or a constant."""
    return next((op for op in walk(body.ops) if any(out is atom for out in op.outs)), otherwise)
