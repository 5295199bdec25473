"""A process that runs groups of programs and reports each program in a line of JSON."""

from __future__ import annotations

import gc
import json
import os
from typing import Any

from ..devices import request_devices
from .flags import verify_alone
from .language import Program
from .programs import make


def work(seed: int, groups: list[list[int]], shrink: bool = False) -> int:
    """Run the programs; with `shrink`, make each that fails smaller instead of counting it."""
    request_devices()
    # Whatever a program prints must not get between the reports.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**report: Any) -> None:
        out.write(json.dumps(report) + "\n")
        out.flush()

    import jax

    from . import trial

    verify_alone()
    gc.freeze()
    with jax.numpy_dtype_promotion("strict"):
        for numbers in groups:
            programs = [make(seed, number) for number in numbers]
            outcomes = trial.attempt_all(programs, lambda phase: say(phase=phase))
            for number, program, outcome in zip(numbers, programs, outcomes, strict=True):
                script = ""
                if shrink and outcome.kind == "wrong":
                    script = smaller(program, outcome).script()
                features = sorted(program.features)
                say(number=number, features=features, script=script, **vars(outcome))
    return 0


def smaller(program: Program, outcome: Any) -> Program:
    """A smaller program that fails in the same way."""
    from . import trial
    from .shrink import shrink

    # A program that fails with another exception is another failure; an exception of ours shows
    # without running anything for real.
    raised = outcome.why.split(":")[0] if "Error" in outcome.why.split(":")[0] else None

    def fails(candidate: Program) -> bool:
        if raised is None:
            return trial.attempt(candidate).kind == "wrong"
        return trial.attempt_simulated(candidate).why.startswith(raised)

    small = shrink(program, fails)
    return small if trial.attempt(small).kind == "wrong" else program
