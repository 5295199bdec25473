"""What `explain` found, as data: the parts of a report, which `facts.py` puts together.

Bytes and FLOPs are those of one device unless a name says otherwise. A count of `None` is one that
the program decides as it runs: the trips of a `while`. Totals then take it as one, and say so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..._program import Where
from ..._program.where import NOWHERE
from .hardware import Hardware


class Plain:
    """Dataclasses that can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data: dicts, lists, numbers and strings."""
        names = [field.name for field in dataclasses.fields(self)]  # pyright: ignore
        return {name: plain(getattr(self, name)) for name in names}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple | list) else value


@dataclasses.dataclass(frozen=True)
class MeshAxis(Plain):
    """One axis of the mesh."""

    name: str
    size: int


@dataclasses.dataclass(frozen=True)
class Held(Plain):
    """An argument or a result: which part of it each device holds."""

    path: str
    """`params['w1']` for an argument, `result[0]['w1']` for a result."""
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]
    """For each dimension the mesh axes it is split over, the slowest first."""
    local_shape: tuple[int, ...]
    """The part of one device."""
    bytes: int
    """Of one device's part."""
    replicated: tuple[str, ...]
    """The mesh axes along which all devices hold the same part."""
    used: bool = True
    """Whether anything reads it; XLA keeps no argument that nothing reads."""


@dataclasses.dataclass(frozen=True)
class Holding(Plain):
    """What each device holds before and after a collective, in words."""

    before: str
    """`its rows of x along data`, `a share of a sum over model`."""
    after: str
    """`the whole of x`, `its part along data`."""


@dataclasses.dataclass(frozen=True)
class Instead(Plain):
    """What would be sent in the place of a redundant collective."""

    name: str
    axes: tuple[str, ...]
    group_size: int
    bytes_sent: int
    """By one device, each time."""
    times: int
    """How often; those in a `while` taken once."""

    @property
    def total_bytes(self) -> int:
        """By one device, all times."""
        return self.bytes_sent * self.times


@dataclasses.dataclass(frozen=True)
class Redundant(Plain):
    """Why a collective sends more than it has to, and what would do."""

    kind: str
    """`same`: the devices already agree. `held`: they already have the result. `repeated`: it was
    sent before. `recomputed`: so too, by `jax.checkpoint`. `unused`: only one's own part is taken
    back. `scattered`: of a sum only one's own part. `reduced`: what is gathered is only reduced.
    `merged`: a sum of a sum. `order`: of the whole, where of a part would do. `every turn`: a loop
    sends the same again and again. `added up`: a loop only adds up what it sums at every turn."""
    reason: str
    remedy: str
    bytes: int
    """That one device would not send in one call; each `while` taken once."""
    instead: tuple[Instead, ...] = ()
    """What would be sent in its place; nothing, if it can be left out."""
    also: int | None = None
    """The place in `Report.collectives` of another one that is left out with it."""
    memory: int = 0
    """Bytes that one device would have to keep for it. Then it is a choice, and not in the sum."""


Spec = tuple[tuple[str, ...], ...]
"""For each dimension the mesh axes it is split over, the slowest first."""


@dataclasses.dataclass(frozen=True)
class Why(Plain):
    """Why the compiler sends something, read off the shardings of the operation at its line."""

    kind: str
    """`contraction`: a product sums over a split dimension. `operand`: a product needs more of an
    operand than a device holds. `reduction`: a sum or maximum over a split dimension.
    `resharding`: the program asks for another spec. `operation`: another operation does."""
    reason: str
    before: Spec | None
    """How the array is sharded that is sent, where it is one array."""
    after: Spec | None
    """How the result is sharded."""


@dataclasses.dataclass(frozen=True)
class Sharding(Plain):
    """How the compiler shards a value that a line of the program computes."""

    where: Where
    primitive: str
    shape: tuple[int, ...]
    """Of the whole array."""
    dtype: str
    spec: Spec | None
    """None where no `PartitionSpec` can say it."""
    direction: str


