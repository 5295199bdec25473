import numpy as np


def inputs(rng, sizes):
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return draw(8), draw(8), draw(16, 8), draw(16) + np.linspace(0, 2, 16, dtype=np.float32)


def _gradient(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x)


def _update(w, m, g):
    m = 0.9 * m + g
    return w - 0.1 * m, m


def expected(w, momentum, x, y):
    return _update(w, momentum, _gradient(w, x, y))


def mistakes(sizes, w, momentum, x, y):
    n = sizes["data"]
    k = len(w) // n
    g = _gradient(w, x, y)
    rows = zip(np.split(x, n), np.split(y, n))
    own = [_gradient(w, a, b)[d * k : (d + 1) * k] for d, (a, b) in enumerate(rows)]
    m = 0.9 * momentum + g
    return {
        "summed-gradients": _update(w, momentum, n * g),
        "wrong-slice": (np.tile(w[:k], n) - 0.1 * m, m),
        "own-rows-only": _update(w, momentum, np.concatenate(own)),
    }
