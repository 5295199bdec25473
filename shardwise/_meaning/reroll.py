"""Turn unrolled Python loops back into `scan`.

`for i in range(k): g += grad(loss)(w, x[i*m:(i+1)*m])` traces to k copies of one computation, each
with its own slice. Read slice by slice, nothing shows that together they are all rows. So sums
whose summands differ only in the position of their slices become one loop over the slices, which is
read at once (`independent`). A loop whose stacked results are only added up, such as
`lax.map(grad, batches).mean(0)`, becomes one that accumulates the sum.

Each device computes exactly what it did before; only the list of operations differs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._program import Atom, Body, Leaf, Op, Scan, Var, live, shape_of, twin
from .._program.primitives import ADDITIONS
from .leaves import made_leaf, var_like
from .signature import ContiguousBlock, Numbering, users, window
from .summed import adding_loops, sums_in, zeros_of


def rolled(body: Body) -> Body:
    """Return the program with loops in place of repetitions; the same object if there are none."""
    rerolled = _Roller(adding_loops(body)).rolled()
    if rerolled is body:
        return body
    return Body(body.ins, live(rerolled.ops, body.outs), body.outs)


JOINS = {"stack": "axis", "concatenate": "dimension"}
"""Operations whose operands become parts of the result, and the parameter that is the dimension."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
    """Values that are added up, and the operations applied to their sum."""

    op: Op
    at: int
    leaves: list[Atom]
    finish: Callable[[Var], list[Op]]


@dataclasses.dataclass(eq=False)
class _Loop:
    """A loop under construction: one iteration of it as a template."""

    at: int
    count: int
    made: dict[tuple[int, ...], Atom] = dataclasses.field(default_factory=dict)
    ops: list[Op] = dataclasses.field(default_factory=list)
    consts: list[Var] = dataclasses.field(default_factory=list)
    before: list[Op] = dataclasses.field(default_factory=list)
    stacked: list[tuple[Var, Var]] = dataclasses.field(default_factory=list)
    sums: list[tuple[Op, Atom, Var]] = dataclasses.field(default_factory=list)

    def arrange(self, like: Op, name: str, v: Var, shape: Sequence[int], params: Any) -> Var:
        """Append an operation before the loop that rearranges a value."""
        out = var_like(v, shape)
        self.before.append(made_leaf(like, name, [v], out, **params))
        return out

    def copy(self) -> _Loop:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _Loop(**{k: v.copy() if hasattr(v, "copy") else v for k, v in fields.items()})


class _Fails(Exception):
    """The summands are not iterations of one loop."""


