"""Parse the options `--mesh` and `-k` of `shardwise check`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from .._base.errors import ShardingError, ShardwiseError

Matches = Callable[[str], bool]


def parse_mesh(text: str, option: str = "--mesh") -> dict[str, list[int] | str]:
    """Parse `data=1,2,4,8,model=n`: sizes belong to the name before them; a letter stands alone."""
    sizes: dict[str, list[int]] = {}
    letters: dict[str, str] = {}
    name = ""
    for item in text.split(","):
        head, equals, size = (part.strip() for part in item.rpartition("="))
        if equals:
            name = head
            if not name.isidentifier():
                raise _bad_mesh(f"{option} {text}", f"{name!r} is not the name of an axis")
            if name in sizes:
                raise _bad_mesh(f"{option} {text}", f"axis {name!r} is given twice")
            sizes[name] = []
        elif not name and ":" in item:
            right = text.replace(":", "=")
            raise _bad_mesh(
                f"{option} {text}", f"{item.strip()!r} has a colon", f"{option} {right}"
            )
        elif not name:
            raise _bad_mesh(f"{option} {text}", f"{size!r} comes before the name of an axis")
        alone = not sizes[name] and name not in letters
        if alone and len(size) == 1 and size.isascii() and size.isalpha():
            letters[name] = size
        elif name in letters or not size.isascii() or not size.isdecimal() or int(size) < 1:
            raise _bad_mesh(f"{option} {text}", f"{size!r} is not a size of axis {name!r}")
        else:
            sizes[name].append(int(size))
    return {name: letters.get(name, column) for name, column in sizes.items()}


def _bad_mesh(where: str, what: str, remedy: str = "--mesh data=1,2,4,8,model=2") -> ShardingError:
    return ShardingError(
        what,
        where=where,
        rule="Each axis has a name, '=' and the sizes to try, which are integers from 1, or a "
        "letter alone for every size that divides.",
        remedy=remedy,
    )


def parse_expression(text: str) -> Matches:
    """Parse `-k`: words that a name contains, with `and`, `or`, `not` and parentheses.

    It is an expression of Python, once each word is replaced by a variable.
    """
    words: dict[str, str] = {}

    def variable(word: re.Match[str]) -> str:
        if re.fullmatch("and|or|not", word[0]):
            return word[0]
        name = f"w{len(words)}"
        words[name] = word[0].lower()
        return name

    try:
        tree = ast.parse(re.sub(r"[^\s()]+", variable, text).strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if tree is None or not all(isinstance(node, _PARTS) for node in ast.walk(tree)):
        raise ShardwiseError(
            "this is not an expression",
            where=f"-k {text!r}",
            rule="It has words that a name contains, 'and', 'or', 'not' and parentheses.",
            remedy="-k 'gradient and not slow'",
        )
    return lambda name: _is_true(tree, words, name.lower())


_PARTS = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Name, ast.Load)


def _is_true(node: ast.AST, words: Mapping[str, str], name: str) -> bool:
    if isinstance(node, ast.BoolOp):
        values = (_is_true(value, words, name) for value in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        return not _is_true(node.operand, words, name)
    assert isinstance(node, ast.Name)
    return words[node.id] in name
