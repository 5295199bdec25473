"""Make a failing program smaller: statements become constants, unused ones go."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator

from .language import Block, Program, Register, Statement

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float = 120.0) -> Program:
    """The smallest program found in the given time that still fails."""
    deadline = time.monotonic() + seconds
    for step in (_simply_run, _without_output, _without_digested, _without_statement):
        number = 0
        while time.monotonic() < deadline and (simpler := step(program, number)) is not None:
            _sweep(simpler)
            if simpler.code() != program.code() or step is _simply_run:
                program, number = (simpler, number) if fails(simpler) else (program, number + 1)
                number += step is _simply_run
            else:
                number += 1
    return program


# Each step gives the program with its part `number` made simpler, or None past the last part.


def _simply_run(program: Program, number: int) -> Program | None:
    changes = [{"jit": False}, {"at_once": 1}, {"around": "plain", "outside": False}]
    if number >= len(changes):
        return None
    simpler = copy.deepcopy(program)
    for name, value in changes[number].items():
        setattr(simpler, name, value)
    return simpler


def _without_output(program: Program, number: int) -> Program | None:
    if number >= len(program.outputs):
        return None
    simpler = copy.deepcopy(program)
    if len(simpler.outputs) > 1:
        simpler.outputs.pop(number)
    simpler.body.result = "".join(f"{o.name}, " for o in simpler.outputs).strip()
    return simpler


def _without_digested(program: Program, number: int) -> Program | None:
    """The digest of one register less."""
    simpler = copy.deepcopy(program)
    for statement in simpler.body.statements:
        if statement.expression.startswith("digest("):
            names = statement.expression[7:-1].split(", ")
            if number >= len(names):
                return None
            if len(names) > 1:
                names.pop(number)
            statement.expression = f"digest({', '.join(names)})"
            return simpler
    return None


def _statements(block: Block) -> Iterator[tuple[Block, Statement]]:
    """All statements, the last ones first, each before those in its own functions."""
    for statement in reversed(block.statements):
        yield block, statement
        for inner in statement.blocks:
            yield from _statements(inner)


def _without_statement(program: Program, number: int) -> Program | None:
    """The program with one statement replaced by a constant."""
    simpler = copy.deepcopy(program)
    statements = list(_statements(simpler.body))
    if number >= len(statements):
        return None
    block, statement = statements[number]
    if not statement.targets:
        block.statements.remove(statement)
        return simpler
    if not statement.registers or statement.expression.startswith("digest"):
        return simpler
    constants = [_constant(r, program.check_vma) for r in statement.registers]
    place = block.statements.index(statement)
    block.statements[place : place + 1] = [
        Statement((r.name,), constant, (), (r,))
        for r, constant in zip(statement.registers, constants, strict=True)
    ]
    return simpler


def _constant(register: Register, check: bool) -> str:
    value = "0.3, jnp.float32" if register.real else "2, jnp.int32"
    full = f"jnp.full({register.shape}, {value})"
    axes = tuple(sorted(register.varying))
    return f"lax.pcast({full}, {axes}, to='varying')" if check and axes else full


def _sweep(program: Program) -> None:
    """Drop statements whose results nothing mentions."""
    changed = True
    while changed:
        text = str(program.body)
        dead = [
            (block, statement)
            for block, statement in _statements(program.body)
            if statement.targets
            and all(len(re.findall(rf"\b{name}\b", text)) == 1 for name in statement.targets)
        ]
        changed = bool(dead)
        for block, statement in dead:
            if statement in block.statements:
                block.statements.remove(statement)