@dataclasses.dataclass(frozen=True)
class Suggestion(Plain):
    """Another sharding that was compiled and sends less."""

    code: str
    """What to write: `w = jax.lax.with_sharding_constraint(w, P(None, 'model'))`."""
    argument: str
    spec: Spec
    bytes_sent: int
    """By one device in one call, with it."""
    before: int
    """The same without it."""
    peak: int
    """Bytes that one device holds at the peak, with it."""


@dataclasses.dataclass(frozen=True)
class CollectiveUse(Plain):
    """One array that one collective of the program sends."""

    name: str
    """As in `jax.lax`: `psum`, `all_gather`, `psum_scatter`; a `pmean` is a `psum`."""
    axes: tuple[str, ...]
    group_size: int
    """How many devices exchange it with each other."""
    shape: tuple[int, ...]
    """Of one device's operand."""
    dtype: str
    bytes: int
    """Of one device's operand."""
    count: int | None
    """How often it happens, trip counts of loops multiplied out; None where a `while` decides."""
    least: int
    """The same if each `while` runs once."""
    bytes_sent: int
    """By one device (the busiest), each time, by ring algorithms."""
    direction: str
    """`forward`, `backward`, or `update`: what comes of the backward pass."""
    where: Where
    caller: Where = NOWHERE
    """The line that called the function in which it stands, where there is one."""
    module: str = ""
    """The Flax module it belongs to, `Block_0/Dense_1`, where there is one."""
    counted: bool = True
    """Whether it enters the totals: False for those in branches of a `cond` that cost less."""
    launch: int = 0
    """Collectives with the same number stand side by side and can be sent as one message."""
    meaning: Holding | None = None
    """Who holds what before and after it; None where the program could not be followed."""
    redundant: Redundant | None = None
    """Why it sends more than it has to, where that is proved."""
    by: str = "program"
    """`program` for a collective that the program calls, `compiler` for one that XLA inserts."""
    of: str = ""
    """The argument that is sent, or a part of it: `params['w1']`; empty for a computed value."""
    result_shape: tuple[int, ...] | None = None
    """Of one device's result, where the compiler says it."""
    why: Why | None = None
    """Why the compiler sends it, where its line shows that."""

    @property
    def total_bytes(self) -> int:
        """By one device, all times; each `while` taken once."""
        return self.bytes_sent * self.least

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, with the lines around it."""
        excerpt = plain(self.where.excerpt)
        return {**super().to_dict(), "total_bytes": self.total_bytes, "excerpt": excerpt}


@dataclasses.dataclass(frozen=True)
class Step(Plain):
    """A part of the program, from top to bottom.

    `kind` is `compute` (what each device does by itself between two collectives), `collective`,
    `scan`, `while` or `cond`. Loops and branches without a collective inside are `compute`.
    """

    kind: str
    where: Where
    flops: float = 0.0
    """Of one occurrence, all that is inside included."""
    moved: int = 0
    """Bytes read from and written to the device's memory in one occurrence."""
    dots: dict[str, float] = dataclasses.field(default_factory=dict)
    """FLOPs of matrix products and convolutions in one occurrence, by type: `bfloat16`."""
    operations: int = 0
    """For `compute`: how many."""
    collective: int | None = None
    """For a `collective`: its place in `Report.collectives`."""
    length: int | None = None
    """For a `scan`: its trip count."""
    bodies: tuple[tuple[Step, ...], ...] = ()
    """For a loop its one body, for a `cond` the branches."""
    counted: int = 0
    """For a `cond`: the branch that enters the totals, the costliest one."""
    direction: str = "forward"
    module: str = ""
    seconds: float | None = None
    """Of one occurrence by the cost model, where there is a hardware."""


