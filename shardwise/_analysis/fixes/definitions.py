"""Decide whether executing a module-level statement again would only define something.

A decorator or a call may have side effects: register a function, draw random numbers, open a file.
Everything called while the statement executes has to be known: a function of a library listed
below, or a user function that refers only to such functions, modules and constants.
"""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

DEFINES = (ast.Assign, ast.AnnAssign, ast.FunctionDef)
"""The kinds of statements that may be executed again."""

LIBRARIES = frozenset(
    [
        "jax",
        "jaxlib",
        "numpy",
        "functools",
        "operator",
        "math",
        "itertools",
        "dataclasses",
        "typing",
        "collections",
        "flax",
        "optax",
        "shardwise",
        "pytest",
    ]
)
"""Packages whose functions have no side effects, except those named `register...`."""

ACTS = frozenset(
    [
        "open",
        "print",
        "input",
        "exec",
        "eval",
        "compile",
        "setattr",
        "delattr",
        "breakpoint",
        "__import__",
        "next",
    ]
)
"""Builtins with side effects, or that may run arbitrary code."""

CONSTANTS = (int, float, complex, str, bytes, bool, tuple, frozenset, type(None), np.generic)


def only_defines(
    statement: ast.stmt, names: Mapping[str, Any], evaluated: Iterator[ast.AST]
) -> bool:
    """Return whether a statement with these global names only defines something.

    `evaluated` are the nodes that are evaluated with the statement.
    """
    if not isinstance(statement, DEFINES):
        return False
    called = list(getattr(statement, "decorator_list", []))
    called += [node.func for node in evaluated if isinstance(node, ast.Call)]
    return all(_is_pure(_resolve(node, names)) for node in called if not _of_a_call(node))


def _of_a_call(node: ast.expr) -> bool:
    """Return whether the called object is the result of another call, which is checked itself."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Call | ast.Lambda)


def _resolve(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the object that a dotted name refers to; None if it is no such name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, names)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _is_pure(target: Any, seen: tuple[Any, ...] = ()) -> bool:
    if isinstance(target, FunctionType) and not _in_library(target):
        return target in seen or _changes_nothing(target, (*seen, target))
    if isinstance(target, MethodType):
        return isinstance(target.__self__, type) and _in_library(target)
    if getattr(target, "__module__", None) == "builtins":
        return target.__name__ not in ACTS
    return callable(target) and _in_library(target)


def _in_library(target: Any) -> bool:
    module = getattr(target, "__module__", None) or type(target).__module__
    name = getattr(target, "__name__", "")
    return module.partition(".")[0] in LIBRARIES and not name.startswith("register")


def _changes_nothing(function: FunctionType, seen: tuple[Any, ...]) -> bool:
    """Return whether a user function refers to nothing outside that it could change."""
    codes = list(_codes(function.__code__))
    if any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        for code in codes
        for step in dis.get_instructions(code)
    ):
        return False
    names = {name for code in codes for name in code.co_names}
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    acts = any(name in ACTS and name not in function.__globals__ for name in names)
    return not acts and all(_is_unchangeable(value, seen) for value in values)


def _is_unchangeable(value: Any, seen: tuple[Any, ...]) -> bool:
    if isinstance(value, FunctionType):
        return _is_pure(value, seen)
    if isinstance(value, np.random.Generator | np.random.RandomState):
        return False
    return isinstance(value, (*CONSTANTS, ModuleType)) or _in_library(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
