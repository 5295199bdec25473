"""FLOPs by hand: each kind of operation, loops, the mesh, and what is computed redundantly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw

from .support import explained, shaped, spmd


def work(body, *args, **options):
    return explained(body, *args, **options).work


def test_a_matrix_product():
    found = work(lambda x: x @ x.T, shaped(8, 6), out_specs=P("data"))
    assert found.by_kind == {"dot": 2 * 2 * 2 * 6, "elementwise": 0}  # f32[2, 6] on each device
    assert found.flops == 48
    assert found.total == 4 * 48
    assert found.redundant == 0


def test_a_batch_of_products():
    body = lambda x: jnp.einsum("bij,bjk->bik", x, x)  # noqa: E731
    assert work(body, shaped(8, 5, 5)).by_kind["dot"] == 2 * 2 * 5**3


def test_a_convolution():
    def body(x, kernel):
        return lax.conv(x, kernel, (1, 1), "VALID")

    found = work(
        body, shaped(4, 3, 8, 8), shaped(5, 3, 3, 3), in_specs=(P("data"), P()), check_vma=False
    )
    assert found.by_kind["convolution"] == 2 * (5 * 6 * 6) * (3 * 3 * 3)


def test_a_convolution_in_groups():
    def body(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", feature_group_count=3)

    found = work(
        body, shaped(4, 3, 8, 8), shaped(6, 1, 3, 3), in_specs=(P("data"), P()), check_vma=False
    )
    assert found.by_kind["convolution"] == 2 * (6 * 6 * 6) * 9


def test_elements_and_reductions():
    found = work(lambda x: (jnp.exp(x) * x).sum(1), shaped(8, 6))
    assert found.by_kind == {"elementwise": 24, "reduction": 12}


def test_integers_are_no_floating_point_operations():
    assert work(lambda x: x * 2 + 1, shaped(8, dtype=jnp.int32)).flops == 0


def test_a_scan_multiplies():
    def body(x):
        inner = lambda x, _: (lax.scan(lambda x, _: (x @ x, None), x, None, length=3)[0], None)  # noqa: E731
        return lax.scan(inner, x, None, length=5)[0]

    assert work(body, shaped(16, 4)).by_kind["dot"] == 15 * 2 * 4**3


def test_a_while_counts_once_and_a_cond_its_costlier_branch():
    def loop(x):
        return lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ x, x)

    assert work(loop, shaped(16, 4)).by_kind["dot"] == 2 * 4**3

    def cond(x):
        return lax.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x @ x, x)

    assert work(cond, shaped(16, 4)).by_kind["dot"] == 2 * 2 * 4**3


def test_the_backward_pass_counts_too():
    def body(w, x):
        return jax.grad(lambda w: lax.pmean((x @ w).sum(), "data"))(w)

    found = work(body, shaped(6, 3), shaped(8, 6), in_specs=(P(), P("data")), out_specs=P())
    # The loss itself is not asked for; its gradient is one product.
    assert found.by_kind["dot"] == 2 * 2 * 6 * 3


class TestRedundant:
    def test_the_same_on_every_device(self):
        found = work(lambda x, w: x * (w @ w).sum(), shaped(8), shaped(4, 4),
                     in_specs=(P("data"), P()))  # fmt: skip
        product, total = 2 * 4**3 + 16, 2 * 4**3 + 16 + 2
        assert (found.flops, found.total) == (total, 4 * total)
        assert found.redundant == 3 * product

    def test_the_same_along_one_axis(self):
        found = work(
            lambda x: x @ x, shaped(16, 4), mesh=sw.mesh(data=4, model=2), in_specs=P("data")
        )
        assert found.total == 8 * found.flops
        assert found.redundant == found.total / 2

    def test_after_a_reduction(self):
        found = work(lambda x: jnp.sin(lax.psum(x, "data")), shaped(8), out_specs=P())
        assert (found.flops, found.redundant) == (2, 3 * 2)

    def test_nothing_is_redundant_where_all_differ(self):
        body = lambda x: x + lax.axis_index("data")  # noqa: E731
        assert work(body, shaped(8)).redundant == 0

    def test_outside_shard_map_the_layout_decides(self):
        def step(x, *, mesh):
            return jnp.sin(spmd(lambda x: x * 2)(x, mesh=mesh))

        found = sw.explain(step, shaped(8), mesh=sw.mesh(data=4)).work
        assert (found.flops, found.total, found.redundant) == (4, 16, 0)


def test_what_is_not_known_is_named():
    report = explained(lambda x: jnp.linalg.svd(x)[1], shaped(16, 4))
    assert report.work.uncounted == ("svd",)
    assert "not counted: svd" in str(report)


def test_linear_algebra():
    found = work(lambda x: lax.linalg.cholesky(x, symmetrize_input=False), shaped(16, 4))
    assert found.by_kind["linear algebra"] == pytest.approx(4**3 / 3)
