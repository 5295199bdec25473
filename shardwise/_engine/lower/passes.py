"""The passes of the engine, in the order in which they run.

None of them changes a result: each saves time or memory, and can be switched off
(`switches.without`). `python benchmarks/passes.py` compiles and runs the programs of the benchmarks
without each of them and prints what it saves. A pass that saves less than 5 % of time, memory and
compile time everywhere is removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from ..._program import Op, Var
from .convolutions import reorder_convolutions, reverse_weights_in_place
from .deadlock import DivergenceWatch
from .delay_moves import delay_moves
from .machine import on_host
from .materialize import materialize_broadcasts
from .split_loops import split_loops
from .sum_after_loop import sum_after_loops
from .switches import is_on

Run = Callable[[Sequence[Op], Sequence[Var], DivergenceWatch], list[Op]]


@dataclasses.dataclass(frozen=True)
class Pass:
    """A rewrite of a list of operations, or a faster way to run some of them."""

    name: str
    backend: Literal["any", "cpu", "accelerator"]
    reason: str
    benchmark: str
    """The program that justifies it: a module of `benchmarks/`, and a case of it."""
    run: Run | None = None
    """The rewrite; None for a choice that `run` makes for each stage."""

    def applies(self) -> bool:
        """Return whether it is for this backend, and not switched off."""
        fits = self.backend == "any" or (self.backend == "cpu") == on_host()
        return fits and is_on(self.name)


PASSES = (
    Pass(
        "reorder_convolutions",
        "cpu",
        "XLA reorders the dimensions of a convolution only outside loops",
        "convnet",
        lambda ops, keep, watch: reorder_convolutions(ops, watch),
    ),
    Pass(
        "delay_moves",
        "cpu",
        "a transpose before a sum over devices slows the product, and runs on each device",
        "gallery data_parallel",
        delay_moves,
    ),
    Pass(
        "reverse_weights_in_place",
        "accelerator",
        "XLA recognises the gradient of a convolution by its reversed weights in the same loop",
        "convnet",
        lambda ops, keep, watch: reverse_weights_in_place(ops, watch),
    ),
    Pass(
        "materialize_broadcasts",
        "accelerator",
        "a broadcast mask that is moved into a loop makes XLA choose a slower softmax",
        "simulate_gpu transformer",
        lambda ops, keep, watch: materialize_broadcasts(ops),
    ),
    Pass(
        "sum_after_loops",
        "any",
        "the operands of a sum over devices in a loop would be kept for all iterations",
        "kinds recurrent",
        lambda ops, keep, watch: sum_after_loops(ops, watch),
    ),
    Pass(
        "split_loops",
        "any",
        "a loop in which devices communicate would run for all of them at once",
        "transformer",
        lambda ops, keep, watch: split_loops(ops, watch),
    ),
    Pass(
        "recompute",
        "any",
        "values that could be recomputed are kept for all devices",
        "gallery tensor_parallel",
    ),
    Pass(
        "without_loop",
        "any",
        "a loop over the devices costs more than the few operations in it",
        "gallery zero",
    ),
    Pass(
        "joint_products",
        "any",
        "one product for all devices of a block is faster than one each and a sum",
        "gallery data_parallel",
    ),
    Pass(
        "copy_equations",
        "any",
        "tracing the equations of JAX again takes longer than copying them",
        "tracing",
    ),
    Pass(
        "share_repeats",
        "any",
        "unrolled layers are traced and lowered once",
        "passes unrolled",
    ),
)
"""All passes, rewrites first."""


def rewritten(ops: Sequence[Op], keep: Sequence[Var], watch: DivergenceWatch) -> list[Op]:
    """Return a list of operations after the rewrites for this backend."""
    for rewrite in PASSES:
        if rewrite.run is not None and rewrite.applies():
            ops = rewrite.run(ops, keep, watch)
    return list(ops)
