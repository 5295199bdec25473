"""A function being written: what it sees, and what is allowed in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod

from .draw import Draw
from .language import NOWHERE, Axes, Block, Register, Statement

LARGEST = 96
"""The most entries a register may have."""


@dataclass
class Scope:
    """A function being written: what it sees and what is allowed in it.

    Attributes:
        step: Writes one more statement, of a random kind.
        meet: The axes along which its devices may communicate.
        smooth: Whether it will be differentiated.
        forward: Whether it will be differentiated forwards, which a custom_vjp does not allow.
        reverse: Whether it will be differentiated backwards, which a while_loop does not allow.
        batched: Whether it will be vmapped: JAX's own rule for ragged exchanges then fails.
        rough: The narrow type that values may be rounded to, if any.
        kinds: The kind of values that each exact register holds.
        absent: The axes along which some devices may be elsewhere.
        branches: Whether it is part of a branch.
        most: How many statements a function inside it has at most.
        deepest: How deep functions are written inside one another.
    """

    draw: Draw
    sizes: dict[str, int]
    check: bool
    block: Block
    registers: list[Register]
    meet: Axes
    names: count
    features: set[str]
    step: Callable[[Scope], None]
    smooth: bool = False
    forward: bool = False
    reverse: bool = False
    batched: bool = False
    rough: str | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    absent: Axes = NOWHERE
    depth: int = 0
    branches: bool = False
    most: int = 3
    deepest: int = 2

    @property
    def split(self) -> bool:
        """Whether some devices may be elsewhere: XLA on the CPU then hangs in permutations."""
        return bool(self.absent)

    # --- writing

    def new(self, shape, dtype, varying, differs, bound=1.0, exact=False) -> Register:
        name = f"r{next(self.names)}"
        varying, differs = frozenset(varying), frozenset(differs & varying)
        return Register(name, tuple(shape), dtype, varying, differs, bound, exact)

    def write(self, register: Register, expression: str, *blocks: Block) -> Register:
        """Add a statement and the register it sets."""
        self.write_all((register,), expression, *blocks)
        return register

    def write_all(self, registers: tuple[Register, ...], expression: str, *blocks: Block) -> None:
        """Add a statement that sets several registers."""
        names = tuple(r.name for r in registers)
        self.block.statements.append(Statement(names, expression, blocks, registers))
        self.registers += registers

    def fill(self) -> None:
        """Write a few statements."""
        for _ in range(self.draw.integer(1, self.most)):
            self.step(self)

    def like(self, source: Register, expression: str, bound: float | None = None) -> Register:
        """Set a register of the same type to an expression of it."""
        bound = source.bound if bound is None else bound
        new = self.new(source.shape, source.dtype, source.varying, source.differs, bound)
        return self.write(new, expression)

    def tamed(self, register: Register) -> Register:
        """Keep numbers small, without saturating and without losing smoothness."""
        if not register.real or register.bound <= 4:
            return register
        return self.like(register, f"{register.name} / (1.0 + {register.name} ** 2)", 0.5)

    def cast(self, register: Register, axes: Axes) -> Register:
        """The register, varying over `axes` as well."""
        missing = tuple(a for a in self.sizes if a in axes and a not in register.varying)
        if not missing:
            return register
        varying = register.varying | set(missing)
        new = replace(register, name=f"r{next(self.names)}", varying=varying)
        if register.exact:
            self.kinds[new.name] = self.kinds[register.name]
        if not self.check:
            return replace(new, name=register.name)
        return self.write(new, f"lax.pcast({register.name}, {missing}, to='varying')")

    def inner(self, name: str, params: tuple[Register, ...], **changes) -> Scope:
        """The scope of a function written inside this one."""
        block = Block(name, tuple(p.name for p in params))
        return replace(
            self,
            block=block,
            registers=[*self.registers, *params],
            depth=self.depth + 1,
            **changes,
        )

    def apart(self, name: str, params: tuple[Register, ...], axes: Axes) -> Scope:
        """The scope of a function that devices along `axes` need not run together."""
        inner = self.inner(name, params, meet=self.meet - axes, absent=self.absent | axes)
        if axes and self.reverse and self.check:
            # The transpose of a cast along these axes is a sum along them: it would hang.
            inner.registers = [r for r in inner.registers if not r.real or axes <= r.varying]
        return inner

    def fresh(self) -> str:
        return f"f{next(self.names)}"

    # --- choosing

    def reals(self, most: int = LARGEST) -> list[Register]:
        return [r for r in self.registers if r.real and r.size <= most]

    def real(self, most: int = LARGEST) -> Register:
        """A float register, more often a late one: what nothing uses tries nothing."""
        options = self.reals(most) or [self.constant()]
        late = options[-self.draw.pick([1, 1, 1, 2, 4]) :]
        return self.draw.pick(late[::-1]) if self.draw.chance(80) else self.draw.pick(options)

    def exact(self) -> Register | None:
        """One of the registers that hold what is computed without rounding."""
        options = [r for r in self.registers if r.exact]
        return self.draw.pick(options[-4:][::-1]) if options else None

    def whole(self, shape: tuple[int, ...] | None = ()) -> Register | None:
        whole = [r for r in self.registers if r.dtype == "int32" and not r.exact]
        options = [r for r in whole if shape in (None, r.shape)]
        return self.draw.pick(options[::-1]) if options else None

    def axes(self, least: int = 1) -> tuple[str, ...]:
        return self.draw.subset([a for a in self.sizes if a in self.meet], least)

    def size(self, axes: tuple[str, ...]) -> int:
        return prod(self.sizes[a] for a in axes)

    # --- making things fit

    def fitted(self, register: Register, shape: tuple[int, ...]) -> Register:
        """The register in another shape."""
        if register.shape == shape:
            return register
        new = self.new(shape, "float32", register.varying, register.differs, register.bound)
        return self.write(new, f"resized({register.name}, {shape})")

    def within(self, shape: tuple[int, ...], varying: Axes) -> Register:
        """A float register of the given shape that varies over nothing but `varying`."""
        options = [r for r in self.reals() if r.varying - varying <= self.meet]
        register = self.draw.pick(options[-5:][::-1]) if options else self.constant()
        return self.confined(self.fitted(register, shape), varying)

    def confined(self, register: Register, varying: Axes) -> Register:
        """The register, averaged over the axes it must not vary over, cast to those it must."""
        extra = tuple(a for a in self.sizes if a in register.varying - varying)
        if extra:
            new = self.new(
                register.shape,
                "float32",
                register.varying - set(extra),
                register.differs - set(extra),
                register.bound,
            )
            register = self.write(new, f"lax.pmean({register.name}, {extra})")
        return self.cast(register, varying)

    def constant(self) -> Register:
        return self.write(self.new((), "float32", NOWHERE, NOWHERE), "jnp.float32(0.5)")