class _Roller:
    """Finds sums of equivalent computations in one program."""

    def __init__(self, body: Body):
        self.body = body
        self.uses = users(body.ops, body.outs)
        self.makers = {
            out: (at, op, j) for at, op in enumerate(body.ops) for j, out in enumerate(op.outs)
        }

    def rolled(self) -> Body:
        chains = [*self.chains()]
        if not chains:
            return self.body
        self.numbers = Numbering(self.body)
        loops: list[_Loop] = []
        replaced: dict[int, list[Op]] = {}
        for chain in sorted(chains, key=lambda chain: chain.at):
            for family in self.families(chain.leaves):
                joined = self.joined(loops, chain, family)
                if joined is not None:
                    rest = _without(chain.leaves, family)
                    replaced[chain.at] = _total(chain, joined, rest)
                    break
        if not replaced:
            return self.body
        ops: list[Op] = []
        for at, op in enumerate(self.body.ops):
            for loop in loops:
                if loop.at == at:
                    ops += _scan(loop)
            ops += replaced.get(at, [op])
        return Body(self.body.ins, ops, self.body.outs)

    # --- which values are added up

    def chains(self) -> Iterable[_Chain]:
        inside: set[int] = set()
        for at in reversed(range(len(self.body.ops))):
            op = self.body.ops[at]
            if isinstance(op, Leaf) and op.name in ADDITIONS and id(op) not in inside:
                leaves = self.leaves(op, inside)
                if len(leaves) > 1:
                    yield _Chain(op, at, leaves, _renaming(op))
        for total in sums_in(self.body):
            maker = self.makers.get(total.of)
            if maker is None or not isinstance(maker[1], Leaf):
                continue
            leaf, at = maker[1], self.makers[total.op.outs[0]][0]
            axis = leaf.params.get(JOINS.get(leaf.name, ""))
            # Summands of different sizes cannot be added before the sum.
            if axis in total.op.params["axes"] and len({*map(shape_of, leaf.ins)}) == 1:
                gone = axis if leaf.name == "stack" else None
                finish = functools.partial(total.finish, gone=gone)
                yield _Chain(total.op, at, [*leaf.ins], finish)

    def leaves(self, root: Leaf, inside: set[int]) -> list[Atom]:
        leaves: list[Atom] = []
        stack: list[Atom] = [*reversed(root.ins)]
        while stack:
            atom = stack.pop()
            maker = self.makers.get(atom) if isinstance(atom, Var) else None
            if (
                isinstance(atom, Var)
                and maker is not None
                and isinstance(maker[1], Leaf)
                and maker[1].name in ADDITIONS
                and len(self.uses[atom]) == 1
                and tuple(atom.shape) == tuple(root.outs[0].shape)
            ):
                inside.add(id(maker[1]))
                stack += reversed(maker[1].ins)
            else:
                leaves.append(atom)
        return leaves

    def families(self, leaves: Sequence[Atom]) -> list[list[Var]]:
        """Return groups of equivalent summands, the largest first."""
        groups: dict[int, list[Var]] = {}
        for leaf in leaves:
            if isinstance(leaf, Var) and leaf in self.makers:
                groups.setdefault(self.numbers.alike[leaf], []).append(leaf)
        several = [group for group in groups.values() if len({*group}) == len(group) > 1]
        return sorted(several, key=len, reverse=True)

    # --- one iteration as a template

    def joined(self, loops: list[_Loop], chain: _Chain, family: list[Var]) -> Var | None:
        """Return the sum of a family as the result of a loop, an existing one if it fits."""
        family = self.in_order(family)
        fitting = [loop for loop in loops if loop.count == len(family)]
        for loop in (*fitting, _Loop(chain.at, len(family))):
            trial = loop.copy()
            try:
                step = self.unified(trial, tuple(family))
            except _Fails:
                continue
            if not trial.stacked or not isinstance(step, Var):
                continue
            total = twin(family[0])
            trial.sums.append((chain.op, step, total))
            if loop in loops:
                loops[loops.index(loop)] = trial
            else:
                loops.append(trial)
            return total
        return None

    def in_order(self, family: list[Var]) -> list[Var]:
        """Sort a family by the positions of its slices, in the order of the search for them."""
        rows = [(self.places(var), i) for i, var in enumerate(family)]
        return [family[i] for _, i in sorted(rows)]

    def places(self, top: Var) -> list[tuple[int, ...]]:
        places, seen, stack = [], {top}, [top]
        while stack:
            var = stack.pop()
            maker = self.makers.get(var)
            if maker is None:
                continue
            part = window(maker[1], maker[2])
            if part is not None:
                places.append(part.starts)
                continue
            for atom in maker[1].ins:
                if isinstance(atom, Var) and atom not in seen:
                    seen.add(atom)
                    stack.append(atom)
        return places

    def unified(self, loop: _Loop, top: tuple[Atom, ...]) -> Atom:
        """Return the template's value for a tuple of values, one for each iteration."""
        stack = [top]
        while stack:
            atoms = stack[-1]
            key = tuple(map(self.numbers.of, atoms))
            if key in loop.made:
                stack.pop()
                continue
            pending = self.enter(loop, key, atoms)
            if pending:
                stack += pending
            else:
                stack.pop()
        return loop.made[tuple(map(self.numbers.of, top))]

    def enter(
        self, loop: _Loop, key: tuple[int, ...], atoms: tuple[Atom, ...]
    ) -> list[tuple[Atom, ...]]:
        """Enter a value into the template, or return the values that have to be entered first."""
        first = atoms[0]
        if len({*key}) == 1:
            loop.made[key] = first
            if isinstance(first, Var):
                if first in self.makers and self.makers[first][0] >= loop.at:
                    raise _Fails
                loop.consts.append(first)
            return []
        rows = [row for atom in atoms if isinstance(atom, Var) and (row := self.makers.get(atom))]
        ops = [row[1] for row in rows]
        if len(ops) < len(atoms):
            raise _Fails
        parts = self.windows(atoms)
        if parts is not None:
            loop.made[key] = self.stack(loop, ops[0], parts)
            return []
        if len({(row[2], self.numbers.kind(row[1])) for row in rows}) > 1:
            raise _Fails
        columns = [tuple(op.ins[i] for op in ops) for i in range(len(ops[0].ins))]
        numbers = [tuple(map(self.numbers.of, column)) for column in columns]
        pending = [c for c, n in zip(columns, numbers, strict=True) if n not in loop.made]
        if pending:
            return pending
        outs = [twin(out) for out in ops[0].outs]
        loop.ops.append(dataclasses.replace(ops[0], ins=[loop.made[n] for n in numbers], outs=outs))
        for j, out in enumerate(outs):
            loop.made[tuple(self.numbers.of(op.outs[j]) for op in ops)] = out
        return []

    def windows(self, atoms: tuple[Atom, ...]) -> list[ContiguousBlock] | None:
        """Return the slices that values are, if these start at different positions."""
        blocks = [block for atom in atoms if (block := self.block(atom)) is not None]
        apart = len(blocks) == len(atoms) and len({block.starts for block in blocks}) > 1
        return blocks if apart else None

    def block(self, atom: Atom) -> ContiguousBlock | None:
        """Return the slice that a value is, possibly without dimensions of size 1."""
        maker = self.makers.get(atom) if isinstance(atom, Var) else None
        if maker is None:
            return None
        _, op, index = maker
        if isinstance(op, Leaf) and op.name == "squeeze":
            block = self.block(op.ins[0])
            if block is None or block.gone:
                return None
            gone = tuple(d % len(block.sizes) for d in op.params["dimensions"])
            return dataclasses.replace(block, gone=gone)
        return window(op, index)

    def stack(self, loop: _Loop, like: Op, parts: list[ContiguousBlock]) -> Var:
        """Stack adjacent slices for the loop to scan over; return one iteration's slice."""
        first, dropped = parts[0], parts[0].gone
        if len({self.numbers.of(part.of) for part in parts}) > 1 or not isinstance(first.of, Var):
            raise _Fails
        if first.of in self.makers and self.makers[first.of][0] >= loop.at:
            raise _Fails
        d = _side_by_side(parts)
        source, sizes = first.of, [*first.sizes]
        sizes[d] *= len(parts)
        if sizes != [*source.shape]:
            limits = tuple(a + b for a, b in zip(first.starts, sizes, strict=True))
            params = {"start_indices": first.starts, "limit_indices": limits, "strides": None}
            source = loop.arrange(like, "slice", source, sizes, params)
        kept = [e for e in range(len(sizes)) if e not in dropped]
        if d in dropped:
            kept = sorted([*kept, d])
            shape = [sizes[e] for e in kept]
        else:
            rows = [(len(parts), first.sizes[d]) if e == d else (sizes[e],) for e in kept]
            shape = [size for row in rows for size in row]
        if shape != [*source.shape]:
            params = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
            source = loop.arrange(like, "reshape", source, shape, params)
        if kept.index(d):
            order = (kept.index(d), *(e for e in range(len(shape)) if e != kept.index(d)))
            transposed = [shape[e] for e in order]
            source = loop.arrange(like, "transpose", source, transposed, {"permutation": order})
        step = var_like(like.outs[0], source.shape[1:])
        loop.stacked.append((source, step))
        return step


