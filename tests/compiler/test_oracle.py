"""The compiler as the oracle of our own record: what a `shard_map` sends, traced and compiled."""

from __future__ import annotations

import collections
import functools

import jax
import pytest

import shardwise as sw

from ..explain.test_xla import GALLERY, SHAPES
from ..test_examples import load


@pytest.mark.parametrize("name", GALLERY)
def test_the_record_of_a_program_is_what_the_compiler_keeps(name):
    module = load(name)
    args = jax.eval_shape(functools.partial(module.example_args, **GALLERY[name]))
    mesh = sw.mesh(dict(zip(module.AXES, SHAPES[len(module.AXES)], strict=True)))
    traced = sw.explain(module.step, *args, mesh=mesh, compile=False)
    compiled = sw.explain(module.step, *args, mesh=mesh, compile=True)
    assert rows(compiled) == rows(traced)
    assert compiled.compiled
    assert compiled.bytes_sent == traced.bytes_sent
    known = [use.meaning for use in traced.collectives if use.by == "program"]
    kept = [use.meaning for use in compiled.collectives if use.by == "program"]
    assert not any(known) or any(kept)


def rows(report):
    found = collections.Counter()
    for use in report.collectives:
        assert use.by == "program"
        found[use.name, use.axes, use.group_size, use.bytes] += use.least
    return found
