"""The facts that a row of the table of primitives states."""

from __future__ import annotations

import dataclasses
from typing import Literal

Acts = Literal[
    "pointwise",  # each element of the result depends on the elements at the same place
    "moves",  # the result has elements of the operand, see `Primitive.moves`
    "makes",  # a value without operands: counters, constants
    "reduces",  # dimensions become one element
    "scans",  # each element depends on those before it along one dimension
    "windows",  # each element depends on a window of the operand
    "contracts",  # products, summed up
    "scatters",  # updates at some indices are combined with the current elements
    "searches",  # positions or order of elements along a dimension
    "draws",  # random numbers or keys
    "transforms",  # each element depends on whole dimensions: Fourier, linear algebra
    "call",  # a nested program, see `Primitive.body`
    "control",  # loops and branches
    "collective",  # devices communicate, see `Primitive.form`
    "types",  # changes the type that JAX gives a value, not the value
    "annotates",  # a hint for the compiler about a value
    "places",  # changes the placement of a value, not the value
    "effects",  # callbacks, references, tokens
    "opaque",  # kernels, and primitives that exist only inside kernels
    "",  # unknown
]
Moves = Literal[
    "",
    "reorder",  # every element once
    "part",  # some elements, selected by parameters
    "lookup",  # some elements, selected by the other operands
    "repeat",  # some elements more than once
    "join",  # the elements of several operands
    "pad",  # every element, with a number around or between them
    "update",  # every element, some of them replaced
]
Linear = Literal[
    "",  # not linear
    "all",  # in all operands together: f(a + c, b + d) = f(a, b) + f(c, d)
    "each",  # in each operand alone, the others fixed
    "first",  # in the first operand
    "rest",  # in all operands but the first together
]
Work = Literal[
    "",  # unknown, or computed by a special rule
    "none",  # no floating-point arithmetic, or none worth counting
    "result",  # one FLOP for each element of the result
    "operand",  # one FLOP for each element of the first operand
    "updates",  # one FLOP for each element of the third operand
]
_WORK: dict[str, Work] = {
    "pointwise": "result",
    "reduces": "operand",
    "scans": "operand",
    "windows": "operand",
    "scatters": "updates",
    **dict.fromkeys(
        ("moves", "makes", "searches", "draws", "types", "annotates", "effects"), "none"
    ),
}


@dataclasses.dataclass(frozen=True)
class CollectiveForm:
    """A collective in the list of operations: its name, and the name of each parameter there."""

    name: str
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    together: bool = False
    """Whether its operands have one common result; otherwise each has its own."""


@dataclasses.dataclass(frozen=True)
class Primitive:
    """The properties of a primitive."""

    name: str
    acts: Acts = ""
    moves: Moves = ""
    linear: Linear = ""
    combines: str = ""
    """How it combines numbers: `sum` (or difference), `prod`, `max`, `min`, `and`, `or`, `xor`."""
    selects: bool = False
    """Whether each element of the result is an element of an operand, or zero: exact, no larger."""
    bounded: bool = False
    """Whether no result is larger than all operands: integers never wrap around."""
    commutes: bool = False
    idempotent: bool = False
    """Whether f(x, x) = x."""
    truth: bool = False
    """Whether results are truth values, whatever the operands are."""
    mirror: str = ""
    """For a comparison, the equivalent one for swapped operands."""
    rounds: bool = False
    """Whether it rounds numbers to integers."""
    bits: bool = False
    """Whether it depends on the bits of its operands, and not on their values alone."""
    fixed_dtype: bool = False
    """Whether its result depends on the dtype of its operands, or it is compiled for it."""
    growth: int = 0
    """1 if results may be larger than any operand, 2 if they are huge for ordinary operands."""
    pole: bool = False
    """Whether it is minus infinity for a finite operand."""
    series: bool = False
    """Whether each element takes a series or an iteration: hundreds of instructions."""
    work: Work = ""
    view: bool = False
    """Whether the result is the operand itself, under another shape or name."""
    random: bool = False
    """Whether its results are random numbers or keys."""
    keys: bool = False
    """Whether its results are keys."""
    unbatchable: bool = False
    """Whether JAX cannot batch it, or computes other numbers when it does."""
    along: str = ""
    """What it does to the elements along a dimension: `it <along> all of them`."""
    body: str = ""
    """For a call, the parameter with the called program."""
    form: CollectiveForm | None = None
    """For a collective that can be simulated, its form in the list of operations."""
    remote: bool = False
    """Whether a kernel communicates with other devices by it."""

    def __post_init__(self) -> None:
        """Fill in the work that follows from how it acts."""
        if not self.work and self.acts in _WORK:
            object.__setattr__(self, "work", _WORK[self.acts])

    @property
    def pointwise(self) -> bool:
        """Return whether each element of the result depends only on the elements at the same
        place."""
        return self.acts == "pointwise"

    @property
    def identity(self) -> bool:
        """Return whether the result is the operand itself."""
        return self.acts in ("types", "annotates", "places")
