"""A remedy in the words of the line that it is for."""

import linecache

import pytest

from shardwise._analysis.check.two_ways import rewritten
from shardwise._program import Where


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        (
            "return jax.lax.pmean(jax.grad(loss)(w, x, y), 'data')",
            "jax.grad(lambda w: jax.lax.pmean(loss(w, x, y), 'data'))(w)",
            "jax.lax.pmean(jax.grad(loss)(w, x, y), 'data')",
        ),
        (
            "l, g = value_and_grad(self.loss)(state.params, batch['x'])",
            "value_and_grad(lambda params: jax.lax.pmean(self.loss(params, batch['x']), 'data'))"
            "(state.params)",
            "jax.lax.pmean(value_and_grad(self.loss)(params, batch['x']), 'data')",
        ),
        (
            "g = jax.grad(lambda p: loss(p, x) + 1)(state.p)",
            "jax.grad(lambda p: jax.lax.pmean(loss(p, x) + 1, 'data'))(state.p)",
            "jax.lax.pmean(jax.grad(lambda p: loss(p, x) + 1)(p), 'data')",
        ),
    ],
)
def test_it_reads_the_call(line, first, second):
    call = line[line.index("jax.grad") if "jax.grad" in line else line.index("value_and") :]
    call = call.removesuffix(", 'data')")
    lines = rewritten(_at(line, call)).splitlines()
    assert lines[1].strip() == first
    assert lines[4].strip() == second


@pytest.mark.parametrize(
    "call",
    [
        "jax.grad(loss, argnums=1)(w, x)",
        "jax.grad(lambda w, x: loss(w, x))(w, x)",
        "gradient(w, x)",
        "jax.grad(loss)(",
        "",
    ],
)
def test_anything_else_is_told_in_general(call):
    assert rewritten(_at(f"g = {call}", call)) == rewritten()


def test_it_does_not_advise_what_the_line_does():
    call = "jax.grad(lambda p: jax.lax.pmean(loss(p, x), 'dp'))(p)"
    told = rewritten(_at(f"g = {call}", call), "'tp'")
    assert "already reduced over 'dp'" in told
    assert "before a sum over 'tp'" in told
    assert "differentiate the reduced loss" not in told


def _at(line: str, call: str) -> Where:
    linecache.cache["two.py"] = (len(line), None, [f"    {line}\n"], "two.py")
    start = 4 + line.index(call)
    return Where("two.py", 1, "step", start, start + len(call))
