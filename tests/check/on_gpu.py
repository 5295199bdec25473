"""Programs in float64 on an accelerator, compared with the same on the CPU.

    python -m tests.check.on_gpu [PART OF A NAME ...]

Lifts the right programs of the corpus in bfloat16, on their largest meshes, and programs with what
an accelerator has kernels of its own for: products, convolutions, linear algebra, FFTs, sorting,
scatters, random numbers. Both devices evaluate in float64, so elements agree to 1e-9 of themselves
or of the largest of their array. Ends with 1 where they do not, with 2 without an accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

NEAR = 1e-9
"""The part of itself, or of the largest element, by which an element may differ."""


def specials() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Programs without a mesh, each with a name and arguments."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    x = jax.random.normal(jax.random.key(0), (16, 16))
    half, small = x.astype(jnp.bfloat16), x.astype(jnp.float8_e4m3fn)
    image = jax.random.normal(jax.random.key(1), (2, 8, 8, 3), jnp.float16)
    kernel = jax.random.normal(jax.random.key(2), (3, 3, 3, 4), jnp.float16)
    square = x @ x.T + 16 * jnp.eye(16)
    at = jnp.arange(16) % 5
    dims = ("NHWC", "HWIO", "NHWC")

    @jax.custom_vjp
    def rounded(x: Any) -> Any:
        return x.astype(jnp.float8_e5m2).astype(x.dtype)

    rounded.defvjp(lambda x: (rounded(x), x), lambda x, g: ((g * x).astype(x.dtype),))

    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.tanh(c[1] @ x)), (0, x))

    yield "dot", lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32), (half, half)
    yield "dot in float8", lambda a: a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16).T, (small,)
    yield (
        "convolution",
        lambda a, b: lax.conv_general_dilated(a, b, (1, 1), "SAME", dimension_numbers=dims),
        (image, kernel),
    )
    yield "cholesky", jnp.linalg.cholesky, (square,)
    yield "solve", jnp.linalg.solve, (square, x)
    yield "eigenvalues", jnp.linalg.eigvalsh, (square,)
    yield "qr", lambda a: abs(jnp.linalg.qr(a)[1]), (x,)
    yield "fft", jnp.fft.fft2, (x,)
    yield "sort", lambda a: (jnp.sort(a, -1), lax.top_k(a, 3)), (half,)
    yield "scatter", lambda a: a.at[at].add(a).at[at, at].mul(0.5), (half,)
    yield "segments", lambda a: jax.ops.segment_max(a, at, 5), (half,)
    yield "random", lambda k: jax.random.normal(k, (64,), jnp.bfloat16), (jax.random.key(3),)
    yield "window", lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), (x,)
    yield "cumulative", lambda a: (jnp.cumsum(a, 0), lax.cumlogsumexp(a, 1)), (half,)
    yield "custom_vjp", jax.grad(lambda a: rounded(a).sum()), (half,)
    yield "bits", lambda a: lax.bitcast_convert_type(a, jnp.uint16) & 255, (half,)
    yield "loop", loop, (half * 0.1,)
    yield "special", lambda a: (lax.lgamma(a * a + 1), lax.erf(a), lax.digamma(a * a + 1)), (x,)
    yield "attention", jax.nn.dot_product_attention, (image[None, 0],) * 3


def runs(parts: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What to lift: a name, and a function that makes a new run of it."""
    from shardwise._analysis.check.options import expand
    from shardwise._analysis.lift.run import Run
    from shardwise._engine.tracing import Tracing

    from .corpus import pairs
    from .plant import in_dtype

    for name, f, args in specials():
        if not parts or any(part in name for part in parts):
            yield name, lambda f=f, args=args: Run(Tracing(f, None, alone=True), args)
    for pair in pairs():
        if parts and not any(part in str(pair) for part in parts):
            continue
        *_, mesh = expand(pair.mesh)
        right, args = in_dtype(pair, "bfloat16")
        yield str(pair), lambda f=right, m=mesh, args=args: Run(Tracing(f, m), args)


def apart(got: Any, want: Any) -> float:
    """How far two results are apart, relative to an element or to the largest of its array."""
    import numpy as np

    got, want = np.asarray(got), np.asarray(want)
    if got.dtype.kind not in "fc":
        return float((got != want).mean()) if got.size else 0.0
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    scale = np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0.0)
    with np.errstate(all="ignore"):
        gap = np.where(same, 0.0, np.abs(got - want) / (scale or 1.0))
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0))


def main() -> int:
    """Print how far each program is apart on the two devices."""
    import jax

    if jax.default_backend() == "cpu" and "--cpu" not in sys.argv:
        print("There is no accelerator: JAX runs on the CPU. --cpu compares the CPU with itself.")
        return 2
    parts = [one for one in sys.argv[1:] if one != "--cpu"]
    cpu = jax.devices("cpu")[0]
    print(f"JAX {jax.__version__}, {jax.devices()[0]}, compared with {cpu}")
    worst, failed, count = 0.0, [], 0
    for name, make in runs(parts):
        try:
            there = make().results()
        except Exception as error:
            with jax.default_device(cpu):
                refused = _refused(make)
            print(f"{name}: {type(error).__name__} {'on both' if refused else 'HERE ALONE'}")
            failed += [] if refused else [name]
            continue
        with jax.default_device(cpu):
            run = make()
            here = run.results()
            eps = max((run.lifted.eps(atom) for atom in run.body.outs), default=0.0)
        count += 1
        gap = max(map(apart, there, here), default=0.0)
        worst = max(worst, gap if not eps else 0.0)
        if gap > (64 * eps if eps else NEAR):
            failed.append(name)
            print(f"{name}: apart by {gap:.1e}")
    print(f"{count} programs, the furthest apart by {worst:.1e}; {len(failed)} fail {failed}")
    return int(bool(failed))


def _refused(make: Callable[[], Any]) -> bool:
    try:
        make().results()
    except Exception:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
