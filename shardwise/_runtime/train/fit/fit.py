"""`fit`: the training loop, with checkpoints, a log and evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from ...._base.calls import binds, public
from ...._base.errors import (
    ArgumentError,
    ShardingError,
    ShardwiseError,
    a_type,
    name_of,
    path_of,
)
from ...._base.progress import Snapshot
from ...._mesh import is_count
from .checkpoint import LEAST
from .loop import Callback, Evaluate, TrainingLoop
from .processes import Team


@public(
    "sw.fit",
    epochs="steps= is the total number of steps, and batches are iterated again when they end: "
    "steps=epochs * len(batches)",
    batch_size="the data determines the size of the batches.",
    optimizer="pass it to the step: sw.data_parallel(loss, optimizer).",
    learning_rate="pass it to the optimizer of the step: optax.adamw(1e-3).",
    verbose="use progress=.",
    mesh="pass it to the step: sw.data_parallel(loss, optimizer, mesh=mesh).",
)
def fit(
    step: Any,
    state: Any,
    batches: Iterable[Any],
    *,
    steps: int,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    keep: int = 3,
    evaluate: Evaluate | Mapping[str, Evaluate] | None = None,
    log: str | os.PathLike[str] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    on_nan: str = "warn",
    progress: bool | Callable[[Snapshot], Any] | None = None,
) -> Any:
    """Train for a number of steps; after an interruption, the same call resumes.

    With `checkpoint`, the state is stored every `every` steps and at the end. Called again with the
    same arguments, also after a crash or `kill -9`, it resumes from the newest checkpoint and ends
    with the same parameters, bit for bit, as an uninterrupted run. SIGINT (Ctrl-C) and SIGTERM end
    it after the current step, which is stored; a second Ctrl-C ends it at once. Checkpoints are
    verified: one that is damaged, renamed or of another run is reported, and the one before it is
    used.

    Of several processes all call it with the same arguments. They resume from the same step, an
    error in one of them is raised in all, and a signal to any ends all of them after the same step.
    Process 0 writes the checkpoints (in a folder that all processes share), the log and the
    progress, and calls the callbacks.

    Args:
        step: The step that `sw.data_parallel` or `sw.nnx.data_parallel` returned.
        state: The initial state: `step.init(params)`; for NNX the pair
            `(model, optimizer)`, which is updated in place.
        batches: An iterable of batches; when it ends, it is iterated again if possible. Its
            position is stored if its iterator has `get_state` and `set_state` (Grain); otherwise a
            resumed run draws the batches again and drops those already used, so it must yield the
            same ones. On several processes each iterates its batches according to `feed` of the
            step, and the position of each process is stored.
        steps: The total number of steps, including those before an interruption.
        checkpoint: A folder for checkpoints, for one training at a time.
        every: Store and evaluate after this many steps, by default a tenth of `steps`.
        keep: The number of checkpoints to keep, at least two.
        evaluate: `f(state)` that returns a mapping of numbers, such as the result of `sw.evaluate`;
            or several such functions by name. They are logged as `name/metric`.
        log: A `.jsonl` file for the metrics of every step, by default `log.jsonl` in the
            folder of checkpoints. `curves.png` beside it plots them.
        callbacks: A function, or several, called with every row of the log as a dict: `step`,
            `seconds`, `loss`, the other metrics, `name/metric` where it was evaluated. Rows come in
            order, some steps late; a resumed run repeats those since the checkpoint.
        on_nan: What to do if the loss is not finite: `"warn"` reports step and batch and continues;
            `"raise"` stops before the next checkpoint.
        progress: None or True shows a bar on a terminal and lines in a log, False nothing; a
            function is called with every snapshot.

    Returns:
        The state after the last step.

    Raises:
        ShardingError: The data ended too early, or the checkpoints belong to another training.
        ShardwiseError: The folder is in use, or cannot be written, or was deleted; no checkpoint in
            it can be used; or the loss is not finite and `on_nan` is `"raise"`.
    """
    every = max(1, steps // 10) if every is None and is_count(steps) else every
    _check(step, steps, every, keep, on_nan)
    evaluate, callbacks = _several(evaluate, callbacks)
    checkpoint = None if checkpoint is None else path_of(checkpoint, "argument 'checkpoint'")
    log = None if log is None else path_of(log, "argument 'log'")
    if log is None and checkpoint is not None:
        log = checkpoint / "log.jsonl"
    team = Team(step)
    if not team.first:  # process 0 writes for all
        log, callbacks, progress = None, [], False
    with team.training() as signals:
        loop = TrainingLoop(
            step,
            state,
            steps=steps,
            every=every or 1,
            evaluate=evaluate,
            callbacks=callbacks,
            on_nan=on_nan,
            progress=progress,
            signals=signals,
            team=team,
        )
        with closing(loop):
            try:
                with signals.at_once():
                    team.agree(steps=steps, every=every, checkpoints=checkpoint is not None)
                    loop.restore(batches, checkpoint, keep, log)
                loop.train()
                signals.check()
            except BaseException as error:
                if signals.signum is not None and not isinstance(error, ShardwiseError):
                    signals.end(loop.leave())
                if isinstance(error, Exception):
                    loop.close()
                    if not team.shared:  # the others wait for the error
                        loop.draw()
                raise
            loop.close()
            team.meet()
    loop.draw()
    loop.report_end()
    return loop.state


def _several(evaluate: Any, callbacks: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the evaluations by name and the list of callbacks."""
    if evaluate is None or callable(evaluate):
        evaluate = {"eval": evaluate} if evaluate else {}
    functions = [callbacks] if callable(callbacks) else () if callbacks is None else callbacks
    for name, value, rule, remedy in (
        (
            "evaluate",
            evaluate,
            "It is a function of the state, or a dict of such functions by name.",
            "evaluate=lambda state: sw.evaluate(fn, state.params, data)",
        ),
        (
            "callbacks",
            functions,
            "It is a function of a row of the log, or a list of such functions.",
            "callbacks=print",
        ),
    ):
        kind = Mapping if name == "evaluate" else Sequence
        inner = value.values() if isinstance(value, Mapping) else value
        if not isinstance(value, kind) or not all(map(callable, inner)):
            problem = f"{name} is {a_type(value)}"
            if isinstance(value, kind):
                problem = f"{name} contains something that is not a function"
            raise ArgumentError(problem, where="sw.fit", rule=rule, remedy=remedy)
        for function in inner:
            if refusal := binds(function, [None]):
                problem = (
                    f"{name_of(function)}() of {name} cannot be called with one argument: {refusal}"
                )
                raise ArgumentError(problem, where="sw.fit", rule=rule, remedy=remedy)
    return dict(evaluate), list(functions)


