"""Run an edited program without importing it again.

An edit changes the code of some functions of a file. These functions exist in the process: while a
candidate is tried, their `__code__` is that of the edited source, and what they are called by,
close over and are decorated with stays as it is. So nothing is executed twice, functions inside
functions, methods, lambdas and notebook cells work alike, and a file with side effects is safe.
JAX's caches see a context value of their own for every candidate.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import jax

Key = tuple[str, int, int]
"""A function in a file: its qualified name, first line, and number among those that share both."""


def functions_of(file: str) -> list[FunctionType]:
    """Return the functions in this process that were compiled from a file."""
    return [
        found
        for found in gc.get_objects()
        if type(found) is FunctionType and found.__code__.co_filename == file
    ]


def codes_in(text: str, file: str) -> dict[Key, CodeType]:
    """Compile a source text and return the code of every function in it."""
    found: dict[Key, CodeType] = {}

    def visit(code: CodeType) -> None:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                count = 0
                while (key := (inner.co_qualname, inner.co_firstlineno, count)) in found:
                    count += 1
                found[key] = inner
                visit(inner)

    visit(compile(text, file, "exec", dont_inherit=True))
    return found


_NUMBERS = itertools.count(1)


@functools.cache
def _cache_context() -> Any:
    """Return the context whose value is part of the key of JAX's caches."""
    return jax.make_user_context(0)


class Live:
    """The functions of one file as they are in this process."""

    def __init__(self, file: str, text: str):
        self.file = file
        self.original = codes_in(text, file)
        self.functions = functions_of(file)

    @contextlib.contextmanager
    def edited(self, text: str) -> Iterator[bool]:
        """Give the functions the code of the edited `text`; False where none of them takes it.

        Lines must stay where they are. Code outside functions is not run again: an edit there
        changes nothing, which the caller sees in that the program is as wrong as before.
        """
        codes = codes_in(text, self.file)
        changed: list[tuple[FunctionType, CodeType]] = []
        lacking = [names for names in self.globals if "jax" not in names]
        with _cache_context()(next(_NUMBERS)):
            try:
                for names in lacking:  # an edit may need the import that it adds
                    names["jax"] = jax
                for function in self.functions:
                    key = self._key(function.__code__)
                    code = codes.get(key) if key else None
                    if code is not None and _fits(function, code, self.original[key]):
                        changed.append((function, function.__code__))
                        function.__code__ = code
                yield bool(changed)
            finally:
                for function, code in changed:
                    function.__code__ = code
                for names in lacking:
                    del names["jax"]

    @property
    def globals(self) -> list[dict[str, Any]]:
        """Return the global names that the functions see."""
        return list({id(one.__globals__): one.__globals__ for one in self.functions}.values())

    def _key(self, code: CodeType) -> Any:
        """Return which function of the source a live code object is."""
        for count in range(len(self.original)):
            key = code.co_qualname, code.co_firstlineno, count
            if key not in self.original:
                return None
            if _alike(code, self.original[key]):
                return key
        return None


def _alike(live: CodeType, compiled: CodeType) -> bool:
    """Whether a code object was compiled from this source; pytest rewrites only `assert`."""
    return (
        live.co_varnames[: live.co_argcount] == compiled.co_varnames[: compiled.co_argcount]
        and live.co_freevars == compiled.co_freevars
        and [*live.co_positions()][:1] == [*compiled.co_positions()][:1]
        and set(compiled.co_names) - {"AssertionError"} <= {*live.co_names}
    )


def _fits(function: FunctionType, code: CodeType, original: CodeType) -> bool:
    """Whether a function can take another code, and the code is another one."""
    return code.co_freevars == function.__code__.co_freevars and code != original
