"""Find redundant traffic: collectives whose result needs fewer bytes, or none.

Nothing here is guessed. A collective is reported if the symbolic values of its operand and result,
or everything computed from the result, show what would replace it. It is not reported if these
values are unknown, or if one reader of the result needs more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..._meaning import (
    Kept,
    Known,
    Value,
    changes_in_loop,
    holding,
    is_number,
    own_part,
    same_reading,
)
from ..._program import (
    Atom,
    Body,
    Collective,
    Join,
    Leaf,
    Lit,
    Op,
    Scan,
    Split,
    Var,
    operation_key,
    primitives,
    within,
)
from . import repeated
from .instead import Avoidance, code, names, replacement, sent_bytes
from .repeated import is_recomputed

VIEWS = primitives.names(lambda p: p.identity or p.moves == "reorder") | {"convert_element_type"}
"""Operations that are looked through to find how a value is used."""

SCALES = {"mul", "div"}
"""Linear operations with a literal, which commute with a sum over devices."""

GONE = {"unused", "scattered", "reduced"}
"""Kinds of plans after which the whole result no longer exists."""


def plans(body: Body, values: Kept) -> dict[int, Avoidance]:
    """Return a plan for each collective that could be avoided, by `id` of the operation."""
    plans_by_op: dict[int, Avoidance] = {}
    for inner, loop in _bodies(body, None):
        plans_by_op |= _Look(inner, loop, values, plans_by_op).plans()
    return plans_by_op


def _bodies(body: Body, around: Op | None) -> Iterator[tuple[Body, Op | None]]:
    yield body, around
    for op in body.ops:
        for inner in op.bodies:
            yield from _bodies(inner, op)


class _Look:
    """Search one list of operations for collectives that could be avoided."""

    def __init__(
        self, body: Body, around: Op | None, values: Kept, plans_by_op: dict[int, Avoidance]
    ):
        self.body, self.around, self.meanings = body, around, values
        self.plans_by_op = dict(plans_by_op)
        self.readers: dict[Var, list[Op]] = {}
        self.makers: dict[Var, Op] = {}
        for op in body.ops:
            for var in op.outs:
                self.makers[var] = op
            for atom in op.ins:
                if isinstance(atom, Var):
                    self.readers.setdefault(atom, []).append(op)
        self.known_changes: dict[Any, bool] = {}
        self.returned = {atom for atom in body.outs if isinstance(atom, Var)}

    def plans(self) -> dict[int, Avoidance]:
        """Return the plans for the collectives of this list, without nested lists."""
        if not any(isinstance(op, Collective) for op in self.body.ops):
            return {}
        new_plans: dict[int, Avoidance] = {}
        holders = self._held_at_first()
        for op in self.body.ops:
            meaning = self.meanings.of(op)
            if meaning is None:
                continue
            if isinstance(op, Collective) and _sends(op) and len(op.ins) == len(op.outs) == 1:
                plan = self._plan(op, meaning.ins[0], meaning.outs[0], holders)
                if plan is not None:
                    new_plans[id(op)] = self.plans_by_op[id(op)] = plan
            self._take_in(op, meaning, holders)
        return new_plans

    def _take_in(self, op: Op, known: Known, present: dict) -> None:
        """Record the values that a device has after an operation: its operands and results."""
        if _on_device(op):
            pairs: list[tuple[Atom, Value]] = [*zip(op.outs, known.outs, strict=True)]
            if not isinstance(op, Split):
                pairs += zip(op.ins, known.ins, strict=True)
            for atom, value in pairs:
                if isinstance(atom, Var):
                    present.setdefault((value, str(atom.dtype)), atom)

    def _held_at_first(self) -> dict[tuple[Value, str], Var]:
        if self.around is None or not _on_device(self.around):
            return {}  # whole arrays, which no single device has
        values = self.meanings.inputs_of(self.body) or []
        pairs = zip(self.body.ins, values, strict=False)
        return {(value, str(var.dtype)): var for var, value in pairs}

    def _plan(self, op: Collective, before: Value, after: Value, present: dict) -> Avoidance | None:
        return (
            self._same(op, before)
            or self._present(op, after, present)
            or self._given_back(op, before)
            or self._scattered(op, after)
            or self._reduced(op)
            or self._merged(op)
            or self._order(op)
            or self._in_loop(op, after)
        )

    # --- values that the devices already have

    def _same(self, op: Collective, before: Value) -> Avoidance | None:
        """Plan for an operand that is the same along some or all of the axes."""
        real = [axis for axis in op.axes if axis.size > 1]
        varying = before.axes | before.debts
        redundant_axes = [axis for axis in real if axis not in varying]
        if not redundant_axes or not _reaches_all(op):
            return None
        remaining = tuple(axis for axis in op.axes if axis not in redundant_axes)
        if len(redundant_axes) < len(real) and (
            op.name not in primitives.REDUCTIONS or op.groups is not None
        ):
            return None
        axes, mean = names(redundant_axes), within(op.source, "pmean")
        name = "pmean" if mean else op.name
        reason = f"{name} of what is already the same on all devices along {axes}"
        if len(redundant_axes) < len(real):
            other = replacement(op.name, remaining, sent_bytes(op))
            remedy = f"leave {axes} out: jax.lax.{name}(..., {code(remaining)})"
            if op.name == "psum" and not mean:
                remedy += f", times jax.lax.axis_size({code(redundant_axes)})"
            return Avoidance("same", reason, remedy + ".", (other,))
        if op.backward and op.name == "psum":
            remedy = "autodiff adds it where check_vma=False; with check_vma=True it sends nothing."
        elif mean or primitives.of(op.name).idempotent:
            remedy = f"leave the {name} out: it gives back what goes in."
        elif op.name == "psum":
            remedy = f"multiply by jax.lax.axis_size({code(redundant_axes)}), or leave it out."
        else:
            remedy = "make it here: every device has all that it would be sent."
        return Avoidance("same", reason, remedy)

    def _present(self, op: Collective, after: Value, present: dict) -> Avoidance | None:
        """Plan for a result that the device already has."""
        var = present.get((after, str(op.outs[0].dtype)))
        maker = self.makers.get(var) if var is not None else None
        if var is None or is_number(after) or (after.owed and not _the_same(maker, op)):
            # Shares of one sum may differ, unless they are computed in the same way.
            return self._sent_back(op)
        if not isinstance(maker, Collective):
            meaning = self.meanings.of(op)
            name = holding(after, meaning.names if meaning else {})
            has_line = maker is not None and not isinstance(maker, Split) and maker.where.file
            place = f", made at {maker.where}" if has_line and maker else ""
            return Avoidance(
                "held",
                f"the device already has what {op.name} gives it: {name}{place}",
                "use what is there.",
            )
        if id(maker) in self.plans_by_op and self.plans_by_op[id(maker)].kind in GONE:
            return None
        if is_recomputed(op):
            return Avoidance(
                "recomputed",
                f"jax.checkpoint sends again what {maker.name} gave at {maker.where}",
                "a policy of jax.checkpoint that saves it would spare this, at the price of the "
                "memory.",
                memory=op.outs[0].bytes,
            )
        return Avoidance(
            "repeated",
            f"{maker.name} at {maker.where} has already given the same",
            "keep that result and use it here.",
        )

    def _sent_back(self, op: Collective) -> Avoidance | None:
        """Plan for a result that is the operand of the collective before it."""
        first = self.makers.get(op.ins[0]) if isinstance(op.ins[0], Var) else None
        plan = self.plans_by_op.get(id(first))
        if not isinstance(first, Collective) or plan is None or plan.kind != "unused":
            return None
        return Avoidance(
            "held",
            f"it only undoes the {first.name} at {first.where}",
            "leave both out.",
        )

    def _given_back(self, op: Collective, before: Value) -> Avoidance | None:
        """Plan for a result from which only the operand is recovered."""
        kind = op.ins[0].dtype if isinstance(op.ins[0], Var) else None

        def again(value: Value, var: Var) -> bool:
            return var.dtype == kind and same_reading(value, before)

        if not self._all(op.outs[0], again):
            return None
        reason = f"of what {op.name} brings, each device only takes its own part back"
        if any(isinstance(user, Collective) for user in self.readers[op.outs[0]]):
            reason = f"what {op.name} brings is only sent back"
        return Avoidance("unused", reason, "use what goes in.")

    # --- replacements that send fewer bytes

    def _scattered(self, op: Collective, after: Value) -> Avoidance | None:
        """Plan for a sum of which every device keeps only its own part."""
        if op.name != "psum" or op.groups is not None:
            return None
        axes = tuple(axis for axis in op.axes if axis.size > 1)
        count = math.prod(axis.size for axis in axes)
        for dim, size in enumerate(op.outs[0].shape):
            if size % count:
                continue
            part = own_part(after, dim, axes)
            if part is not None and self._only(op.outs[0], part):
                return Avoidance(
                    "scattered",
                    "of the sum every device keeps only its own part",
                    f"jax.lax.psum_scatter(..., {code(op.axes)}, scatter_dimension={dim}, "
                    "tiled=True) sends half as much.",
                    (replacement("psum_scatter", op.axes, sent_bytes(op)),),
                )
        return None

    def _reduced(self, op: Collective) -> Avoidance | None:
        """Plan for a gathered array that is only reduced along the gathered dimension."""
        if op.name != "all_gather" or op.groups is not None:
            return None
        users = self._users(op.outs[0])
        if not users or not all(_reduces(user, op.params["dimension"]) for user in users):
            return None
        with_what = [_over_devices(user) for user in users]
        reductions = tuple(
            replacement(name, op.axes, user.outs[0].bytes)
            for name, user in zip(with_what, users, strict=True)
        )
        gathered = replacement("all_gather", op.axes, sent_bytes(op))
        if sum(reduction.bytes_sent for reduction in reductions) >= gathered.bytes_sent:
            return None
        calls = " and ".join(dict.fromkeys(with_what))
        return Avoidance(
            "reduced",
            f"what all_gather brings is only reduced, at {users[0].where}",
            f"reduce on each device first, then jax.lax.{calls} over {code(op.axes)}: it sends "
            "the size of the result.",
            reductions,
        )

    def _merged(self, op: Collective) -> Avoidance | None:
        """Plan for a sum of a sum: one collective over the axes of both."""
        if op.name not in primitives.REDUCTIONS or op.groups is not None:
            return None
        first = self._summed(op.ins[0])
        if first is None or first.name != op.name or first.groups is not None:
            return None
        if id(first) in self.plans_by_op or set(first.axes) & set(op.axes):
            return None
        axes = (*first.axes, *op.axes)
        merged = replacement(op.name, axes, sent_bytes(op))
        separate = (replacement(step.name, step.axes, sent_bytes(step)) for step in (first, op))
        if merged.bytes_sent >= sum(each.bytes_sent for each in separate):
            return None
        means = [step for step in (first, op) if within(step.source, "pmean")]
        name = "pmean" if len(means) == 2 else op.name
        divided = "".join(f", divided by jax.lax.axis_size({code(step.axes)})," for step in means)
        inner = "pmean" if first in means else op.name
        return Avoidance(
            "merged",
            f"the {inner} over {names(first.axes)} at {first.where} goes into this one alone",
            f"one jax.lax.{name}(..., {code(axes)}){divided * (len(means) == 1)} does both.",
            (merged,),
            also=first,
        )

    def _order(self, op: Collective) -> Avoidance | None:
        """Plan for a reduction of the whole where reducing a part on each device would do."""
        if op.name not in primitives.REDUCTIONS or op.groups is not None:
            return None
        maker = self.makers.get(op.ins[0]) if isinstance(op.ins[0], Var) else None
        users = self._users(op.outs[0]) or []
        after = users[0] if len(users) == 1 else None
        if op.name == "psum" and isinstance(after, Collective) and after.name == "psum_scatter":
            peer, remedy = after, "scatter first, and sum the parts"
            reason = "leaves each device only a part of it"
        elif isinstance(maker, Collective) and maker.name == "all_gather":
            if self._users(maker.outs[0]) != [op]:
                return None
            peer, remedy = maker, f"{op.name} the parts first, and gather the result"
            reason = "has put it together from parts"
        else:
            return None
        if peer.groups is not None or set(peer.axes) & set(op.axes) or id(peer) in self.plans_by_op:
            return None
        parts = math.prod(axis.size for axis in peer.axes)
        return Avoidance(
            "order",
            f"{op.name} of the whole, where {peer.name} over {names(peer.axes)} at {peer.where} "
            f"{reason}",
            f"{remedy}: it sends one part in {parts}.",
            (replacement(op.name, op.axes, -(-sent_bytes(op) // parts)),),
        )

    def _summed(self, atom: Any) -> Collective | None:
        """Return the reduction that a value comes from, with only constant factors in between."""
        while isinstance(atom, Var) and len(self._users(atom) or ()) == 1:
            maker = self.makers.get(atom)
            if isinstance(maker, Collective):
                return maker if atom.dtype == maker.outs[0].dtype else None
            if not isinstance(maker, Leaf) or maker.name not in SCALES:
                return None
            numbers = [lit.value for lit in maker.ins[1:] if isinstance(lit, Lit)]
            if len(numbers) != 1 or getattr(numbers[0], "shape", ()) != () or not numbers[0] > 0:
                return None  # a negative factor turns a maximum into a minimum
            atom = maker.ins[0]
        return None

    def _in_loop(self, op: Collective, after: Value) -> Avoidance | None:
        """Plan for a collective that a loop repeats unchanged, or only accumulates."""
        loop, meaning = self.around, self.meanings.of(op)
        if not isinstance(loop, Scan) or loop.length < 2 or meaning is None or is_recomputed(op):
            return None
        changes = changes_in_loop(after, meaning.depth, self.meanings, self.known_changes)
        return repeated.added_up_only(op, loop) if changes else repeated.always_the_same(op, loop)

    # --- readers

    def _users(self, var: Var) -> list[Op] | None:
        """Return the operations that read a value; None if it is also a result of the list."""
        return None if var in self.returned else self.readers.get(var, [])

    def _all(self, var: Var, fits: Callable[[Value, Var], bool]) -> bool:
        """Return whether everything computed from a value, or from views of it, `fits`."""
        users = self._users(var)
        return bool(users) and all(self._becomes(user, fits) for user in users or ())

    def _only(self, var: Var, part: Value) -> bool:
        """Return whether everything computed from a value is this part of it."""
        return self._all(var, lambda value, _: same_reading(value, part))

    def _becomes(self, user: Op, fits: Callable[[Value, Var], bool]) -> bool:
        meaning = self.meanings.of(user)
        if meaning is None or len(user.outs) != 1 or user.bodies:
            return False
        if isinstance(user, Leaf | Collective) and fits(meaning.outs[0], user.outs[0]):
            return True
        view = isinstance(user, Leaf) and user.name in VIEWS
        return view and self._all(user.outs[0], fits)


def _the_same(a: Op | None, b: Op) -> bool:
    """Return whether two operations do the same to the same values."""
    key = operation_key(b)
    return a is not None and key is not None and operation_key(a) == key and a.ins == b.ins


def _on_device(op: Op) -> bool:
    """Return whether the results of an operation are per device, inside a `shard_map`."""
    return isinstance(op, Split) or (bool(op.scope) and not isinstance(op, Join))


def _reaches_all(op: Collective) -> bool:
    """Return whether every device receives something; devices that do not receive get zeros."""
    pairs = op.params.get("perm")
    return pairs is None or len(pairs) == math.prod(axis.size for axis in op.axes)


def _sends(op: Collective) -> bool:
    return op.sends and math.prod(axis.size for axis in op.axes) > 1


def _reduces(user: Op, dimension: int) -> bool:
    return bool(_over_devices(user)) and dimension in getattr(user, "params", {})["axes"]


def _over_devices(op: Op) -> str:
    """Return the collective that corresponds to a reduction along dimensions."""
    row = primitives.of(op.name) if isinstance(op, Leaf) else primitives.UNKNOWN
    return primitives.BY_KIND.get(row.combines, "") if row.acts == "reduces" else ""
