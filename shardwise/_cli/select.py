"""Parse the options `--mesh` and `-k` of `shardwise check`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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
    """Parse `-k`: words that a name contains, with `and`, `or`, `not` and parentheses."""
    tokens = re.findall(r"[()]|[^\s()]+", text)
    try:
        matches = _any_of(tokens)
        if tokens:
            raise IndexError
    except IndexError:
        raise ShardwiseError(
            "this is not an expression",
            where=f"-k {text!r}",
            rule="It has words that a name contains, 'and', 'or', 'not' and parentheses.",
            remedy="-k 'gradient and not slow'",
        ) from None
    return matches


def _any_of(tokens: list[str]) -> Matches:
    terms = list(_separated(tokens, "or", _all_of))
    return lambda name: any(term(name) for term in terms)


def _all_of(tokens: list[str]) -> Matches:
    terms = list(_separated(tokens, "and", _one))
    return lambda name: all(term(name) for term in terms)


def _separated(
    tokens: list[str], word: str, parse: Callable[[list[str]], Matches]
) -> Iterator[Matches]:
    yield parse(tokens)
    while tokens and tokens[0] == word:
        tokens.pop(0)
        yield parse(tokens)


def _one(tokens: list[str]) -> Matches:
    token = tokens.pop(0)
    if token == "not":
        inner = _one(tokens)
        return lambda name: not inner(name)
    if token == "(":
        inner = _any_of(tokens)
        if tokens.pop(0) != ")":
            raise IndexError
        return inner
    if token in (")", "and", "or"):
        raise IndexError
    return lambda name: token.lower() in name.lower()
