"""Programs that cannot run on one device are checked against a reference."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

import shardwise as sw
from tests.support import check

X, W = np.arange(24, dtype=np.float32).reshape(8, 3), np.ones((3, 2), np.float32)
STAGES = 2


def staged(x, w, *, mesh):
    body = lambda x, w: jax.lax.psum(x.reshape(8 // STAGES, -1) @ w, "s")  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=(P("s"), P()), out_specs=P())(x, w)


def whole(x, w):
    return (x.reshape(2, 4, 3) @ w).sum(0)


def test_a_program_for_two_devices_is_checked_against_a_reference():
    verdict = check(staged, X, W, mesh={"s": [2]}, reference=whole)
    assert verdict, verdict
    assert verdict.meshes == ("{s: 2}",)
    wrong = check(staged, X, W, mesh={"s": [2]}, reference=lambda x, w: 2 * whole(x, w))
    assert not wrong
    assert "on one device already" not in str(wrong)


def average(x, *, mesh):
    body = lambda x: jax.lax.pmean(x.mean(), "d")  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P())(x)


def test_a_simulated_program_is_a_reference():
    x = jnp.arange(8.0)
    simulated = sw.simulate(average, mesh=sw.mesh(d=2))
    for reference in (simulated, lambda x: simulated(x), simulated(x)):
        verdict = check(average, x, mesh={"d": [4]}, reference=reference)
        assert verdict, verdict


def test_a_result_of_another_shape_beside_one_that_is_not_reduced():
    def halved(x, *, mesh):
        shard = {"in_specs": P("d"), "out_specs": (P(), P()), "check_vma": False}
        return jax.shard_map(lambda x: (x.sum(), x), mesh=mesh, **shard)(x)

    verdict = check(halved, np.arange(8, dtype=np.float32), mesh={"d": [1, 2]})
    assert {"SW108", "SW403"} <= {finding.code for finding in verdict.findings}, verdict
