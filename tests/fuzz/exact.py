"""Values that are computed without rounding, so that they can be compared bit by bit.

They are of every type, and hold what only a comparison of bits can see: NaN, infinities, signed
zeros, sums that overflow. They never mix with the float32 registers, whose last bits may differ.
"""

from __future__ import annotations

from math import prod

from .draw import Draw
from .language import Argument, Register, Spec
from .scope import LARGEST, Scope

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz")
FLOAT8 += ("float8_e5m2fnuz", "float8_e3m4", "float8_e4m3")
FLOATS = ("float32", "float16", "bfloat16", *FLOAT8)
WHOLE = ("int8", "uint8", "int16", "uint16", "uint32")

KINDS = [
    (5, ("special", ("float32", "float16", "bfloat16"))),
    (2, ("zeros", ("float32", "bfloat16"))),
    (4, ("small", FLOATS)),
    (2, ("large", ("float16",))),
    (1, ("powers", ("float8_e8m0fnu",))),
    (3, ("complex", ("complex64",))),
    (4, ("bits", WHOLE)),
    (2, ("truths", ("bool",))),
]


def argument(draw: Draw, name: str, shape: tuple[int, ...], spec: Spec) -> Argument:
    """An argument of such values."""
    values, dtypes = draw.weighted(KINDS)
    return Argument(name, shape, draw.pick(dtypes), spec, values)


def exact(s: Scope) -> None:
    """Something done to one of these values, if there is one."""
    r = s.exact()
    if r is None:
        return
    kind = s.kinds[r.name]
    s.features |= {f"{r.dtype} values", f"{kind} values"}
    alike = [(3, local)]
    if s.meet:
        alike += [(5, reduce_all), (3, gather), (2, permute), (3, scatter), (2, exchange)]
    s.draw.weighted(alike)(s, r)


def keep(s: Scope, r: Register, new: Register, expression: str) -> None:
    """Write an exact register of the same kind of values."""
    s.kinds[new.name] = s.kinds[r.name]
    s.write(new, expression)


def like(s: Scope, r: Register, shape, varying, differs) -> Register:
    return s.new(shape, r.dtype, varying, differs, exact=True)


def local(s: Scope, r: Register) -> None:
    forms = ["jnp.where(jnp.arange({0}.size).reshape({0}.shape) % 2 == 0, {0}, {0}[..., ::-1])"]
    forms = forms if r.shape else ["jnp.where({0} == {0}, {0}, {0})"]
    if r.shape:
        forms += ["jnp.flip({0})", "jnp.roll({0}, 1, axis=0)", "{0}[..., ::-1]"]
    if r.dtype in FLOATS or r.dtype == "complex64":
        forms += ["-{0}", "jnp.negative({0})"]
    index = s.whole()
    varying, differs = r.varying, r.differs
    form = s.draw.pick(forms)
    if index is not None and r.shape and s.draw.chance(40):
        form = f"jnp.roll({{0}}, {index.name} % {r.shape[0]}, axis=0)"
        varying, differs = varying | index.varying, differs | index.differs
    keep(s, r, like(s, r, r.shape, varying, differs), form.format(r.name))


def reduce_all(s: Scope, r: Register) -> None:
    axes = s.axes()
    kind = s.kinds[r.name]
    names = ["psum", "pmax", "pmin"]
    if r.dtype in ("complex64", "bool"):
        names = ["psum"] if r.dtype == "complex64" else ["pmax", "pmin"]
    if r.dtype == "float8_e8m0fnu":
        names = ["pmax", "pmin"]
    name = s.draw.pick(names)
    r = s.cast(r, frozenset(axes))
    s.features.add(f"{name} of {family(r.dtype)}")
    if kind in ("special", "zeros") and name != "psum":
        s.features.add(f"{name} of {kind} values")
    gone = set(axes)
    new = like(s, r, r.shape, r.varying - gone, r.differs - gone)
    over = repr(axes[0] if len(axes) == 1 else axes)
    keep(s, r, new, f"lax.{name}({r.name}, {over})")


def family(dtype: str) -> str:
    return "float8" if dtype.startswith("float8") else "integers" if dtype in WHOLE else dtype


def gather(s: Scope, r: Register) -> None:
    axes = s.axes()
    n = s.size(axes)
    if r.size * n > LARGEST or len(r.shape) > 2:
        return local(s, r)
    r = s.cast(r, frozenset(axes))
    s.features.add(f"all_gather of {family(r.dtype)}")
    new = like(s, r, (n, *r.shape), r.varying, r.differs - set(axes))
    return keep(s, r, new, f"lax.all_gather({r.name}, {axes})")


def permute(s: Scope, r: Register) -> None:
    axes = tuple(a for a in s.sizes if a in s.axes())
    if s.split:
        return local(s, r)
    n = s.size(axes)
    r = s.cast(r, frozenset(axes))
    s.features.add(f"ppermute of {family(r.dtype)}")
    pairs = list(enumerate(s.draw.shuffled(range(n))))[: s.draw.integer(1, n)]
    new = like(s, r, r.shape, r.varying, r.differs | set(axes))
    return keep(s, r, new, f"lax.ppermute({r.name}, {axes}, {pairs})")


def scatter(s: Scope, r: Register) -> None:
    axes = s.axes()
    n = s.size(axes)
    if r.dtype in ("bool", "float8_e8m0fnu") or r.size * n > LARGEST:
        return local(s, r)
    r = s.cast(r, frozenset(axes))
    s.features.add(f"psum_scatter of {family(r.dtype)}")
    new = like(s, r, r.shape, r.varying, r.differs | set(axes))
    stacked = f"jnp.stack([jnp.roll({r.name}, k) for k in range({n})])"
    return keep(s, r, new, f"lax.psum_scatter({stacked}, {axes})")


def exchange(s: Scope, r: Register) -> None:
    axes = s.axes()
    n = s.size(axes)
    if r.size * n > LARGEST or len(r.shape) > 2:
        return local(s, r)
    r = s.cast(r, frozenset(axes))
    s.features.add(f"all_to_all of {family(r.dtype)}")
    new = like(s, r, (n, *r.shape), r.varying, r.differs | set(axes))
    stacked = f"jnp.stack([jnp.roll({r.name}, k) for k in range({n})])"
    return keep(s, r, new, f"lax.all_to_all({stacked}, {axes}, 0, 0, tiled=True)")


def whole_shape(shape: tuple[int, ...], spec: Spec, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(d * prod(sizes[a] for a in e) for d, e in zip(shape, spec, strict=True))
