"""Run an edited program without importing it again.

An edit inside a function changes the code of existing functions: while a candidate is tried, their
`__code__` is that of the edited source, while callers, closures and decorators stay the same. So
nested functions, methods, lambdas and notebook cells all work, and a file with side effects is
safe. An edit outside functions (a decorator, a constant with specs) executes that one statement
again, and later statements that use the names it binds, if they only define something; afterwards
the names get their old values back. A context value, new for each candidate, keeps JAX's caches
apart.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import gc
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

import jax

from ..._program import is_user_file
from .definitions import only_defines
from .source import FUNCTIONS, Edit, Source, within_body

Key = tuple[str, int, int]
"""A function in a file: its qualified name, first line, and index among those that share both."""


def functions_of(file: str) -> list[FunctionType]:
    """Return the functions in this process that were compiled from a file."""
    return [
        function
        for function in gc.get_objects()
        if type(function) is FunctionType and function.__code__.co_filename == file
    ]


def codes_in(code: CodeType) -> dict[Key, CodeType]:
    """Return the code of every function inside the code of a module or statement."""
    codes: dict[Key, CodeType] = {}

    def visit(code: CodeType) -> None:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                count = 0
                while (key := (inner.co_qualname, inner.co_firstlineno, count)) in codes:
                    count += 1
                codes[key] = inner
                visit(inner)

    visit(code)
    return codes


_NUMBERS = itertools.count(1)


@functools.cache
def _cache_context() -> Any:
    """Return a JAX user context, whose value is part of the keys of JAX's caches."""
    return jax.make_user_context(0)


Replace = Callable[[Any], Any]
"""Return the edited version of a function of the module, and any other object unchanged."""


