"""Findings that were false, or led away from the cause: the line, the words, or that there is one.

Each test is a class of programs that people write, not one form of it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import shardwise as sw
from tests.support import check, normal

from .marks import line_of

DATA = {"data": [1, 2, 4]}


def mapped(body, specs, **options):
    """A program over `data`."""

    def program(*args, mesh):
        shard = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), **options)
        return shard(*args)

    return program


def hidden(x, w):
    return x @ w  # here


def activated(x, w):
    return jnp.tanh(hidden(x, w))


def test_a_share_is_named_where_it_is_made_though_another_function_uses_it():
    specs = (P(None, "data"), P("data"))
    program = mapped(activated, specs, check_vma=False)
    verdict = check(program, normal(8, 4), normal(4), mesh=DATA)
    (finding,) = verdict.findings
    assert finding.where.line == line_of(hidden, "# here")
    assert finding.where.function == "hidden"
    assert "as if it were the whole at test_misleading.py:" in finding.message


def test_out_specs_are_suspected_where_shapes_clash_behind_them():
    def program(x, b, *, mesh):
        shard = jax.shard_map(
            lambda x: 2 * x, mesh=mesh, in_specs=P(None, "data"), out_specs=P(), check_vma=False
        )
        return jnp.add(shard(x), b)

    with pytest.raises(sw.ShardingError) as caught:
        check(program, normal(2, 8), normal(2, 8), mesh=DATA, fix=False)
    text = str(caught.value)
    assert "on {data: 2}, result 0 of this shard_map has shape (2, 4), and (2, 8) on one" in text
    assert "declare it so: P(None, 'data')." in text
    assert "add got incompatible shapes" in text


def test_an_error_of_the_program_itself_stays_as_it_is():
    def program(x, *, mesh):
        if mesh.shape["data"] > 1:
            raise ValueError("as it is")
        return jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    with pytest.raises(ValueError, match="as it is"):
        check(program, normal(8), mesh=DATA)


def codes(verdict):
    return {finding.code for finding in verdict.findings}


def test_what_a_loop_gives_is_the_same_if_it_depends_on_nothing_that_differs():
    def body(key, x):
        def layer(carry, key):
            return carry * jax.random.normal(key), jax.random.normal(key)

        return jax.lax.scan(layer, x, jax.random.split(key, 3))[1]

    program = mapped(body, (P(), P("data")), check_vma=False)
    verdict = check(program, jax.random.PRNGKey(0), normal(8), mesh=DATA)
    assert verdict.ok
    assert "SW203" not in codes(verdict)


def test_what_a_loop_gives_of_its_varying_carry_is_still_found():
    def body(x):
        return jax.lax.scan(lambda c, _: (c, c.sum()), x, None, length=2)[1]

    verdict = check(mapped(body, P("data"), check_vma=False), np.ones(8, "f4"), mesh=DATA)
    assert "SW203" in codes(verdict) or not verdict.ok


def test_a_number_of_examples_may_be_summed():
    def body(x):
        return jax.lax.psum(x.sum(), "data") / jax.lax.psum(jnp.asarray(len(x)), "data")

    verdict = check(mapped(body, P("data"), check_vma=False), normal(8), mesh=DATA)
    assert verdict.ok
    assert codes(verdict) == set()


def test_a_sum_that_is_made_up_for_is_not_to_be_left_out():
    def body(x):
        size = jax.lax.axis_size("data")
        whole = jax.lax.psum(x.sum(), "data")
        return jax.lax.psum(whole / size, "data")

    verdict = check(mapped(body, P("data"), check_vma=False), normal(8), mesh=DATA)
    assert verdict.ok
    (finding,) = verdict.findings
    assert finding.code == "SW201"
    assert "Every result is right, so something makes up for it" in finding.message
    assert "leave the sum out" not in finding.remedy


def test_results_of_another_structure_are_named():
    def program(x, *, mesh):
        total = mapped(lambda x: jax.lax.psum(x.sum(), "data"), P("data"))(x, mesh=mesh)
        several = mesh.shape["data"] > 1
        return {"loss": total, ("shards" if several else "alone"): total}

    verdict = check(program, normal(8), mesh=DATA)
    (finding,) = verdict.findings
    assert finding.code == "SW108"
    assert "it has result['shards'], and it lacks result['alone']" in finding.message


def test_integers_that_cannot_wrap_around_are_not_suspected():
    def body(x):
        chosen = jax.nn.one_hot((x > 0).astype(jnp.int32), 2, dtype=jnp.int32)
        kept = (jnp.cumsum(chosen, 0) * chosen).max(-1) <= 1
        return jax.lax.psum(jnp.sum(x * kept), "data")

    verdict = check(mapped(body, P("data")), normal(8), mesh=DATA)
    assert not verdict.ok
    assert "wrap around" not in str(verdict)
