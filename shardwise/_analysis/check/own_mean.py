"""The variance of a part: what is squared is the distance from the part's own mean."""

from __future__ import annotations

from ..._meaning import Mistake
from ..._program import Leaf


def around_own_mean(mistake: Mistake) -> Leaf | None:
    """The sum of the mean that is subtracted, where `(x - mean(x)) ** 2` is what is wrong."""
    apart, total = mistake.maker, mistake.born
    if mistake.extreme or not isinstance(apart, Leaf) or not isinstance(total, Leaf):
        return None
    if apart.name != "sub" or total.name != "reduce_sum" or not _squares(mistake):
        return None
    return total if apart.ins[0] is total.ins[0] else None


def _squares(mistake: Mistake) -> bool:
    op = mistake.op
    if not isinstance(op, Leaf):
        return False
    twice = op.name == "mul" and op.ins[0] is op.ins[1]
    return twice or op.name == "square" or (op.name == "integer_pow" and op.params["y"] == 2)
