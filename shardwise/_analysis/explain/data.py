"""The parts of a report of `explain`, as data. `facts.py` combines them.

Bytes and FLOPs are per device unless a name says otherwise. A count is `None` if the program
decides it at run time: the trip count of a `while`. Totals then count it once and say so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..._base.plain import Plain, plain
from ..._program import Where
from ..._program.where import NOWHERE
from .hardware import Hardware


@dataclasses.dataclass(frozen=True)
class MeshAxis(Plain):
    """One axis of the mesh."""

    name: str
    size: int


@dataclasses.dataclass(frozen=True)
class ArrayLayout(Plain):
    """An argument or a result, and which part of it each device holds."""

    path: str
    """`params['w1']` for an argument, `result[0]['w1']` for a result."""
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]
    """The mesh axes that split each dimension, the slowest first."""
    local_shape: tuple[int, ...]
    """The shape of one device's part."""
    bytes: int
    """The bytes of one device's part."""
    replicated: tuple[str, ...]
    """The mesh axes along which all devices hold the same part."""
    used: bool = True
    """Whether anything reads it; XLA drops arguments that nothing reads."""


@dataclasses.dataclass(frozen=True)
class Holding(Plain):
    """What each device holds before and after a collective, as text."""

    before: str
    """`its rows of x along data`, `a share of a sum over model`."""
    after: str
    """`the whole of x`, `its part along data`."""


@dataclasses.dataclass(frozen=True)
class Instead(Plain):
    """A collective that would replace a redundant one."""

    name: str
    axes: tuple[str, ...]
    group_size: int
    bytes_sent: int
    """Sent by one device each time."""
    times: int
    """How often it runs; a `while` counts as one iteration."""

    @property
    def total_bytes(self) -> int:
        """Sent by one device in total."""
        return self.bytes_sent * self.times


@dataclasses.dataclass(frozen=True)
class Redundant(Plain):
    """Why a collective sends more than necessary, and what would replace it."""

    kind: str
    """`same`: the devices already agree. `held`: they already have the result. `repeated`: it was
    sent before. `recomputed`: the same, by `jax.checkpoint`. `unused`: each device takes only its
    own part back. `scattered`: each device keeps only its part of a sum. `reduced`: the gathered
    array is only reduced. `merged`: a sum of a sum. `order`: the whole is sent where a part would
    do. `every iteration`: a loop sends the same in each iteration. `added up`: a loop only
    accumulates the sums."""
    reason: str
    remedy: str
    bytes: int
    """Bytes that one device would save in one call; a `while` counts as one iteration."""
    instead: tuple[Instead, ...] = ()
    """What would be sent instead; empty if nothing has to be."""
    also: int | None = None
    """The index in `Report.collectives` of another collective that is removed with it."""
    memory: int = 0
    """Bytes that one device would have to keep for it. If not 0, this is a trade-off that totals
    leave out."""


Spec = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dimension, the slowest first."""


@dataclasses.dataclass(frozen=True)
class Why(Plain):
    """Why the compiler sends something, inferred from the shardings on its line."""

    kind: str
    """`contraction`: a product sums over a split dimension. `operand`: a product needs more of an
    operand than a device holds. `reduction`: a sum or maximum over a split dimension.
    `resharding`: the program requests another spec. `operation`: another operation needs it."""
    reason: str
    before: Spec | None
    """The spec of the array that is sent, if it is a single array."""
    after: Spec | None
    """The spec of the result."""


@dataclasses.dataclass(frozen=True)
class Sharding(Plain):
    """How the compiler shards a value that a line of the program computes."""

    where: Where
    primitive: str
    shape: tuple[int, ...]
    """The shape of the whole array."""
    dtype: str
    spec: Spec | None
    """None if no `PartitionSpec` can express it."""
    direction: str


@dataclasses.dataclass(frozen=True)
class Suggestion(Plain):
    """A sharding that was compiled and sends less."""

    code: str
    """The line to add: `w = jax.lax.with_sharding_constraint(w, P(None, 'model'))`."""
    argument: str
    spec: Spec
    bytes_sent: int
    """Sent by one device in one call with the constraint."""
    before: int
    """Sent by one device in one call without it."""
    peak: int
    """Peak memory of one device in bytes with the constraint."""


@dataclasses.dataclass(frozen=True)
class CollectiveUse(Plain):
    """One array sent by one collective of the program."""

    name: str
    """The name in `jax.lax`: `psum`, `all_gather`, `psum_scatter`; a `pmean` is a `psum`."""
    axes: tuple[str, ...]
    group_size: int
    """The number of devices that exchange it with each other."""
    shape: tuple[int, ...]
    """The shape of one device's operand."""
    dtype: str
    bytes: int
    """The bytes of one device's operand."""
    count: int | None
    """How often it runs, loop trip counts multiplied; None if a `while` decides."""
    least: int
    """The same, with each `while` counted as one iteration."""
    bytes_sent: int
    """Sent by one device (the busiest) each time, with ring algorithms."""
    direction: str
    """`forward`, `backward`, or `update`: the part that uses the gradients."""
    where: Where
    caller: Where = NOWHERE
    """The line that calls the function containing it, if there is one."""
    module: str = ""
    """The Flax module it belongs to, such as `Block_0/Dense_1`, if there is one."""
    counted: bool = True
    """Whether totals include it: False in branches of a `cond` that cost less than another."""
    launch: int = 0
    """Adjacent collectives with the same number can be sent as one message."""
    meaning: Holding | None = None
    """What devices hold before and after it; None if the program could not be analysed."""
    redundant: Redundant | None = None
    """Why it sends more than necessary, if that is proved."""
    by: str = "program"
    """`program` for a collective that the program calls, `compiler` for one that XLA inserts."""
    of: str = ""
    """The argument that is sent, or a part of it: `params['w1']`; empty for a computed value."""
    result_shape: tuple[int, ...] | None = None
    """The shape of one device's result, if the compiler reports it."""
    why: Why | None = None
    """Why the compiler sends it, if its line shows that."""

    @property
    def total_bytes(self) -> int:
        """Sent by one device in total; a `while` counts as one iteration."""
        return self.bytes_sent * self.least

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the surrounding source lines."""
        excerpt = plain(self.where.excerpt)
        return {**super().to_dict(), "total_bytes": self.total_bytes, "excerpt": excerpt}


@dataclasses.dataclass(frozen=True)
class ProgramPart(Plain):
    """A part of the program, in program order.

    `kind` is `compute` (what each device does by itself between two collectives), `collective`,
    `scan`, `while` or `cond`. Loops and branches without a collective inside are `compute`.
    """

    kind: str
    where: Where
    flops: float = 0.0
    """FLOPs of one occurrence, including everything inside."""
    moved: int = 0
    """Bytes read from and written to device memory in one occurrence."""
    dots: dict[str, float] = dataclasses.field(default_factory=dict)
    """FLOPs of matrix products and convolutions in one occurrence, by dtype: `bfloat16`."""
    operations: int = 0
    """For `compute`: the number of operations."""
    collective: int | None = None
    """For a `collective`: its index in `Report.collectives`."""
    length: int | None = None
    """For a `scan`: its trip count."""
    bodies: tuple[tuple[ProgramPart, ...], ...] = ()
    """For a loop its body, for a `cond` its branches."""
    counted: int = 0
    """For a `cond`: the index of the branch that totals include, the most expensive one."""
    direction: str = "forward"
    module: str = ""
    seconds: float | None = None
    """Seconds of one occurrence by the cost model, if hardware is given."""


@dataclasses.dataclass(frozen=True)
class Traffic(Plain):
    """What is sent along one axis, or along several axes at once."""

    axes: tuple[str, ...]
    collectives: int
    """The number of entries in `Report.collectives`."""
    count: int
    """How often they run."""
    bytes: int
    """Sent by one device."""
    share: float
    """The share of all bytes, 0 to 1."""
    seconds: float | None = None
    """Seconds by the cost model, if hardware is given."""
    time_share: float | None = None
    """The share of all communication time, 0 to 1."""

    @property
    def part(self) -> float:
        """The share to show: of the time if it is known, else of the bytes."""
        return self.share if self.time_share is None else self.time_share


@dataclasses.dataclass(frozen=True)
class Live(Plain):
    """A value in memory at the peak."""

    what: str
    """The path of an argument, or the name of the operation that makes it."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    where: Where


