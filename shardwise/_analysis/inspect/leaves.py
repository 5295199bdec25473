"""The leaf of the result that a value becomes: names for gradients and optimizer state.

A gradient has no name of its own in the source, where one variable is a whole tree. The results
computed from it have: the new parameter and its moments end in the same key. A value that enters
leaves with different keys, as all gradients do if they are clipped together, has no name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..._program import Body, Var

_RESULT = re.compile(r"^result(\[\d+\])?")
_KEY = re.compile(r"\[[^\]]*\]|\.?\w+")


def leaf_names(body: Body, results: Sequence[str]) -> dict[Var, str]:
    """Return the name of the leaf that each value becomes, where there is one.

    Args:
        body: The program.
        results: The path of each result: `result[0]['w']`.
    """
    if len(results) < 2:
        return {}
    reached: dict[Var, set[int]] = {}
    for number, atom in enumerate(body.outs[: len(results)]):
        if isinstance(atom, Var):
            reached.setdefault(atom, set()).add(number)
    for op in reversed(body.ops):
        ends = set().union(*(reached.get(out, ()) for out in op.outs))
        for atom in op.ins:
            if isinstance(atom, Var) and ends:
                reached.setdefault(atom, set()).update(ends)
    names = {var: common_key([results[k] for k in sorted(ends)]) for var, ends in reached.items()}
    return {var: name for var, name in names.items() if name}


def common_key(paths: Sequence[str]) -> str:
    """Return the keys that all paths end in; the whole path, if there is one.

    >>> common_key(["result[0]['w']", "result[1][0].mu['w']"])
    "['w']"
    """
    if len(set(paths)) == 1:
        return paths[0]
    ends = [list(reversed(_KEY.findall(path))) for path in paths]
    shared: list[str] = []
    for keys in zip(*ends, strict=False):
        if len(set(keys)) > 1:
            break
        shared.append(keys[0])
    return "".join(reversed(shared)).removeprefix(".")


def key_of(leaf: str) -> str:
    """Return the keys of a leaf without the result that it is in: `['w']` of `result[0]['w']`."""
    return _RESULT.sub("", leaf)
