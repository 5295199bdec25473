"""The passes of the engine, in the order in which they run.

None of them changes what a program gives: each is there for the time or the memory that it saves,
and can be switched off (`switches.without`). `python benchmarks/passes.py` compiles and runs the
programs of the benchmarks without each of them and prints what it saves. A pass that saves less
than 5 % of time, memory or compile time everywhere is removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from ..._program import Op, Var
from .convolutions import in_order, reversing
from .deadlock import Watch
from .delay_moves import later
from .machine import on_host
from .materialize import held
from .split_loops import apart
from .sum_after_loop import once
from .switches import is_on

Run = Callable[[Sequence[Op], Sequence[Var], Watch], list[Op]]


@dataclasses.dataclass(frozen=True)
class Pass:
    """A rewrite of a list of operations, or a way to run a part of it that has another way."""

    name: str
    backend: Literal["any", "cpu", "accelerator"]
    reason: str
    benchmark: str
    """The program that it is there for: a module of `benchmarks/`, and a case of it."""
    run: Run | None = None
    """The rewrite; None for a choice that is made stage by stage in `run`."""

    def applies(self) -> bool:
        """Return whether it is for the machine at hand, and not switched off."""
        fits = self.backend == "any" or (self.backend == "cpu") == on_host()
        return fits and is_on(self.name)


PASSES = (
    Pass(
        "in_order",
        "cpu",
        "XLA reorders the dimensions of a convolution only outside loops",
        "convnet",
        lambda ops, keep, watch: in_order(ops, watch),
    ),
    Pass(
        "later",
        "cpu",
        "a transpose before a sum over devices makes the product slow, and is done for each device",
        "gallery data_parallel",
        later,
    ),
    Pass(
        "reversing",
        "accelerator",
        "XLA knows the gradient of a convolution by its reversed weights, if they are in the loop",
        "convnet",
        lambda ops, keep, watch: reversing(ops, watch),
    ),
    Pass(
        "held",
        "accelerator",
        "a broadcast mask that is moved into a loop makes XLA choose a slower softmax",
        "simulate_gpu transformer",
        lambda ops, keep, watch: held(ops),
    ),
    Pass(
        "once",
        "any",
        "what each iteration sums over devices would be kept for all iterations",
        "kinds recurrent",
        lambda ops, keep, watch: once(ops, watch),
    ),
    Pass(
        "apart",
        "any",
        "a loop in which devices exchange something would run for all of them at once",
        "transformer",
        lambda ops, keep, watch: apart(ops, watch),
    ),
    Pass(
        "crossing",
        "any",
        "values that follow from others are kept for all devices, instead of computed again",
        "gallery tensor_parallel",
    ),
    Pass(
        "flat",
        "any",
        "a loop over the devices costs more than the few operations in it",
        "gallery zero",
    ),
    Pass(
        "joint",
        "any",
        "one product for all devices of a block is faster than one each and a sum",
        "gallery data_parallel",
    ),
    Pass(
        "straight",
        "any",
        "operations that are equations of JAX need not be traced again",
        "tracing",
    ),
    Pass(
        "repeat",
        "any",
        "layers that are written out are traced and lowered once",
        "compile_times",
    ),
)
"""All passes, rewrites first."""


def rewritten(ops: Sequence[Op], keep: Sequence[Var], watch: Watch) -> list[Op]:
    """Return a list of operations after the rewrites that are for this machine."""
    rewrites = [one for one in PASSES if one.run is not None and one.applies()]
    for one in rewrites:
        assert one.run is not None
        ops = one.run(ops, keep, watch)
    return list(ops)
