"""The conformance table: programs × meshes × `check_vma` × `at_once` × (inside `jit` or not).

A program is a function `run(spmd, *args)` that calls `spmd(body, in_specs, out_specs)` where it
would call `jax.shard_map`. It is run for real on virtual CPU devices and simulated, and both
results have to be the same.

The whole product would take an hour, so the table takes a part of it by rule. Every program runs
on the first mesh that it names with `check_vma` on and off, and on each further mesh with one of
the two, in turn. The last two columns rotate through `WAYS`, from a start that depends on the name
of the program only, so adding a program changes no other row. `SHARDWISE_FULL=1` takes the whole
product.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, real_mesh

Sizes = dict[str, int]

WAYS: tuple[tuple[int | str, bool], ...] = (
    (1, False),
    ("auto", True),
    (2, False),
    (1, True),
    (3, True),
    ("auto", False),
    (2, True),
    (16, False),
)


@dataclass(frozen=True)
class Spmd:
    """`jax.shard_map` with the mesh and the check of one row of the table filled in."""

    mesh: Mesh | AbstractMesh
    check_vma: bool

    def __call__(self, body: Callable, in_specs: Any, out_specs: Any, **options: Any) -> Callable:
        options = {"mesh": self.mesh, "check_vma": self.check_vma} | options
        return jax.shard_map(body, in_specs=in_specs, out_specs=out_specs, **options)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.mesh.axis_names)

    @cached_property
    def sizes(self) -> Sizes:
        return dict(self.mesh.shape)


@dataclass(frozen=True, eq=False)
class Program:
    """One line of the table.

    Attributes:
        run: The program, `run(spmd, *args)`.
        args: The arguments, made for the sizes of a mesh.
        meshes: The sizes of each mesh it is run on.
        checks: The values of `check_vma` it is run with.
        around: What is done to the whole program, simulated or real: `jax.grad`, `jax.vmap`, …
        stand_in: Run for real instead of `run`, where virtual CPU devices cannot run that.
        setting: A context manager of JAX's that both are run in.
    """

    run: Callable
    args: Callable[[Sizes], tuple]
    meshes: tuple[Sizes, ...]
    checks: tuple[bool, ...]
    around: Callable[[Callable], Callable]
    stand_in: Callable | None
    setting: Callable[[], AbstractContextManager]

    @property
    def name(self) -> str:
        return self.run.__name__


PROGRAMS: dict[str, Program] = {}


def program(
    *meshes: Sizes,
    args: Callable[[Sizes], tuple],
    checks: tuple[bool, ...] = (True, False),
    around: Callable[[Callable], Callable] = lambda f: f,
    stand_in: Callable | None = None,
    setting: Callable[[], AbstractContextManager] = nullcontext,
) -> Callable[[Callable], Callable]:
    """Enter a program into the table."""

    def enter(run: Callable) -> Callable:
        assert run.__name__ not in PROGRAMS, run.__name__
        PROGRAMS[run.__name__] = Program(run, args, meshes, checks, around, stand_in, setting)
        return run

    return enter


@dataclass(frozen=True)
class Row:
    program: Program
    mesh: int
    check_vma: bool
    at_once: int | str
    jit: bool

    @property
    def sizes(self) -> Sizes:
        return self.program.meshes[self.mesh]

    def __str__(self) -> str:
        mesh = "".join(f"{name}{size}" for name, size in self.sizes.items())
        check = "vma" if self.check_vma else "novma"
        return f"{self.program.name}-{mesh}-{check}-{self.at_once}{'-jit' if self.jit else ''}"


def rows() -> Iterator[Row]:
    """The rows of the table, by the rule at the top of this file."""
    _load_programs()
    full = bool(os.environ.get("SHARDWISE_FULL"))
    for each in PROGRAMS.values():
        start = zlib.crc32(each.name.encode())
        for number, (mesh, check) in enumerate(_cells(each, full)):
            ways = WAYS if full else [WAYS[(start + number) % len(WAYS)]]
            yield from (Row(each, mesh, check, at_once, jit) for at_once, jit in ways)


def _cells(each: Program, full: bool) -> Iterator[tuple[int, bool]]:
    for mesh in range(len(each.meshes)):
        checks = each.checks if full or mesh == 0 else [each.checks[mesh % len(each.checks)]]
        yield from ((mesh, check) for check in checks)


def _load_programs() -> None:
    from . import programs

    for module in pkgutil.iter_modules(programs.__path__):
        importlib.import_module(f"{programs.__name__}.{module.name}")


def conform(row: Row) -> None:
    """Fail unless the simulated result of a row is the real one."""
    each = row.program
    with each.setting():
        assert_same(simulated(row), real(each, row.mesh, row.check_vma))


def simulated(row: Row) -> Any:
    def bound(*args: Any, mesh: Any) -> Any:
        return row.program.run(Spmd(mesh, row.check_vma), *args)

    call = sw.simulate(bound, mesh=sw.mesh(**row.sizes), at_once=row.at_once)
    call = row.program.around(call)
    return (jax.jit(call) if row.jit else call)(*row.program.args(row.sizes))


@lru_cache(maxsize=64)
def real(each: Program, mesh: int, check_vma: bool) -> Any:
    sizes = each.meshes[mesh]
    spmd = Spmd(real_mesh(**sizes), check_vma)
    run = each.stand_in or each.run
    call = jax.jit(each.around(lambda *args: run(spmd, *args)))
    # Replicated arguments spare XLA the choice of a sharding, at which 0.12 sometimes aborts.
    args = jax.device_put(each.args(sizes), NamedSharding(spmd.mesh, P()))
    return jax.device_get(call(*args))
