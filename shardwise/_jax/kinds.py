"""Loops over devices that ask for their kind alone, read off the bytecode of the loop.

`{d.platform for d in jax.devices()}` and `all(d.platform == "cpu" for d in jax.devices())` are the
same for any number of devices. Nothing else about a loop is known to be.
"""

from __future__ import annotations

import builtins
import dis
from types import FrameType

_KIND = {"platform", "device_kind"}
_BLIND = {"any", "all", "set", "frozenset"}
"""What takes values and does not see how many there were."""


def asks_for_the_kind(frame: FrameType) -> bool:
    """Whether the loop that a frame is in gives the same for any number of devices of a kind."""
    code = [*dis.get_instructions(frame.f_code)]
    loop = _now(code, frame)
    if loop.opname != "FOR_ITER":
        return False
    body = [one for one in code if loop.offset < one.offset < loop.argval]
    names = [one.opname for one in body]
    asked = {str(one.argval) for one in body if one.opname == "LOAD_ATTR"}
    stored = sum(name.startswith("STORE") for name in names)
    called = any("CALL" in name and "INTRINSIC" not in name for name in names)
    if not asked or not asked <= _KIND or stored != 1 or called:
        return False
    return "SET_ADD" in names or ("YIELD_VALUE" in names and _taker(frame.f_back) in _BLIND)


def _taker(frame: FrameType | None) -> str:
    """The built-in function that a frame is calling, where it is called by its name."""
    if frame is None:
        return ""
    code = [*dis.get_instructions(frame.f_code)]
    call = _now(code, frame)
    if call.opname != "CALL":
        return ""
    for one in code:
        # A call starts where the name of its function does.
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and _start(one) == _start(call) is not None:
            name = str(one.argval)
            found = {**frame.f_globals, **frame.f_locals}.get(name, vars(builtins).get(name))
            return name if found is vars(builtins).get(name) else ""
    return ""


def _now(code: list[dis.Instruction], frame: FrameType) -> dis.Instruction:
    """The instruction that a frame is at, or in the cache of."""
    return [one for one in code if one.offset <= frame.f_lasti][-1]


def _start(one: dis.Instruction) -> tuple[int, int] | None:
    """The line and column at which what an instruction stands for begins, where that is kept."""
    at = one.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return None
    return at.lineno, at.col_offset