@dataclasses.dataclass(frozen=True)
class Traffic(Plain):
    """What is sent along one axis, or along several at once."""

    axes: tuple[str, ...]
    collectives: int
    """How many of `Report.collectives`."""
    count: int
    """How often they happen."""
    bytes: int
    """Sent by one device."""
    share: float
    """Of all bytes, 0 to 1."""
    seconds: float | None = None
    """By the cost model, where there is a hardware."""
    time_share: float | None = None
    """Of all seconds of communication, 0 to 1."""

    @property
    def part(self) -> float:
        """The share to look at: of the time where it is known, else of the bytes."""
        return self.share if self.time_share is None else self.time_share


@dataclasses.dataclass(frozen=True)
class Live(Plain):
    """A value in memory at the peak."""

    what: str
    """The path of an argument, or the operation that makes it."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    where: Where


@dataclasses.dataclass(frozen=True)
class Memory(Plain):
    """What one device holds."""

    arguments: int
    """Bytes of the arguments that something reads."""
    results: int
    peak: int
    """The most bytes of live values, arguments and results included."""
    peak_where: Where
    live: tuple[Live, ...]
    """The largest values at the peak, the largest first."""
    rest: int
    """Bytes of all other values at the peak."""
    timeline: tuple[tuple[int, int], ...]
    """`(operation, bytes live)` along the program; `operation` counts from 0."""


@dataclasses.dataclass(frozen=True)
class Work(Plain):
    """Floating-point operations."""

    flops: float
    """Of one device."""
    total: float
    """Of all devices together."""
    redundant: float
    """The part of `total` that another device of the mesh computes as well."""
    by_kind: dict[str, float]
    """Of one device: `dot`, `convolution`, `elementwise`, `reduction`, `linear algebra`."""
    moved: int
    """Bytes one device reads from and writes to its memory."""
    uncounted: tuple[str, ...] = ()
    """Primitives whose FLOPs are not known; they count as none."""


@dataclasses.dataclass(frozen=True)
class ScalingPoint(Plain):
    """The modelled step where the axis has another size and each device the same work."""

    size: int
    communication: float
    """Seconds."""
    serial: float
    """Seconds of a step if nothing overlaps."""
    overlapped: float
    """Seconds of a step if communication hides behind compute as far as it can."""
    efficiency: float
    """Of the step on size 1 to this one, if nothing overlaps."""
    efficiency_overlapped: float


@dataclasses.dataclass(frozen=True)
class Scaling(Plain):
    """The parallel efficiency as one axis grows."""

    axis: str
    points: tuple[ScalingPoint, ...]


@dataclasses.dataclass(frozen=True)
class Cost(Plain):
    """Seconds of one call by a latency-bandwidth model. A model, not a measurement."""

    hardware: Hardware
    compute: float
    """Seconds for FLOPs and for memory traffic, whichever is longer in each part."""
    arithmetic: float
    """Seconds for FLOPs alone."""
    moving: float
    """Seconds for reading and writing the device's own memory alone."""
    communication: float
    """Seconds for all collectives, one after the other."""
    latency: float
    """The part of `communication` that is there however small the messages."""
    serial: float
    """Seconds if nothing overlaps."""
    overlapped: float
    """Seconds if communication hides behind compute as far as it can."""
    waiting: float
    """Seconds that a step takes longer than `serial` on several nodes: slower devices, a shared
    network. Part of `scaling`, not of `serial` and `overlapped`."""
    bound: str
    """What takes longest: `arithmetic`, `memory`, `bandwidth` or `latency`."""
    collectives: tuple[float, ...]
    """Seconds of each of `Report.collectives`, all occurrences."""
    latencies: tuple[float, ...]
    """The part of each of these that is there however small the messages."""
    saved: tuple[float, ...]
    """Seconds that each of them would take less, if what is redundant about it were left out."""
    redundant: float
    """Seconds of `communication` that are redundant: those of `saved` that come at no price."""
    by_axes: tuple[tuple[tuple[str, ...], float], ...]
    """Seconds of communication along each axis, or several at once."""
    fits: bool
    """Whether the peak of live values fits the memory of a device."""
    scaling: tuple[Scaling, ...]
    """One curve for each mesh axis."""
    assumptions: tuple[str, ...]
