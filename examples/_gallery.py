"""What the programs here share: arguments to try them with, and the table that each one prints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw


def normals(seed):
    """A function that draws normal arrays, others each time, the same ones for a seed."""
    keys = iter(jax.random.split(jax.random.key(seed), 16))

    def normal(*shape, scale=1.0):
        return scale * jax.random.normal(next(keys), shape)

    return normal


def shapes(make, dtype=jnp.float32, **sizes):
    """What `make(**sizes)` would return, as shapes: of any size, since nothing is computed."""
    made = jax.eval_shape(functools.partial(make, **sizes))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), made)


def compare(title, step, reference, args, meshes):
    """Print how far `step` on each mesh is from `reference` on one device."""
    expected = jax.jit(reference)(*args)
    names = list(meshes[0])
    print(f"{title}, on virtual devices and on one:")
    print("  ".join(names), " largest difference")
    for sizes in meshes:
        found = sw.simulate(step, mesh=sw.mesh(sizes))(*args)
        gaps = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b)).max(), found, expected)
        cells = [f"{sizes[name]:{len(name)}}" for name in names]
        print("  ".join(cells), f" {max(jax.tree.leaves(gaps)):.1e}")
