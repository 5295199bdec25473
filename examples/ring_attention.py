"""Ring attention: exact attention over a sequence that no device could hold.

Placement: queries, keys and values are split over `sequence`, by position.
Communication: keys and values move around the ring (`ppermute`), one neighbour per iteration.
After n - 1 turns every device has seen them all, and never had more than one block at a time.

Softmax needs the sum over all keys, which are never together. So three running values are kept per
query: the largest score so far, the sum of exp(score - largest), and the values weighted by the
same terms. When the largest score grows, the other two are scaled down. The result is exact.

The trap: which block is here in turn t depends on the device: it is block (device - t) mod n.
The causal mask must be made from those positions; on one device every way to count them is right.
"""

import functools

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("sequence",)


def attend(carry, q, k, v, mask):
    """Take one more block of keys and values into the running softmax."""
    largest, total, weighted = carry
    scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(mask, scores, -jnp.inf)
    new_largest = jnp.maximum(largest, scores.max(-1))
    scale = jnp.exp(largest - new_largest)
    weights = jnp.exp(scores - new_largest[..., None])
    total = total * scale + weights.sum(-1)
    weighted = weighted * scale[..., None] + jnp.einsum("hqk,khd->hqd", weights, v)
    return new_largest, total, weighted


def body(q, k, v, *, causal):
    """What one device does: its queries against every block of keys and values, in turn."""
    device, devices = jax.lax.axis_index("sequence"), jax.lax.axis_size("sequence")
    length, heads, features = q.shape
    positions = jnp.arange(length)

    def take(carry, k, v, turn):
        block = (device - turn) % devices
        before = device * length + positions[:, None] >= block * length + positions[None, :]
        return attend(carry, q, k, v, before | (not causal))

    def rotate(state, turn):
        carry, k, v = state
        ring = [(i, (i + 1) % devices) for i in range(devices)]
        k, v = jax.lax.ppermute((k, v), "sequence", ring)
        return (take(carry, k, v, turn), k, v), None

    # The own block comes first: a query always sees itself, so the largest score is finite.
    start = jnp.full((heads, length), -jnp.inf), jnp.zeros((heads, length))
    carry = take((*start, jnp.zeros((heads, length, features))), k, v, 0)
    (carry, _, _), _ = jax.lax.scan(rotate, (carry, k, v), jnp.arange(1, devices))
    _, total, weighted = carry
    return (weighted / total[..., None]).swapaxes(0, 1)


def step(q, k, v, *, mesh, causal=True):
    """Attention of `q` to `k` and `v`, each (position, head, feature)."""
    spec = P("sequence")
    attention = functools.partial(body, causal=causal)
    return jax.shard_map(attention, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)(q, k, v)


def reference(q, k, v, *, causal=True):
    """The same on one device, with all the scores at once."""
    scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    mask = jnp.tri(len(q), dtype=bool) | (not causal)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return jnp.einsum("hqk,khd->qhd", weights, v)


def example_args(seed=0, length=32, heads=2, features=4):
    """Queries, keys and values, as `step` and `reference` take them."""
    normal = normals(seed)
    shape = (length, heads, features)
    return normal(*shape, scale=2), normal(*shape, scale=2), normal(*shape)


def large():
    """A sequence of a million positions, as shapes."""
    return step, shapes(example_args, jnp.bfloat16, length=2**20, heads=16, features=128)


@sw.case(
    mesh={"sequence": [1, 2, 4, 8]},
    reference=reference,
    explain=large,
    explain_mesh={"sequence": 64},
)
def ring_attention():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"sequence": size} for size in (1, 4, 32)]
    compare("Ring attention", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
