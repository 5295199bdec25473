"""The numbers of a term: what it says, worked out by NumPy in double precision.

Nothing here is shared with `shardwise._meaning`: what a term means is written down a second time,
as plainly as possible. What has no numbers (an opaque symbol, a function that each device computes
by itself) is None, and whoever asks has to count it.

Everything is a float: types do not exist in terms. Random keys are structured arrays, so that they
can be reshaped and chosen from as numbers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwise._meaning.term import Scaled, Term

from .functions import BITS, EACH
from .structure import STRUCTURE

BOUND = ("carry", "step")


class Evaluator:
    """Terms over given arguments."""

    def __init__(self, arguments: Sequence[Any], constants: Mapping[Term, Any]):
        self.arguments = arguments
        self.constants = constants
        self.found: dict[Term, Any] = {}
        self.bound: dict[Any, Any] = {}
        self.has_symbols: dict[Term, bool] = {}
        self.unknown: set[str] = set()

    def __call__(self, x: Scaled) -> Any:
        """The number array of a coefficient and a term; None where there is none."""
        coef, term = x
        if not coef:
            return np.zeros(term.shape)
        found = self.term(term)
        if found is None or coef == 1:
            return found
        return found * (float(coef) if not isinstance(coef, complex) else coef)

    def term(self, top: Term) -> Any:
        """The numbers of a term. Deep terms are worked off a stack."""
        stack = [top]
        while stack:
            t = stack[-1]
            if t in self.found:
                stack.pop()
                continue
            kids = [kid for c, kid in t.kids if c] if t.op not in ("loop", "while") else []
            waiting = [kid for kid in kids if kid not in self.found]
            if waiting:
                stack += waiting
                continue
            with np.errstate(all="ignore"):
                self.found[t] = self.own(t)
            stack.pop()
        return self.found[top]

    def own(self, t: Term) -> Any:
        """The numbers of a term whose operands are there."""
        if t.op == "symbol":
            if t.params[0] == "argument":
                return self.arguments[t.params[1]]
            if t.params not in self.bound:
                self.unknown.add(f"symbol {t.params[0]}")
            found = self.bound.get(t.params)
            assert found is None or found.shape == t.shape, (t, found.shape)
            return found
        if t.op == "const":
            if t not in self.constants:
                self.unknown.add("const")
            return self.constants.get(t)
        if t.op == "nothing":
            return np.zeros(())
        if t.op == "loop":
            return self.loop(t)
        if t.op == "while":
            return self.repeat(t)
        kids = [self(kid) for kid in t.kids]
        if any(kid is None for kid in kids):
            return None
        rule = STRUCTURE.get(t.op)
        if rule is not None:
            out = rule(t.params, kids, t.shape)
        elif t.op in EACH:
            out = EACH[t.op](*kids)
        elif t.op in BITS:
            out = BITS[t.op](t.params, *kids)
        else:
            out = None
        if out is None:
            self.unknown.add(t.op)
            return None
        out = np.asarray(out)
        assert out.shape == t.shape, (t, t.params, out.shape, [k.shape for k in kids])
        return out if out.dtype.kind in "cV" else out.astype(float)

    # --- loops: the bodies are terms over symbols, which are bound to numbers one step at a time

    def loop(self, t: Term) -> Any:
        """A loop of known length: what it carries at the end, or the results of all its steps."""
        which, n_outs, n_carry, length, reverse, depth, leads = t.params
        outs, carry = t.kids[:n_outs], t.kids[n_outs : n_outs + n_carry]
        state = [self(kid) for kid in carry]
        steps = [self.term(kid) for _, kid in t.kids[n_outs + n_carry :]]
        rows: list[Any] = [None] * length
        for step in reversed(range(length)) if reverse else range(length):
            env = {("carry", depth, i): one for i, one in enumerate(state)}
            for i, (one, lead) in enumerate(zip(steps, leads, strict=True)):
                env["step", depth, i] = None if one is None else np.take(one, step, axis=lead)
            new = self.within(outs, env)
            state, rows[step] = new[:n_carry], new
        if isinstance(which, int):
            return state[which]
        index, lead = which
        if not length:
            return np.zeros(t.shape)
        if any(row[index] is None for row in rows):
            return None
        return np.stack([row[index] for row in rows], axis=lead)

    def repeat(self, t: Term) -> Any:
        """A loop while a condition holds."""
        index, count, depth = t.params
        decision, outs, carry = t.kids[0], t.kids[1 : 1 + count], t.kids[1 + count :]
        state = [self(kid) for kid in carry]
        for _ in range(10_000):
            env = {("carry", depth, i): one for i, one in enumerate(state)}
            (go,) = self.within([decision], env)
            if go is None or not go:
                return None if go is None else state[index]
            state = self.within(outs, env)
        raise AssertionError("a loop that does not end")

    def within(self, terms: Sequence[Scaled], env: Mapping[Any, Any]) -> list[Any]:
        """Terms with some symbols bound. What has no symbols in it is not worked out again."""
        inner = Evaluator(self.arguments, self.constants)
        inner.has_symbols, inner.unknown = self.has_symbols, self.unknown
        inner.found = {t: x for t, x in self.found.items() if not self.symbols_in(t)}
        inner.bound = {**self.bound, **env}
        out = [inner(one) for one in terms]
        for t, x in inner.found.items():
            if t not in self.found and not self.symbols_in(t):
                self.found[t] = x
        return out

    def symbols_in(self, top: Term) -> bool:
        """Whether a term has symbols of any loop in it."""
        known, stack = self.has_symbols, [top]
        while stack:
            t = stack[-1]
            waiting = [kid for _, kid in t.kids if kid not in known]
            if waiting:
                stack += waiting
                continue
            own = t.op == "symbol" and t.params[0] in BOUND
            known[t] = own or any(known[kid] for _, kid in t.kids)
            stack.pop()
        return known[top]
