"""Mistakes made by machine: the gallery's programs with one thing changed.

A mutant deletes or swaps a collective, or changes an axis name, a spec or a divisor, with JAX's own
check on and off. If it gives another result than the program on eight real (virtual) devices, check
has to fault it.

    python -m tests.check.mutate [EXAMPLE ...]     all mutants, with a table
"""

from __future__ import annotations

import ast
import collections
import copy
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.devices import request_devices

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))  # they share a module there
SHAPES = {1: (8,), 2: (2, 4)}
SPARED = {"reference", "example_args", "large", "main", "loss_fn"}
"""Functions that are not part of the sharded program, or that the reference shares."""

COLLECTIVES = {
    "psum",
    "pmean",
    "pmax",
    "all_gather",
    "psum_scatter",
    "all_to_all",
    "ppermute",
    "pcast",
}
SWAPS = {"psum": ("pmean", "pmax"), "pmean": ("psum", "pmax"), "pmax": ("psum",)}

Change = Callable[[ast.AST], ast.AST]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one program."""

    example: str
    number: int
    """Which node of the syntax tree, in the order of `ast.walk`."""
    kind: str
    line: int
    change: Change
    checked: bool = True
    """Whether JAX's own check is on. It refuses many mutants; off, they run."""

    def __str__(self) -> str:
        off = "" if self.checked else ", check_vma=False"
        return f"{self.example}:{self.line} {self.kind}{off}"

    def module(self) -> types.ModuleType:
        """The changed program."""
        tree = copy.deepcopy(parse(self.example))
        old = list(ast.walk(tree))[self.number]
        changed = _Replace(old, self.change(copy.deepcopy(old))).visit(tree)
        if not self.checked:
            changed = _Unchecked().visit(changed)
        return run(self.example, ast.fix_missing_locations(changed))


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, ast.copy_location(new, old)

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


class _Unchecked(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _name(node) == "shard_map":
            node.keywords.append(ast.keyword("check_vma", ast.Constant(False)))
        return node


@functools.cache
def parse(example: str) -> ast.Module:
    """The syntax tree of an example."""
    return ast.parse((EXAMPLES / f"{example}.py").read_text())


def run(example: str, tree: ast.Module) -> types.ModuleType:
    """The module that a tree makes; its lines are those of the example's file."""
    module = types.ModuleType(example)
    exec(compile(tree, str(EXAMPLES / f"{example}.py"), "exec"), module.__dict__)
    return module


def examples() -> list[str]:
    """The programs with a `step`."""
    files = sorted(EXAMPLES.glob("[!_]*.py"))
    return [file.stem for file in files if "def step(" in file.read_text()]


# --- the changes


def mutants(example: str) -> Iterator[Mutant]:
    """All mutants of an example, in program order."""
    tree = parse(example)
    spared = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in SPARED
        for inner in ast.walk(node)
    }
    axes = run(example, tree).AXES
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in spared:
            for kind, change in _changes(node, axes):
                one = Mutant(example, number, kind, getattr(node, "lineno", 0), change)
                found += [one, dataclasses.replace(one, checked=False)]
    return iter(sorted(found, key=lambda mutant: mutant.line))


def _changes(node: ast.AST, axes: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.Call) and _name(node) in COLLECTIVES:
        name = _name(node)
        yield f"delete {name}", lambda call: call.args[0]
        for other in SWAPS.get(name, ()):
            yield f"{name} -> {other}", functools.partial(_call_other, other)
    if isinstance(node, ast.Call) and _name(node) in COLLECTIVES | {"axis_index", "axis_size"}:
        for at, arg in enumerate(node.args):
            if isinstance(arg, ast.Constant) and arg.value in axes:
                other = next((axis for axis in axes if axis != arg.value), "other")
                yield f"axis {arg.value} -> {other}", functools.partial(_rename, at, other)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "P":
        yield from _specs(node, axes)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield "delete divisor", lambda quotient: quotient.left
        yield "divisor doubled", _double


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _call_other(name: str, call: Any) -> ast.AST:
    call.func.attr = name
    return call


