"""Statements that hang on real devices: a collective that only some of them reach."""

from __future__ import annotations

from .language import NOWHERE, Block, Register
from .scope import Scope


def hang(s: Scope) -> Register:
    """A collective that only some devices reach."""
    axis = s.draw.pick([a for a in s.sizes if s.sizes[a] > 1])
    lonely = s.draw.integer(0, s.sizes[axis] - 1)
    r = s.cast(s.real(24), frozenset([axis]))
    forms = [
        "lax.psum({0}, {1})",
        "lax.all_gather({0}, {1}).sum(0)",
        "lax.ppermute({0}, {1}, [(0, 1)])",
        "lax.pmean({0} ** 2, {1})",
    ]
    call = s.draw.pick(forms).format(r.name, repr(axis))
    call = f"vary({call}, {axis!r})" if "psum" in call or "pmean" in call else call
    there, gone = Block(s.fresh(), ()), Block(s.fresh(), ())
    there.result, gone.result = call, f"jnp.sin({r.name})"
    predicate = f"lax.axis_index({axis!r}) == {lonely}"
    new = s.new(r.shape, "float32", r.varying, r.differs | {axis}, 4.0)
    ways = s.draw.shuffled([there, gone])
    call = f"lax.cond({predicate}, {ways[0].name}, {ways[1].name})"
    if s.draw.chance(40):
        call = f"lax.switch(lax.axis_index({axis!r}), [{ways[0].name}, {ways[1].name}])"
    return s.tamed(s.write(new, call, *ways))


def hang_in_a_loop(s: Scope) -> None:
    r = s.real(24)
    kept = frozenset(s.sizes)
    start = s.cast(r, kept)
    carry = s.new(start.shape, "float32", kept, kept, 2.0)
    index = s.new((), "float32", NOWHERE, NOWHERE)
    inner = s.inner(s.fresh(), (carry, index))
    inner.fill()
    # Something has to use the result: JAX drops what nothing uses, and with it the hanging.
    new = inner.confined(inner.fitted(hang(inner), carry.shape), kept)
    inner.block.result = f"jnp.tanh({new.name}), None"
    call = f"lax.scan({inner.block.name}, {start.name}, jnp.arange(2.0))[0]"
    s.write(s.new(start.shape, "float32", kept, kept), call, inner.block)
