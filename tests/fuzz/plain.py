"""Statements that every device runs by itself."""

from __future__ import annotations

from math import prod

from .scope import LARGEST, Scope

KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def unary(s: Scope) -> None:
    r = s.real()
    forms = ["jnp.sin({0})", "jnp.tanh({0})", "jnp.cos({0}) * 0.5", "{0} * 0.7 + 0.1"]
    forms.append("leant({0})" if s.forward else "bent({0})")
    if r.bound <= 2:
        forms += ["{0} ** 2 * 0.5", "jnp.exp({0}) * 0.1"]
    if r.shape:
        forms += ["jnp.flip({0})", "jnp.roll({0}, 1, axis=0)", "jnp.cumsum({0}, axis=-1) * 0.25"]
        forms += ["jax.nn.softmax({0}, axis=-1)"]
        if not s.smooth:
            forms += ["jnp.sort({0}, axis=-1)"]
    s.like(r, s.draw.pick(forms).format(r.name), max(r.bound, 1.0))


def binary(s: Scope) -> None:
    left = s.real()
    fits = [r for r in s.reals() if r.shape in ((), left.shape)]
    right = s.draw.pick(fits[::-1])
    form, bound = s.draw.pick(
        [
            ("{0} + {1}", left.bound + right.bound),
            ("{0} * {1}", left.bound * right.bound),
            ("{0} - 0.5 * {1}", left.bound + right.bound),
            ("jnp.where(jnp.arange({0}.size).reshape({0}.shape) % 2 == 0, {0}, {1})", 1.0),
        ]
    )
    bound = max(bound, left.bound, right.bound) if form.startswith("jnp") else bound
    varying, differs = left.varying | right.varying, left.differs | right.differs
    new = s.new(left.shape, "float32", varying, differs, bound)
    s.tamed(s.write(new, form.format(left.name, right.name)))


def contraction(s: Scope) -> None:
    left = s.real(24)
    fits = [r for r in s.reals(24) if r.shape and left.shape and r.shape[0] == left.shape[-1]]
    if not fits:
        return unary(s)
    right = s.draw.pick(fits[::-1])
    shape = left.shape[:-1] + right.shape[1:]
    if prod(shape) > LARGEST:
        return unary(s)
    varying, differs = left.varying | right.varying, left.differs | right.differs
    new = s.new(shape, "float32", varying, differs, left.bound * right.bound)
    scale = round(1.0 / left.shape[-1], 3)
    expression = f"jnp.tensordot({left.name}, {right.name}, 1) * {scale}"
    s.tamed(s.write(new, expression))
    return None


def reduction(s: Scope) -> None:
    r = s.real()
    if not r.shape:
        return unary(s)
    axis = s.draw.integer(0, len(r.shape) - 1)
    name = s.draw.pick(["mean", "sum"])
    everything = s.draw.chance(40)
    shape = () if everything else r.shape[:axis] + r.shape[axis + 1 :]
    times = 1 if name == "mean" else r.size if everything else r.shape[axis]
    new = s.new(shape, "float32", r.varying, r.differs, r.bound * times)
    where = "" if everything else f", axis={axis}"
    s.tamed(s.write(new, f"jnp.{name}({r.name}{where})"))
    return None


def reshaping(s: Scope) -> None:
    r = s.real()
    forms = [(f"{r.name}[None]", (1, *r.shape)), (f"{r.name}.reshape(-1)", (r.size,))]
    if len(r.shape) >= 2:
        forms.append((f"jnp.swapaxes({r.name}, 0, 1)", (r.shape[1], r.shape[0], *r.shape[2:])))
    if r.shape and r.shape[0] > 1:
        forms += [(f"{r.name}[1:]", (r.shape[0] - 1, *r.shape[1:])), (f"{r.name}[0]", r.shape[1:])]
    if r.shape and 2 * r.size <= LARGEST:
        double = (2 * r.shape[0], *r.shape[1:])
        forms.append((f"jnp.concatenate([{r.name}, jnp.sin({r.name})])", double))
    form, shape = s.draw.pick(forms)
    if len(shape) <= 3:
        s.write(s.new(shape, "float32", r.varying, r.differs, max(r.bound, 1.0)), form)


def place(s: Scope) -> None:
    axis = s.draw.pick(list(s.sizes))
    own = frozenset([axis])
    if s.draw.chance(60):
        s.write(s.new((), "int32", own, own), f"lax.axis_index({axis!r})")
    else:
        several = s.draw.subset(list(s.sizes), 1)
        own = frozenset(several)
        new = s.new((), "float32", own, own, 1.0)
        s.write(new, f"lax.axis_index({several}).astype(jnp.float32) * 0.1")


def integer(s: Scope) -> None:
    left, right = s.whole(None), s.whole(None)
    if left is None or right is None:
        return place(s)
    if right.shape not in ((), left.shape):
        right = left
    forms = ["({0} * 3 + {1}) % 7", "{0} ^ {1}", "jnp.maximum({0}, {1} % 3)", "({0} - {1}) % 5"]
    forms += ["jnp.where({0} > {1}, {0}, 2)", "({0} << 1) % 11"]
    varying, differs = left.varying | right.varying, left.differs | right.differs
    new = s.new(left.shape, "int32", varying, differs)
    s.write(new, s.draw.pick(forms).format(left.name, right.name))
    if left.shape and s.draw.chance(50):
        last = s.registers[-1]
        s.write(s.new((), "int32", varying, differs), f"jnp.sum({last.name}, dtype=jnp.int32)")
    return None