def _side_by_side(parts: list[ContiguousBlock]) -> int:
    """Return the dimension along which parts are adjacent, in order."""
    first, second = parts[0], parts[1]
    along = [d for d, start in enumerate(first.starts) if second.starts[d] != start]
    if len(along) != 1:
        raise _Fails
    (d,) = along
    for i, part in enumerate(parts):
        place = first.starts[d] + i * first.sizes[d]
        want = (*first.starts[:d], place, *first.starts[d + 1 :])
        if part.starts != want or (part.sizes, part.gone) != (first.sizes, first.gone):
            raise _Fails
    return d


def _renaming(op: Op) -> Callable[[Var], list[Op]]:
    return lambda total: [made_leaf(op, "copy", [total], op.outs[0])]


def _without(leaves: Sequence[Atom], family: Sequence[Var]) -> list[Atom]:
    members = {*family}
    return [leaf for leaf in leaves if not isinstance(leaf, Var) or leaf not in members]


def _total(chain: _Chain, total: Var, rest: Sequence[Atom]) -> list[Op]:
    """Add the summands outside of the family to the sum of the family."""
    ops: list[Op] = []
    for atom in rest:
        out = twin(total)
        ops.append(made_leaf(chain.op, "add", [atom, total], out))
        total = out
    return [*ops, *chain.finish(total)]


def _scan(loop: _Loop) -> list[Op]:
    """Return the operations of a loop."""
    like = loop.sums[0][0]
    ops, starts, carries, outs = [*loop.before], [], [], []
    inner = [*loop.ops]
    for op, step, total in loop.sums:
        zeros, start = zeros_of(op, total)
        ops.append(zeros)
        carried, summed = twin(total), twin(total)
        inner.append(made_leaf(op, "add", [carried, step], summed))
        starts.append(start)
        carries.append(carried)
        outs.append(summed)
    body = Body([*loop.consts, *carries, *(step for _, step in loop.stacked)], inner, outs)
    scan = Scan(
        [*loop.consts, *starts, *(steps for steps, _ in loop.stacked)],
        [total for _, _, total in loop.sums],
        body,
        len(loop.consts),
        len(starts),
        loop.count,
        False,
        1,
        scope=like.scope,
        source=like.source,
        calls=like.calls,
    )
    return [*ops, scan]
