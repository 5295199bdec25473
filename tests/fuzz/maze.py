"""Control flow inside control flow, each decided by other devices' places or by data.

Nothing here communicates, so any decision may differ along any axes. What a derivative has to
remember of such a program differs in ways that the types of JAX do not always tell.
"""

from __future__ import annotations

from .language import Block, Register, Statement
from .scope import Scope


def maze(s: Scope) -> None:
    """A function of one value through two or three nested loops and branches."""
    r = s.cast(s.real(24), frozenset(s.sizes))
    depth = s.draw.integer(2, 3)
    s.features.add(f"{depth} nested loops and branches")
    room = _room(s, r, depth)
    s.tamed(
        s.write(
            s.new(r.shape, "float32", r.varying, r.varying, 8.0), f"{room.name}({r.name})", room
        )
    )


def _room(s: Scope, like: Register, depth: int) -> Block:
    """A function from and to values of one type."""
    own = f"p{next(s.names)}"
    block = Block(s.fresh(), (own,))
    if depth == 0:
        block.result = _bent(s, like, own)
        return block
    kinds = [(5, _cond), (3, _switch), (2, _scan), (1, _remat), (1, _straight)]
    kinds += [] if s.reverse else [(2, _while)]
    s.draw.weighted(kinds)(s, like, block, own, depth - 1)
    return block


def _call(block: Block, expression: str, *rooms: Block) -> None:
    block.statements.append(Statement(("out",), expression, rooms))
    block.result = "out"


def _cond(s: Scope, like: Register, block: Block, own: str, depth: int) -> None:
    rooms = [_room(s, like, s.draw.integer(0, depth)) for _ in range(2)]
    names = ", ".join(room.name for room in rooms)
    _call(block, f"lax.cond({_number(s)} % 2 == 0, {names}, {own})", *rooms)


def _switch(s: Scope, like: Register, block: Block, own: str, depth: int) -> None:
    rooms = [_room(s, like, s.draw.integer(0, depth)) for _ in range(3)]
    names = ", ".join(room.name for room in rooms)
    _call(block, f"lax.switch({_number(s)} % 3, [{names}], {own})", *rooms)


def _scan(s: Scope, like: Register, block: Block, own: str, depth: int) -> None:
    room = _room(s, like, depth)
    turn = f"lambda carry, _: (jnp.tanh({room.name}(carry)), None)"
    _call(block, f"lax.scan({turn}, {own}, None, length={s.draw.integer(1, 3)})[0]", room)


def _while(s: Scope, like: Register, block: Block, own: str, depth: int) -> None:
    room = _room(s, like, depth)
    limit = _number(s)
    start = f"({limit}) * 0"
    turn = f"lambda state: (state[0] + 1, jnp.tanh({room.name}(state[1])))"
    again = f"lambda state: state[0] < ({limit}) % 3"
    _call(block, f"lax.while_loop({again}, {turn}, ({start}, {own}))[1]", room)


def _remat(s: Scope, like: Register, block: Block, own: str, depth: int) -> None:
    room = _room(s, like, depth)
    _call(block, f"jax.checkpoint({room.name})({own})", room)


def _straight(s: Scope, like: Register, block: Block, own: str, depth: int) -> None:
    room = _room(s, like, depth)
    _call(block, f"jnp.sin({room.name}({own})) * {own}", room)


def _number(s: Scope) -> str:
    """A whole number that is the same everywhere, or differs along some of the axes."""
    places = [f"lax.axis_index({axis!r})" for axis in s.sizes]
    given = [r.name for r in s.registers if r.dtype == "int32" and r.shape == () and not r.exact]
    options = places + given[-3:]
    first, second = s.draw.pick(options), s.draw.pick(options)
    return s.draw.pick([first, first, f"({first} + {second})", f"({first} - 2 * {second})"])


def _bent(s: Scope, like: Register, own: str) -> str:
    """Something whose derivative has to remember its argument."""
    forms = [
        f"{own} * {own} * 0.5",
        f"jnp.sin({own})",
        f"{own} ** 3 * 0.2",
        f"jnp.cos({own}) * {own}",
    ]
    forms += [f"0.5 * {own}"]
    if like.shape:
        at = f"({_number(s)}) % {like.shape[0]}"
        forms += [f"{own} * {own}[{at}]", f"jnp.tanh({own}).at[{at}].multiply(0.3)"]
        forms += [f"{own} * jnp.sin(jnp.roll({own}, {at}, axis=0))"]
    return s.draw.pick(forms)
