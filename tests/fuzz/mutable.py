"""Statements that keep values in refs."""

from __future__ import annotations

from .language import Block, Register, Statement
from .meeting import over
from .scope import Scope


def ref(s: Scope) -> None:
    """A function that writes to a ref, perhaps in a loop or a branch, and reads it."""
    if s.smooth and not s.draw.chance(15):
        return
    r = s.real(24)
    everywhere = frozenset(s.sizes)
    start = s.cast(r, everywhere)
    s.features.add("refs in the body")
    param = s.new(start.shape, "float32", everywhere, everywhere, 2.0)
    inner = s.inner(s.fresh(), (param,))
    cell = f"cell{next(s.names)}"
    _do(inner, f"{cell} = jax.new_ref({param.name})")
    for _ in range(s.draw.integer(1, 3)):
        inner.fill()
        s.draw.weighted([(4, _write), (2, _reduce), (2, _loop), (2, _branch)])(inner, cell, param)
    read = s.draw.pick([f"{cell}[...]", f"jax.freeze({cell})"])
    inner.block.result = f"jnp.tanh({read})"
    new = s.new(start.shape, "float32", everywhere, everywhere, 1.0)
    s.write(new, f"{inner.block.name}({start.name})", inner.block)


def _do(s: Scope, text: str, *blocks: Block) -> None:
    s.block.statements.append(Statement((), text, blocks))


def _value(s: Scope, like: Register) -> Register:
    return s.within(like.shape, like.varying)


def _write(s: Scope, cell: str, like: Register) -> None:
    value = _value(s, like)
    if like.shape and s.draw.chance(40):
        at = s.draw.integer(0, like.shape[0] - 1)
        _do(s, f"{cell}[{at}] = 0.5 * {cell}[{at}] + {value.name}[{at}]")
    else:
        _do(s, f"{cell}[...] = 0.5 * {cell}[...] + {value.name}")


def _reduce(s: Scope, cell: str, like: Register) -> None:
    if not s.meet:
        return _write(s, cell, like)
    axes = s.axes()
    s.features.add("a ref across a collective")
    seen = s.new(like.shape, "float32", like.varying - set(axes), like.differs - set(axes), 2.0)
    seen = s.cast(s.write(seen, f"lax.pmean({cell}[...], {over(axes)})"), like.varying)
    return _do(s, f"{cell}[...] = jnp.sin({seen.name}) + 0.5 * {cell}[...]")


def _loop(s: Scope, cell: str, like: Register) -> None:
    s.features.add("a ref written in a loop")
    value = _value(s, like)
    body = Block(s.fresh(), ("n", "carry"))
    body.statements.append(Statement((), f"{cell}[...] = 0.5 * {cell}[...] + 0.1 * {value.name}"))
    body.result = f"carry + 0.1 * {cell}[...]"
    turns = s.draw.integer(1, 3)
    new = s.new(like.shape, "float32", like.varying, like.differs, 3.0)
    s.write(new, f"lax.fori_loop(0, {turns}, {body.name}, {value.name})", body)


def _branch(s: Scope, cell: str, like: Register) -> None:
    index = s.whole()
    if index is None:
        return _write(s, cell, like)
    s.features.add("a ref written in a branch")
    value = _value(s, like)
    ways = []
    for form in ("0.5 * {0}[...] + {1}", "jnp.cos({0}[...]) - {1}"):
        way = Block(s.fresh(), ())
        way.statements.append(Statement((), f"{cell}[...] = {form.format(cell, value.name)}"))
        way.result = "None"
        ways.append(way)
    return _do(s, f"lax.cond({index.name} % 2 == 0, {ways[0].name}, {ways[1].name})", *ways)