@dataclasses.dataclass(frozen=True)
class Memory(Plain):
    """The memory of one device."""

    arguments: int
    """Bytes of the arguments that are read."""
    results: int
    peak: int
    """The largest sum of bytes of live values, arguments and results included."""
    peak_where: Where
    live: tuple[Live, ...]
    """The largest values at the peak, the largest first."""
    rest: int
    """Bytes of all other values at the peak."""
    timeline: tuple[tuple[int, int], ...]
    """`(operation, live bytes)` along the program; `operation` counts from 0."""


@dataclasses.dataclass(frozen=True)
class Work(Plain):
    """The floating-point operations of a program."""

    flops: float
    """Of one device."""
    total: float
    """Of all devices together."""
    redundant: float
    """The part of `total` that another device of the mesh computes too."""
    by_kind: dict[str, float]
    """Of one device: `dot`, `convolution`, `elementwise`, `reduction`, `linear algebra`."""
    moved: int
    """Bytes that one device reads from and writes to its memory."""
    uncounted: tuple[str, ...] = ()
    """Primitives whose FLOPs are unknown and counted as 0."""


@dataclasses.dataclass(frozen=True)
class ScalingPoint(Plain):
    """The modelled step with another axis size and the same work per device."""

    size: int
    communication: float
    """Seconds of communication."""
    serial: float
    """Seconds of a step if nothing overlaps."""
    overlapped: float
    """Seconds of a step if communication overlaps with compute as far as possible."""
    efficiency: float
    """The time at size 1 divided by the time at this size, if nothing overlaps."""
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
    """Seconds of FLOPs or of memory traffic, whichever takes longer in each part."""
    arithmetic: float
    """Seconds of FLOPs alone."""
    moving: float
    """Seconds of reading and writing the device's own memory alone."""
    communication: float
    """Seconds of all collectives, one after the other."""
    latency: float
    """The part of `communication` that does not depend on message sizes."""
    serial: float
    """Seconds if nothing overlaps."""
    overlapped: float
    """Seconds if communication overlaps with compute as far as possible."""
    waiting: float
    """Seconds added to `serial` on several nodes, by slower devices and a shared network. Included
    in `scaling`, but not in `serial` and `overlapped`."""
    bound: str
    """What takes longest: `arithmetic`, `memory`, `bandwidth` or `latency`."""
    collectives: tuple[float, ...]
    """Seconds of each of `Report.collectives`, over all occurrences."""
    latencies: tuple[float, ...]
    """The part of each of these that does not depend on message sizes."""
    saved: tuple[float, ...]
    """Seconds that each of them would save without its redundant part."""
    redundant: float
    """Seconds of `communication` that are redundant: the part of `saved` that costs no memory."""
    by_axes: tuple[tuple[tuple[str, ...], float], ...]
    """Seconds of communication along each axis, or several axes at once."""
    fits: bool
    """Whether the peak of live values fits into the memory of a device."""
    scaling: tuple[Scaling, ...]
    """One curve for each mesh axis."""
    assumptions: tuple[str, ...]
