"""Statements in which devices meet."""

from __future__ import annotations

from .language import Register
from .plain import unary
from .scope import LARGEST, Scope


def over(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)


def collective(s: Scope) -> None:
    if not s.meet:
        return unary(s)
    s.draw.weighted(
        [
            (5, reduce_all),
            (4, gather_all),
            (3, scatter_sum),
            (3, exchange),
            (3, permute),
            (2, reduce_whole),
            (2, in_groups),
        ]
    )(s)
    return None


def reduce_all(s: Scope) -> None:
    axes = s.axes()
    r = s.real()
    replicated = not r.varying & set(axes)
    if not (replicated and s.draw.chance(50)):
        r = s.cast(r, frozenset(axes))
    name = s.draw.pick(["psum", "pmean", "pmax", "pmin"])
    s.features.add(name)
    value = f"lax.stop_gradient({r.name})" if s.smooth and name in ("pmax", "pmin") else r.name
    times = s.size(axes) if name == "psum" else 1
    gone = set(axes)
    new = s.new(r.shape, "float32", r.varying - gone, r.differs - gone, r.bound * times)
    s.tamed(s.write(new, f"lax.{name}({value}, {over(axes)})"))


def reduce_whole(s: Scope) -> None:
    r = s.whole(None)
    if r is None:
        return reduce_all(s)
    axes = s.axes()
    r = s.cast(r, frozenset(axes))
    name = s.draw.pick(["psum", "pmax", "pmin"])
    s.features.add(f"{name} of integers")
    gone = set(axes)
    new = s.new(r.shape, "int32", r.varying - gone, r.differs - gone)
    s.write(new, f"lax.{name}({r.name}, {over(axes)})")
    return None


def gather_all(s: Scope) -> None:
    axes = s.axes()
    n = s.size(axes)
    r = s.cast(s.real(LARGEST // n), frozenset(axes))
    tiled = bool(r.shape) and s.draw.chance(50)
    axis = s.draw.integer(0, len(r.shape) - (1 if tiled else 0))
    shape = list(r.shape)
    if tiled:
        shape[axis] *= n
    else:
        shape.insert(axis, n)
    if len(shape) > 3:
        return reduce_all(s)
    gone = set(axes)
    options = f"axis={axis}, tiled={tiled}"
    varying = r.varying
    s.features.add("all_gather")
    if s.draw.chance(20):
        s.features.add("all_gather to invarying")
        options += ", to='invarying'"
        varying = varying - gone
    new = s.new(shape, "float32", varying, r.differs - gone, r.bound)
    s.write(new, f"lax.all_gather({r.name}, {over(axes)}, {options})")
    return None


def fan(s: Scope, r: Register, n: int) -> str:
    """An expression with a leading dimension of size `n` that is different along it."""
    return f"jnp.multiply.outer(jnp.arange(1.0, {n + 1}) / {n}, {r.name})"


def scatter_sum(s: Scope) -> None:
    axes = s.axes()
    n = s.size(axes)
    r = s.cast(s.real(LARGEST // n), frozenset(axes))
    if len(r.shape) > 2:
        return reduce_all(s)
    s.features.add("psum_scatter")
    dimension = s.draw.integer(0, len(r.shape))
    tiled = s.draw.chance(50)
    value = fan(s, r, n)
    value = f"jnp.moveaxis({value}, 0, {dimension})" if dimension else value
    shape = list(r.shape)
    if tiled:
        shape.insert(dimension, 1)
    options = f"scatter_dimension={dimension}, tiled={tiled}"
    new = s.new(shape, "float32", r.varying, r.differs | set(axes), r.bound * n)
    s.tamed(s.write(new, f"lax.psum_scatter({value}, {over(axes)}, {options})"))
    return None


def exchange(s: Scope) -> None:
    axes = s.axes()
    n = s.size(axes)
    r = s.cast(s.real(LARGEST // n), frozenset(axes))
    if len(r.shape) > 2:
        return permute(s)
    s.features.add("all_to_all")
    rank = len(r.shape) + 1
    tiled = s.draw.chance(60)
    # JAX's own transpose of an untiled exchange between two dimensions has a wrong shape.
    concat = s.draw.integer(0, rank - 1) if tiled or not s.smooth else 0
    shape = [n, *r.shape]
    if tiled:
        shape[0] //= n
        shape[concat] *= n
    else:
        shape.pop(0)
        shape.insert(concat, n)
    new = s.new(shape, "float32", r.varying, r.differs | set(axes), r.bound)
    s.write(new, f"lax.all_to_all({fan(s, r, n)}, {over(axes)}, 0, {concat}, tiled={tiled})")
    return None


def permute(s: Scope) -> None:
    if s.split:
        return reduce_all(s)
    axes = s.axes()
    axes = tuple(a for a in s.sizes if a in axes)
    n = s.size(axes)
    r = s.cast(s.real(), frozenset(axes))
    s.features.add("ppermute")
    targets = s.draw.shuffled(range(n))
    pairs = list(enumerate(targets))
    if s.draw.chance(40):
        s.features.add("partial ppermute")
        pairs = pairs[: s.draw.integer(0, n - 1)]
    new = s.new(r.shape, "float32", r.varying, r.differs | set(axes), r.bound)
    s.write(new, f"lax.ppermute({r.name}, {over(axes)}, {pairs})")
    return None


def in_groups(s: Scope) -> None:
    fit = [a for a in s.sizes if a in s.meet and s.sizes[a] in (4, 6, 8)]
    if not fit:
        return reduce_all(s)
    axis = s.draw.pick(fit)
    order = s.draw.shuffled(range(s.sizes[axis]))
    half = len(order) // 2
    groups = [order[:half], order[half:]]
    r = s.cast(s.real(LARGEST // half), frozenset([axis]))
    options = [("all_gather", (half, *r.shape)), ("psum", r.shape), ("pmean", r.shape)]
    name, shape = s.draw.pick(options if not s.check else options[:1])
    if len(shape) > 3:
        return reduce_all(s)
    s.features.add(f"{name} in groups")
    new = s.new(shape, "float32", r.varying, r.differs | {axis}, r.bound * half)
    call = f"lax.{name}({r.name}, {axis!r}, axis_index_groups={groups})"
    s.tamed(s.write(new, call))
    return None