def selection(s: Scope) -> None:
    index = s.whole()
    r = s.real()
    if index is None or not r.shape:
        return place(s)
    n = r.shape[0]
    varying, differs = r.varying | index.varying, r.differs | index.differs
    at = f"{index.name} % {n}"
    forms = [
        (f"lax.dynamic_index_in_dim({r.name}, {at}, keepdims=False)", r.shape[1:]),
        (f"{r.name}.at[{at}].set(0.5)", r.shape),
        (f"{r.name}.at[{at}].multiply(0.5)", r.shape),
        (f"jnp.roll({r.name}, {at}, axis=0)", r.shape),
        (f"jnp.where({index.name} % 2 == 0, {r.name}, 0.3)", r.shape),
        (f"{r.name}[jnp.arange({n}) * 2 % {n}] * ({at}).astype(jnp.float32)", r.shape),
        (f"lax.dynamic_slice_in_dim({r.name}, {at}, {(n + 1) // 2})", ((n + 1) // 2, *r.shape[1:])),
        (f"lax.dynamic_update_slice_in_dim({r.name}, jnp.cos({r.name}[:1]), {at}, 0)", r.shape),
        (
            f"jnp.take({r.name}, (jnp.arange(2, dtype=jnp.int32) + {index.name}) % {n}, axis=0)",
            (2, *r.shape[1:]),
        ),
        (f"{r.name}.at[(jnp.arange(2, dtype=jnp.int32) + {index.name}) % {n}].add(0.2)", r.shape),
        (f"jnp.sin({r.name}[{at}]) * {r.name}", r.shape),
    ]
    form, shape = s.draw.pick(forms)
    s.tamed(s.write(s.new(shape, "float32", varying, differs, r.bound * n), form))
    return None


def randomness(s: Scope) -> None:
    """Random numbers, from a key of the program's or of the arguments'."""
    given = [r for r in s.registers if r.dtype in KEYS]
    if given and s.draw.chance(50):
        r = s.draw.pick(given)
        s.features |= {"keys as arguments", f"{r.dtype} keys"}
        key, own, differs = f"{r.name}[0]", r.varying, r.differs
    else:
        impl = s.draw.weighted([(4, KEYS[0]), (2, KEYS[1]), (3, KEYS[2])])
        s.features |= {"random", f"{impl} keys"}
        key, own, differs = f"jax.random.key({s.draw.integer(0, 9)}, impl={impl!r})", set(), set()
    for axis in s.draw.subset(list(s.sizes)):
        key = f"jax.random.fold_in({key}, lax.axis_index({axis!r}))"
        own, differs = own | {axis}, differs | {axis}
    if s.draw.chance(40):
        s.features.add("keys split on each device")
        key = f"jax.random.split({key}, 3)[{s.draw.integer(0, 2)}]"
    _drawn_from(s, key, frozenset(own), frozenset(differs))


def _drawn_from(s: Scope, key: str, own: frozenset[str], differs: frozenset[str]) -> None:
    shape = s.draw.pick([(), (3,), (2, 2)])
    if s.draw.chance(30):
        forms = [f"jax.random.permutation({key}, jnp.arange(3, dtype=jnp.int32))"]
        forms += [f"jax.random.randint({key}, (3,), 0, 7, jnp.int32)"]
        s.write(s.new((3,), "int32", own, differs), s.draw.pick(forms))
    elif s.draw.chance(30):
        r = s.real()
        new = s.new(r.shape, "float32", own | r.varying, differs | r.differs, 2 * r.bound)
        keep = f"jax.random.bernoulli({key}, 0.5, {r.shape})"
        s.tamed(s.write(new, f"jnp.where({keep}, 2.0 * {r.name}, 0.0)"))
    else:
        name = s.draw.pick(["uniform", "normal"])
        new = s.new(shape, "float32", own, differs, 1.0 if name == "uniform" else 5.0)
        s.tamed(s.write(new, f"jax.random.{name}({key}, {shape}, jnp.float32)"))


def rounding(s: Scope) -> None:
    """Something computed in a narrow type."""
    if s.rough is None:
        return unary(s)
    s.features.add(f"computed in {s.rough}")
    r = s.real()
    forms = ["jnp.sin({0})", "{0} * {0}", "{0} + jnp.tanh({0})"]
    if s.meet and s.draw.chance(50):
        axes = s.axes()
        cast = s.cast(r, frozenset(axes))
        gone = set(axes)
        new = s.new(r.shape, "float32", cast.varying - gone, cast.differs - gone, r.bound)
        value = f"lax.pmean({cast.name}.astype(jnp.{s.rough}), {axes})"
        s.write(new, f"{value}.astype(jnp.float32)")
        return None
    value = s.draw.pick(forms).format(f"{r.name}.astype(jnp.{s.rough})")
    s.tamed(s.like(r, f"({value}).astype(jnp.float32)", max(2 * r.bound, r.bound**2)))
    return None