class LoadedFile:
    """The functions of one file in this process."""

    def __init__(self, source: Source):
        self.source = source
        self._flags = _future_flags(source.tree)
        self.original = codes_in(self._compiled(source.text))
        self.functions = functions_of(source.file)

    @contextlib.contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[Replace | None]:
        """Apply the edits while the context lasts; yield None if they cannot be applied.

        Edits must not change line numbers. The yielded function maps an object of the module to the
        one that the edited statement defines: the program itself may be such an object.
        """
        pieces = self._pieces(edits)
        if pieces is None:
            yield None
            return
        with _cache_context()(next(_NUMBERS)), contextlib.ExitStack() as stack:
            stack.enter_context(_with_names(self.globals, imported_by(edits)))
            changed = stack.enter_context(self._recoded(pieces))
            outside = [statement for statement in pieces if self._is_outside(statement, edits)]
            replaced = stack.enter_context(self._executed(outside, pieces)) if outside else {}
            done = changed or replaced
            yield functools.partial(_replaced, replaced) if done else None

    @property
    def globals(self) -> list[dict[str, Any]]:
        """The global names that the functions see."""
        return list({id(f.__globals__): f.__globals__ for f in self.functions}.values())

    def _compiled(self, text: str, line: int = 1) -> CodeType:
        text = "\n" * (line - 1) + text
        return compile(text, self.source.file, "exec", self._flags, dont_inherit=True)

    def _pieces(self, edits: Sequence[Edit]) -> dict[ast.stmt, CodeType] | None:
        """Compile the edited module-level statements, each at its own line."""
        source = self.source
        by_statement: dict[ast.stmt, list[Edit]] = {}
        for edit in edits:
            statement = source.statement_at(edit)
            if statement is None:
                return None
            by_statement.setdefault(statement, []).append(edit)
        return {node: self._compiled_statement(node, group) for node, group in by_statement.items()}

    def _compiled_statement(self, statement: ast.stmt, edits: Sequence[Edit] = ()) -> CodeType:
        text = self.source.edited_statement(statement, edits)
        return self._compiled(text, first_line(statement))

    @contextlib.contextmanager
    def _recoded(self, pieces: Mapping[ast.stmt, CodeType]) -> Iterator[bool]:
        """Give existing functions the code of the edited statements."""
        codes = {key: code for piece in pieces.values() for key, code in codes_in(piece).items()}
        changed: list[tuple[FunctionType, CodeType]] = []
        try:
            for key, function in self._keyed:
                code = codes.get(key)
                if code is not None and _fits(function, code, self.original[key]):
                    changed.append((function, function.__code__))
                    function.__code__ = code
            yield bool(changed)
        finally:
            for function, code in changed:
                function.__code__ = code

    def _is_outside(self, statement: ast.stmt, edits: Sequence[Edit]) -> bool:
        """Return whether an edit changes module-level code, not a function in it."""
        source = self.source
        return any(
            source.statement_at(edit) is statement and source.owner_of(edit) is source.tree
            for edit in edits
        )

    @contextlib.contextmanager
    def _executed(
        self, outside: Sequence[ast.stmt], pieces: Mapping[ast.stmt, CodeType]
    ) -> Iterator[Mapping[int, Any]]:
        """Execute module-level statements again; yield the new objects by the ids of the old."""
        plan = self._dependent(outside)
        if plan is None:
            yield MappingProxyType({})
            return
        saved: list[tuple[dict[str, Any], str, Any]] = []
        replaced: dict[int, Any] = {}
        try:
            for names in self.globals:
                if all(name in names for statement in plan for name in bound_by(statement)):
                    self._run(plan, pieces, names, saved, replaced)
            for names in _user_modules():
                for name, value in list(names.items()):
                    if id(value) in replaced and names[name] is not replaced[id(value)]:
                        saved.append((names, name, value))
                        names[name] = replaced[id(value)]
            yield replaced
        finally:
            for names, name, value in reversed(saved):
                names[name] = value

    def _run(
        self,
        plan: Sequence[ast.stmt],
        pieces: Mapping[ast.stmt, CodeType],
        names: dict[str, Any],
        kept: list[tuple[dict[str, Any], str, Any]],
        found: dict[int, Any],
    ) -> None:
        for statement in plan:
            bound = bound_by(statement)
            kept += [(names, name, names[name]) for name in bound]
            earlier = {name: names[name] for name in bound}
            exec(pieces.get(statement) or self._compiled_statement(statement), names)
            found |= {id(earlier[name]): names[name] for name in bound}

    def _dependent(self, outside: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """Return the statements to execute again; None if one of them has side effects."""
        plan: list[ast.stmt] = []
        names: set[str] = set()
        for statement in self.source.tree.body:
            if statement in outside or names & read_by(statement):
                if not all(
                    only_defines(statement, module, outside_functions(statement))
                    for module in self.globals
                ):
                    return None
                plan.append(statement)
                names |= bound_by(statement)
        return plan

    @functools.cached_property
    def _keyed(self) -> list[tuple[Key, FunctionType]]:
        """The functions whose code is in the source, each with its key."""
        keyed = ((self._key(function.__code__), function) for function in self.functions)
        return [(key, function) for key, function in keyed if key is not None]

    def _key(self, code: CodeType) -> Key | None:
        """Return the key of the function in the source that a live code object belongs to."""
        for count in range(len(self.original)):
            key = code.co_qualname, code.co_firstlineno, count
            if key not in self.original:
                return None
            if _alike(code, self.original[key]):
                return key
        return None


def imported_by(edits: Sequence[Edit]) -> dict[str, Any]:
    """Return the names that edits may use and the fix imports: `jax` and functions of `jax.lax`."""
    names = {name for edit in edits for name in edit.names}
    return {"jax": jax} | {name: getattr(jax.lax, name) for name in names if hasattr(jax.lax, name)}


@contextlib.contextmanager
def _with_names(modules: Sequence[dict[str, Any]], names: Mapping[str, Any]) -> Iterator[None]:
    """Define global names in modules that lack them."""
    added = [(module, name) for module in modules for name in names if name not in module]
    try:
        for module, name in added:
            module[name] = names[name]
        yield
    finally:
        for module, name in added:
            module.pop(name, None)


def _replaced(found: Mapping[int, Any], f: Any) -> Any:
    if id(f) in found:
        return found[id(f)]
    if isinstance(f, functools.partial):
        return functools.partial(_replaced(found, f.func), *f.args, **f.keywords)
    return f


def _user_modules() -> Iterator[dict[str, Any]]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_user_file(file):
            yield vars(module)


def first_line(statement: ast.stmt) -> int:
    """Return the first line of a statement, including its decorators."""
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a module-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {node.id for node in targets if isinstance(node.ctx, ast.Store)}


def read_by(statement: ast.stmt) -> set[str]:
    """Return the names that executing a statement reads, except inside functions."""
    return {
        node.id
        for node in outside_functions(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the nodes evaluated with it, without function bodies."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, FUNCTIONS) and within_body(node, child)):
            yield from outside_functions(child)


def _future_flags(tree: ast.Module) -> int:
    names = [
        alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        for alias in statement.names
    ]
    flags = (getattr(__future__, name).compiler_flag for name in names)
    return functools.reduce(lambda a, b: a | b, flags, 0)


def _alike(live: CodeType, compiled: CodeType) -> bool:
    """Return whether a code object was compiled from this source; pytest rewrites only `assert`."""
    return (
        live.co_varnames[: live.co_argcount] == compiled.co_varnames[: compiled.co_argcount]
        and live.co_freevars == compiled.co_freevars
        and [*live.co_positions()][:1] == [*compiled.co_positions()][:1]
        and set(compiled.co_names) - {"AssertionError"} <= {*live.co_names}
    )


def _fits(function: FunctionType, code: CodeType, original: CodeType) -> bool:
    """Return whether a function can take a code object, and the code differs from its own."""
    return code.co_freevars == function.__code__.co_freevars and code != original
