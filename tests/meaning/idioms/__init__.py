"""Right programs as people write them: which of them does `prove` prove?

Each is the body of a `shard_map` with a docstring, in a file for its topic. It is compared with a
plain function (`reference`) or, without one, with itself on one device. `production` idioms are
what training code consists of; the `harder` ones are the rest of what people write. They were
written down before any of them was counted. `python -m tests.meaning.idioms` counts.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from typing import Any

import jax

TOPICS = (
    "data",
    "tensor",
    "vocabulary",
    "sequence",
    "images",
    "pipeline",
    "experts",
    "optimizer",
    "statistics",
    "meshes",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Idiom:
    """A right program, its arguments, and what it is compared with."""

    level: str
    topic: str
    name: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: dict[str, int]
    reference: Callable[..., Any] | None

    def __str__(self) -> str:
        return f"{self.topic}.{self.name}"

    def expected(self) -> Any:
        """Return the right results, from the reference or from one real device."""
        if self.reference is not None:
            return jax.jit(self.reference)(*self.args)
        return self.real(dict.fromkeys(self.mesh, 1))

    def real(self, sizes: dict[str, int]) -> Any:
        """Return the results on real virtual devices."""
        mesh = jax.make_mesh(
            tuple(sizes.values()),
            tuple(sizes),
            axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
            devices=jax.devices()[: math.prod(sizes.values())],
        )
        return jax.jit(lambda *args: self.step(*args, mesh=mesh))(*self.args)


_IDIOMS: dict[str, Idiom] = {}


def _enter(level: str, mesh: dict[str, int], ins: Any, outs: Any, *args: Any, **options: Any):
    reference = options.pop("reference", None)

    def enter(body: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, mesh: Any) -> Any:
            sharded = jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, **options)
            return sharded(*args)

        topic = body.__module__.rsplit(".", 1)[1]
        made = Idiom(level, topic, body.__name__, step, args, mesh, reference)
        assert str(made) not in _IDIOMS, made
        _IDIOMS[str(made)] = made
        return body

    return enter


def production(mesh: dict[str, int], ins: Any, outs: Any, *args: Any, **options: Any) -> Any:
    """Enter a body that training code consists of."""
    return _enter("production", mesh, ins, outs, *args, **options)


def harder(mesh: dict[str, int], ins: Any, outs: Any, *args: Any, **options: Any) -> Any:
    """Enter any other body."""
    return _enter("harder", mesh, ins, outs, *args, **options)


def idioms() -> list[Idiom]:
    """Return all of them, by topic."""
    for topic in TOPICS:
        importlib.import_module(f"{__name__}.{topic}")
    return list(_IDIOMS.values())
