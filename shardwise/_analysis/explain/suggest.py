"""Search for sharding constraints that send less, by compiling each candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ..._base.doing import doing
from ..._base.errors import ShardwiseError
from ..._engine.tracing import Traced
from ..._mesh import split_over
from ..compiler.compile import Compiled, compiled
from ..compiler.worker import CompileError
from . import units
from .data import CollectiveUse, Spec, Suggestion

TRIALS = 6
"""The number of constraints that are compiled."""


def suggestions(
    traced: Traced,
    mesh: Mesh | AbstractMesh,
    result: Compiled,
    uses: Sequence[CollectiveUse],
    platform: str,
) -> tuple[Suggestion, ...]:
    """Return constraints on one argument that send less than the program does, the best first."""
    base = _sent(result)
    better = []
    for place, spec in list(_candidates(result, uses))[:TRIALS]:
        path = result.inputs[place].path
        doing(f"trying {path} as {units.spec(spec)}")
        try:
            constrained = {place: PartitionSpec(*(row or None for row in spec))}
            trial = compiled(traced, result.inputs, mesh, platform, constrained)
        except (CompileError, ShardwiseError, TypeError, ValueError):
            continue  # a constraint that the program does not accept, as along Explicit axes
        if _sent(trial) < base:
            code = f"{path} = jax.lax.with_sharding_constraint({path}, {units.spec(spec)})"
            better.append(Suggestion(code, path, spec, _sent(trial), base, trial.peak or 0))
    return tuple(sorted(better, key=lambda suggestion: suggestion.bytes_sent))


def _sent(result: Compiled) -> int:
    return sum(message.bytes_sent * message.times for message in result.sent if message.counted)


def _candidates(result: Compiled, uses: Sequence[CollectiveUse]) -> Iterator[tuple[int, Spec]]:
    """Yield arguments split over axes of the largest collectives, without these axes."""
    largest = sorted(
        (use for use in uses if use.by == "compiler"), key=lambda use: -use.total_bytes
    )
    tried = set()
    for use in largest:
        for place, item in enumerate(result.inputs):
            rows = split_over(item.spec)
            fewer = tuple(tuple(name for name in row if name not in use.axes) for row in rows)
            if item.path and fewer != tuple(rows) and (place, fewer) not in tried:
                tried.add((place, fewer))
                yield place, fewer