def _check(step: Any, steps: Any, every: Any, keep: Any, on_nan: Any) -> None:
    if not all(hasattr(step, name) for name in ("advance", "arrays", "optimizer_kinds", "restore")):
        raise ArgumentError(
            f"step is {a_type(step)}",
            where="sw.fit",
            rule="fit runs a step of sw.data_parallel or sw.nnx.data_parallel.",
            remedy="step = sw.data_parallel(loss, optax.adamw(1e-3))",
        )
    hint = "; two checkpoints are the least, since the newest may be damaged"
    for name, value, minimum, example, reason in (
        ("steps", steps, 1, 1000, ""),
        ("every", every, 1, 100, ""),
        ("keep", keep, LEAST, 3, hint),
    ):
        if name == "every" and value is None:
            continue  # a tenth of the steps
        if not is_count(value) or value < minimum:
            raise ShardingError(
                f"{name} is {value!r}" + f", {a_type(value)}" * isinstance(value, str),
                where="sw.fit",
                rule=f"It is an integer, at least {minimum}{reason}.",
                remedy=f"{name}={example}",
            )
    if not isinstance(on_nan, str) or on_nan not in ("warn", "raise"):
        raise ShardingError(
            f"on_nan is {on_nan!r}",
            where="sw.fit",
            rule="A loss that is not finite is reported ('warn') or stops the training ('raise').",
            remedy="on_nan='raise'",
        )
