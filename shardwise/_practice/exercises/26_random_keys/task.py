import numpy as np


def inputs(rng, sizes):
    return int(rng.integers(0, 1000)), rng.standard_normal((16, 3)).astype(np.float32)


def _noise(seed, index, width, fold=None):
    import jax

    key = jax.random.key(seed)
    if fold is not None:
        key = jax.random.fold_in(key, fold)
    draw = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), (width,)))
    return np.asarray(draw(np.asarray(index)))


def expected(seed, x):
    return x + _noise(seed, np.arange(len(x)), x.shape[1])


def mistakes(sizes, seed, x):
    import jax

    n = sizes["data"]
    k, width = len(x) // n, x.shape[1]
    own = np.arange(k)
    whole = np.asarray(jax.random.normal(jax.random.key(seed), (k, width)))
    return {
        "same-noise-everywhere": x + np.tile(_noise(seed, own, width), (n, 1)),
        "key-per-device": x + np.concatenate([_noise(seed, own, width, d) for d in range(n)]),
        "another-draw": x + np.tile(whole, (n, 1)),
        "index-not-scaled": x + np.concatenate([_noise(seed, d + own, width) for d in range(n)]),
    }