def _rename(at: int, axis: str, call: Any) -> ast.AST:
    call.args[at] = ast.Constant(axis)
    return call


def _specs(node: ast.Call, axes: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    if not node.args:
        yield f"P() -> P({axes[0]!r})", functools.partial(_respec, [ast.Constant(axes[0])])
        return
    yield f"{ast.unparse(node)} -> P()", functools.partial(_respec, [])
    if len(node.args) > 1:
        turned = [*node.args[1:], node.args[0]]
        yield f"{ast.unparse(node)} turned", functools.partial(_respec, turned)
    else:
        shifted = [ast.Constant(None), *node.args]
        yield f"{ast.unparse(node)} shifted", functools.partial(_respec, shifted)


def _respec(args: list[ast.expr], call: Any) -> ast.AST:
    call.args = copy.deepcopy(args)
    return call


def _double(quotient: Any) -> ast.AST:
    quotient.right = ast.BinOp(quotient.right, ast.Mult(), ast.Constant(2))
    return quotient


# --- the judgement


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a mutant: refused, unchanged, faulted, or missed."""

    mutant: Mutant
    fate: str
    on_line: bool = False
    note: str = ""


@functools.cache
def original(example: str) -> tuple[Any, Any]:
    """The program, and its result on real devices."""
    module = run(example, parse(example))
    return module, on_devices(module)


def on_devices(module: Any) -> Any:
    """The result on eight virtual devices."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    shape = SHAPES[len(module.AXES)]
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(shape), module.AXES)
    return jax.block_until_ready(
        jax.jit(functools.partial(module.step, mesh=mesh))(*module.example_args())
    )


def same(got: Any, want: Any) -> bool:
    """Whether two results differ by no more than rounding."""
    import jax

    from tests.support import relative_error

    if jax.tree.structure(got) != jax.tree.structure(want):
        return False
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        return False
    return all(relative_error(a, b) < 1e-4 for a, b in pairs)


def judge(mutant: Mutant) -> Outcome:
    """Run a mutant on real devices and ask check about it."""
    import shardwise as sw

    module, want = original(mutant.example)
    changed = mutant.module()
    try:
        got = on_devices(changed)
    except Exception as error:  # whatever JAX says when it refuses a program
        return Outcome(mutant, "refused", note=type(error).__name__)
    sizes = dict(zip(module.AXES, SHAPES[len(module.AXES)], strict=True))
    args = module.example_args()
    try:
        verdict = sw.check(changed.step, *args, mesh=sizes, reference=module.reference)
    except Exception as error:
        fate = "unchanged, refused by check" if same(got, want) else "faulted"
        return Outcome(mutant, fate, note=f"{type(error).__name__}: {error}")
    if same(got, want):
        return Outcome(
            mutant, "unchanged" if verdict.ok else "unchanged, faulted", note=str(verdict)
        )
    lines = {f.where.line for f in verdict.findings if f.certain}
    fate = "missed" if verdict.ok else "faulted"
    return Outcome(mutant, fate, mutant.line in lines, str(verdict))


def main(names: list[str]) -> int:
    """Judge all mutants and print a table; 1 if one is missed."""
    request_devices()
    counts: collections.Counter[str] = collections.Counter()
    on_line = 0
    for example in names or examples():
        own: collections.Counter[str] = collections.Counter()
        for mutant in mutants(example):
            outcome = judge(mutant)
            own[outcome.fate] += 1
            on_line += outcome.on_line
            if outcome.fate not in {"refused", "unchanged", "faulted"}:
                print(f"  {outcome.fate.upper()}: {mutant}\n{outcome.note}", flush=True)
        counts.update(own)
        print(f"{example:20} " + ", ".join(f"{n} {fate}" for fate, n in own.items()), flush=True)
    print(f"{'all':20} " + ", ".join(f"{n} {fate}" for fate, n in counts.items()))
    print(f"faulted on the very line that was changed: {on_line}/{counts['faulted']}")
    return int(counts["missed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
