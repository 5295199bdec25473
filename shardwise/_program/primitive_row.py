"""The facts that a row of the table of primitives states."""

from __future__ import annotations

import dataclasses
from typing import Literal

Acts = Literal[
    "pointwise",  # each element of the result depends on the elements at the same place
    "moves",  # the result has elements of the operand, see `Primitive.moves`
    "makes",  # a value out of nothing: counters, constants
    "reduces",  # whole dimensions become one element
    "scans",  # each element depends on those before it along one dimension
    "windows",  # each element depends on a window of the operand
    "contracts",  # products, summed up
    "scatters",  # updates at given indices are combined with what is there
    "searches",  # positions or order of elements along a dimension
    "draws",  # random numbers or keys
    "transforms",  # whole dimensions become as many other numbers: Fourier, linear algebra
    "call",  # a program of its own, named by `Primitive.body`
    "control",  # loops and branches
    "collective",  # devices exchange something, see `Primitive.form`
    "types",  # changes the type that JAX gives a value, not the value
    "annotates",  # tells the compiler something about a value
    "places",  # changes where a value is, not the value
    "effects",  # callbacks, references, tokens
    "opaque",  # kernels, and what only exists inside them
    "",  # nothing is known
]
Moves = Literal[
    "",
    "reorder",  # every element once
    "part",  # some elements, which the parameters name
    "lookup",  # some elements, which the other operands name
    "repeat",  # some of them more than once
    "join",  # the elements of several operands
    "pad",  # and a number around or between them
    "update",  # some of them replaced
]
Linear = Literal[
    "",  # not linear
    "all",  # in all operands together: f(a + c, b + d) = f(a, b) + f(c, d)
    "each",  # in each operand alone, the others fixed
    "first",  # in the first operand
    "rest",  # in all operands but the first together
]
Work = Literal[
    "",  # not known, or computed by a rule of its own
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
class Form:
    """A collective as the list of operations has it: its name, and our name of each parameter."""

    name: str
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    together: bool = False
    """Whether its operands make one result; else each of them has its own."""


@dataclasses.dataclass(frozen=True)
class Primitive:
    """What a primitive is."""

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
    """For a comparison, the one that says the same of swapped operands."""
    rounds: bool = False
    """Whether it rounds numbers to integers."""
    bits: bool = False
    """Whether it depends on the bits of its operands, and not on their values alone."""
    fixed_dtype: bool = False
    """Whether it depends on the dtype of its operands, or is compiled for it."""
    growth: int = 0
    """1 if results may be larger than any operand, 2 if they are huge for ordinary operands."""
    series: bool = False
    """Whether each element takes a series or an iteration: hundreds of instructions."""
    work: Work = ""
    view: bool = False
    """Whether the result is the operand itself, under another shape or name."""
    random: bool = False
    """Whether it gives random numbers or keys."""
    keys: bool = False
    """Whether what it gives are keys."""
    apart: bool = False
    """Whether JAX cannot batch it, or gives other numbers when it does."""
    along: str = ""
    """What it does to the elements along a dimension: `it <along> all of them`."""
    body: str = ""
    """For a call, the parameter that holds what is called."""
    form: Form | None = None
    """For a collective that can be simulated, how it reads."""
    remote: bool = False
    """Whether a kernel exchanges something with other devices by it."""

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
