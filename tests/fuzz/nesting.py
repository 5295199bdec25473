"""Statements with functions of their own: loops, branches, and transformations."""

from __future__ import annotations

from .language import NOWHERE, Block, Statement
from .meeting import over
from .plain import place, unary
from .scope import LARGEST, Scope


def scan(s: Scope) -> None:
    s.features.add("scan")
    init = s.real(24)
    kept = init.varying | set(s.draw.subset(list(s.sizes)))
    start = s.cast(init, kept)
    rows = [r for r in s.reals(48) if r.shape and r.shape[0] <= 4]
    over_rows = bool(rows) and s.draw.chance(50)
    xs = s.draw.pick(rows[::-1]) if over_rows else None
    length = xs.shape[0] if xs else s.draw.integer(1, 3)
    carry = s.new(start.shape, "float32", kept, kept, 2.0)
    row = s.new(
        xs.shape[1:] if xs else (),
        "float32",
        xs.varying if xs else NOWHERE,
        xs.differs if xs else NOWHERE,
        xs.bound if xs else 1.0,
    )
    inner = s.inner(s.fresh(), (carry, row))
    inner.fill()
    new = inner.within(carry.shape, kept)
    new = inner.like(new, f"0.5 * {carry.name} + jnp.tanh({new.name})")
    seen = inner.real(LARGEST // length)
    inner.block.result = f"{new.name}, {seen.name}"
    backwards = s.draw.chance(30)
    s.features |= {"reverse scan"} if backwards else set()
    source = xs.name if xs else f"jnp.arange(1.0, {length + 1})"
    expression = f"lax.scan({inner.block.name}, {start.name}, {source}, reverse={backwards})"
    last = s.new(start.shape, "float32", kept, kept, 2.0)
    out = s.new((length, *seen.shape), "float32", seen.varying, seen.differs, seen.bound)
    if len(out.shape) > 3:
        inner.block.result = f"{new.name}, None"
        s.write(last, f"{expression}[0]", inner.block)
    else:
        s.write_all((last, out), expression, inner.block)


def counted(s: Scope) -> None:
    """A fori_loop, of known length or as long as a register says."""
    limit = s.whole()
    dynamic = limit is not None and not s.reverse and s.draw.chance(60)
    apart = known = NOWHERE
    until = f"np.int32({s.draw.integer(1, 3)})"
    if limit is not None and dynamic:
        apart, known, until = limit.differs, limit.varying, f"{limit.name} % 3 + 1"
    s.features.add("fori_loop as long as data says" if dynamic else "fori_loop")
    s.features |= {"loops of different lengths"} if apart else set()
    init = s.real(24)
    kept = init.varying | known | set(s.draw.subset(list(s.sizes)))
    start = s.cast(init, kept)
    index = s.new((), "int32", NOWHERE, NOWHERE)
    carry = s.new(start.shape, "float32", kept, kept, 2.0)
    inner = s.apart(s.fresh(), (index, carry), apart)
    if dynamic:
        inner.registers.remove(index)
    inner.fill()
    new = inner.within(carry.shape, kept)
    inner.block.result = f"0.5 * {carry.name} + jnp.tanh({new.name})"
    out = s.new(start.shape, "float32", kept, kept, 2.0)
    s.write(
        out, f"lax.fori_loop(np.int32(0), {until}, {inner.block.name}, {start.name})", inner.block
    )


def while_loop(s: Scope) -> None:
    limit = s.whole()
    if limit is None or s.reverse:
        return scan(s)
    s.features.add("while_loop")
    asked = s.draw.subset([a for a in s.sizes if a in s.meet - limit.differs])
    apart = limit.differs
    s.features |= {"loops of different lengths"} if apart else set()
    s.features |= {"a collective in a loop's condition"} if asked else set()
    init = s.real(24)
    counter = s.cast(
        s.write(s.new((), "int32", NOWHERE, NOWHERE), "jnp.int32(0)"), limit.varying | set(asked)
    )
    kept = init.varying | limit.varying | set(s.draw.subset(list(s.sizes)))
    start = s.cast(init, kept)
    n = s.new((), "int32", counter.varying, apart)
    carry = s.new(start.shape, "float32", kept, kept, 2.0)
    inner = s.apart(s.fresh(), (n, carry), apart)
    inner.fill()
    new = inner.within(carry.shape, kept)
    inner.block.result = f"{n.name} + 1, 0.5 * {carry.name} + jnp.tanh({new.name})"
    state = inner.block.params
    inner.block.params = (f"state{n.name}",)
    inner.block.statements.insert(0, Statement(state, f"state{n.name}"))
    turns = f"lax.psum(state[0], {over(asked)}) // {s.size(asked)}" if asked else "state[0]"
    decide = f"lambda state: {turns} < {limit.name} % 3 + 1"
    expression = f"lax.while_loop({decide}, {inner.block.name}, ({counter.name}, {start.name}))"
    last = s.new((), "int32", counter.varying, apart)
    out = s.new(start.shape, "float32", kept, kept, 2.0)
    s.write_all((last, out), expression, inner.block)
    return None


def branch(s: Scope) -> None:
    """A cond or a switch, on a register that agrees along the axes used inside."""
    index = s.whole()
    if index is None:
        return place(s)
    apart = index.differs
    ways = s.draw.integer(2, 3)
    s.features.add("cond" if ways == 2 else "switch")
    s.features |= {"branches that differ over other axes"} if apart else set()
    operand = s.cast(s.real(24), apart)
    s.features |= {"a branch in a branch"} if s.branches else set()
    scopes, results = [], []
    for _ in range(ways):
        param = s.new(operand.shape, "float32", operand.varying, operand.differs, operand.bound)
        inner = s.apart(s.fresh(), (param,), apart)
        inner.branches = True
        inner.fill()
        scopes.append(inner)
        results.append(inner.fitted(inner.real(), operand.shape))
    varying = index.varying.union(*(r.varying for r in results))
    for inner, result in zip(scopes, results, strict=True):
        inner.block.result = inner.cast(result, varying).name
    differs = apart.union(*(r.differs for r in results))
    new = s.new(operand.shape, "float32", varying, differs, max(r.bound for r in results))
    names = ", ".join(inner.block.name for inner in scopes)
    call = f"lax.switch({index.name} % {ways}, [{names}], {operand.name})"
    if ways == 2:
        call = f"lax.cond({index.name} % 2 == 0, {names}, {operand.name})"
    s.write(new, call, *(inner.block for inner in scopes))
    return None


# --- transformations


def derivative(s: Scope) -> None:
    r = s.cast(s.real(24), s.absent)
    param = s.new(r.shape, "float32", r.varying, r.differs, r.bound)
    forward = s.draw.chance(30)
    inner = s.inner(
        s.fresh(),
        (param,),
        smooth=True,
        forward=s.forward or forward,
        reverse=s.reverse or not forward,
    )
    inner.fill()
    result = inner.real()
    everywhere = frozenset(s.sizes)
    if forward:
        s.features.add("jvp in the body")
        inner.block.result = result.name
        tangent = f"jnp.cos({r.name})"
        expression = f"jax.jvp({inner.block.name}, ({r.name},), ({tangent},))"
        primal = s.new(result.shape, "float32", result.varying, result.differs, result.bound)
        moved = s.new(result.shape, "float32", result.varying, result.varying, 9.0)
        s.write_all((primal, moved), expression, inner.block)
        s.tamed(moved)
        return
    s.features.add("grad in the body")
    inner.block.result = f"jnp.mean({result.name} * 0.5)"
    # With the check off, a gradient is each device's own.
    varying = r.varying if s.check else everywhere
    differs = r.varying if s.check else everywhere
    new = s.new(r.shape, "float32", varying, differs, 9.0)
    s.tamed(s.write(new, f"jax.grad({inner.block.name})({r.name})", inner.block))


def batched(s: Scope) -> None:
    rows = [r for r in s.reals(24) if r.shape and r.shape[0] <= 4]
    if not rows:
        return unary(s)
    s.features.add("vmap in the body")
    r = s.draw.pick(rows[::-1])
    param = s.new(r.shape[1:], "float32", r.varying, r.differs, r.bound)
    inner = s.inner(s.fresh(), (param,), batched=True)
    inner.fill()
    result = inner.real(LARGEST // r.shape[0])
    if len(result.shape) > 2:
        result = inner.fitted(result, ())
    inner.block.result = f"{result.name} + 0.0 * jnp.sum({param.name})"
    varying, differs = result.varying | param.varying, result.differs | param.differs
    new = s.new((r.shape[0], *result.shape), "float32", varying, differs, result.bound)
    s.write(new, f"jax.vmap({inner.block.name})({r.name})", inner.block)
    return None


def called(s: Scope) -> None:
    """A call through jit, remat or a composite."""
    forms = {"jit": "jax.jit({0})", "checkpoint": "jax.checkpoint({0})"}
    forms["checkpoint of dots"] = (
        "jax.checkpoint({0}, policy=jax.checkpoint_policies.dots_saveable)"
    )
    if not (s.smooth or s.batched):
        forms["composite"] = "lax.composite({0}, name='fuzz.call')"
    name = s.draw.pick(list(forms))
    s.features.add(f"{name} in the body")
    r = s.real()
    param = s.new(r.shape, "float32", r.varying, r.differs, r.bound)
    inner = s.inner(s.fresh(), (param,))
    if name == "composite":
        # It may not close over anything.
        inner.registers = [param]
    inner.fill()
    result = inner.real()
    inner.block.result = result.name
    new = s.new(result.shape, "float32", result.varying, result.differs, result.bound)
    s.write(new, f"{forms[name].format(inner.block.name)}({r.name})", inner.block)


def custom(s: Scope) -> None:
    """A function with a derivative of its own, which follows the same branches again."""
    if s.forward:
        return called(s)
    s.features.add("custom_vjp with residuals")
    r = s.real(24)
    param = s.new(r.shape, "float32", r.varying, r.differs, r.bound)
    # Nothing but the argument: a custom_vjp may not close over what is differentiated.
    inner = s.inner(s.fresh(), (param,), smooth=True, reverse=True)
    inner.registers = [x for x in s.registers if not x.real and not x.exact] + [param]
    inner.fill()
    result = inner.real()
    inner.block.result = result.name
    rule = Block(s.fresh(), ())
    rule.statements = [
        Statement(("call",), f"jax.custom_vjp({inner.block.name})"),
        Statement(
            (),
            f"call.defvjp(lambda v: ({inner.block.name}(v), v), "
            f"lambda v, ct: (0.5 * jax.vjp({inner.block.name}, v)[1](ct)[0],))",
        ),
    ]
    rule.result = "call"
    new = s.new(result.shape, "float32", result.varying, result.differs, result.bound)
    return s.tamed(s.write(new, f"{rule.name}()({r.name})", inner.block, rule)) and None
