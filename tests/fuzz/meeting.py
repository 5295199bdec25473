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
            (2, ragged),
            (3, joined_sum),
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


JOINED = {
    "products": "jnp.resize({0}, (2, 3)).T @ jnp.resize({1}, (2, 2))",
    "transposed products": "(jnp.resize({1}, (2, 2)).T @ jnp.resize({0}, (2, 3))).T",
    "convolutions": "lax.conv("
    "jnp.resize({0}, (3, 2, 3)), jnp.resize({1}, (2, 2, 3)), (1,), 'VALID').reshape(3, 2)",
    "scattered sums": "jnp.zeros((3, 2)).at[jnp.arange(4)].add(jnp.resize({0}, (4, 2)))",
    "sums scattered onto a value": "jnp.ones((3, 2)).at[(jnp.arange(2) + {2}) % 3]"
    ".add(jnp.resize({1}, (2, 2)))",
}
"""What is made of two values to be summed over devices; a fourth row is left out."""


def joined_sum(s: Scope) -> None:
    axes = s.axes()
    a, b = (s.cast(s.real(), frozenset(axes)) for _ in range(2))
    kinds = [s.draw.pick(list(JOINED)) for _ in range(s.draw.integer(1, 3))]
    s.features.update(f"psum of {kind}" for kind in kinds)
    at = f"lax.axis_index({over(axes[:1])})"
    terms = [JOINED[kind].format(a.name, b.name, at) for kind in kinds]
    value = "".join(f" {s.draw.pick(['+', '-'])} {term}" for term in terms).lstrip(" +")
    bound = (6 * a.bound * b.bound + 2 * (a.bound + b.bound) + 1) * len(kinds) * s.size(axes)
    gone = set(axes)
    new = s.new((3, 2), "float32", (a.varying | b.varying) - gone, (a.differs | b.differs) - gone,
                bound)  # fmt: skip
    s.tamed(s.write(new, f"lax.psum({value}, {over(axes)})"))


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
    options = [("all_gather", (half, *r.shape)), ("all_to_all", (half, *r.shape))]
    options += [("psum_scatter", r.shape)]
    options += [("psum", r.shape), ("pmean", r.shape), ("pmax", r.shape)] if not s.check else []
    name, shape = s.draw.pick(options)
    if len(shape) > 3:
        return reduce_all(s)
    s.features.add(f"{name} in groups")
    new = s.new(shape, "float32", r.varying, r.differs | {axis}, r.bound * half)
    value = fan(s, r, half) if name in ("all_to_all", "psum_scatter") else r.name
    value = f"lax.stop_gradient({value})" if name == "pmax" else value
    where = ", 0, 0" if name == "all_to_all" else ""
    s.tamed(s.write(new, f"lax.{name}({value}, {axis!r}{where}, axis_index_groups={groups})"))
    return None


def ragged(s: Scope) -> None:
    """An exchange of unequal parts, by a table of who sends how many rows to whom."""
    fit = [a for a in s.sizes if a in s.meet and s.sizes[a] <= 4]
    rows = [r for r in s.reals(48) if r.shape]
    if not fit or not rows or s.split or s.batched:
        return reduce_all(s)
    axis = s.draw.pick(fit)
    n = s.sizes[axis]
    r = s.cast(s.draw.pick(rows[::-1]), frozenset([axis]))
    table = []
    for _ in range(n):
        left = r.shape[0]
        table.append([])
        for _ in range(n):
            table[-1].append(s.draw.integer(0, min(left, 2)))
            left -= table[-1][-1]
    long = max(sum(row[j] for row in table) for j in range(n)) + s.draw.integer(0, 2)
    if long == 0 or long * r.size > LARGEST:
        return reduce_all(s)
    s.features.add("ragged_all_to_all")
    into = f"jnp.full({(long, *r.shape[1:])}, 0.3, jnp.float32)"
    into = f"lax.pcast({into}, {tuple(sorted(r.varying))}, to='varying')" if s.check else into
    new = s.new((long, *r.shape[1:]), "float32", r.varying, r.differs | {axis}, max(r.bound, 1.0))
    s.write(new, f"ragged({r.name}, {into}, {table}, {axis!r})")
    return None
