import numpy as np


def inputs(rng, sizes):
    x = rng.standard_normal((16, 4)).astype(np.float32)
    y = (x @ rng.standard_normal(4) + np.linspace(0, 2, 16)).astype(np.float32)
    return rng.standard_normal(4).astype(np.float32), x, y


def _gradient(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x)


def expected(w, x, y):
    return w - 0.1 * _gradient(w, x, y), np.float32(np.mean((x @ w - y) ** 2))


def mistakes(sizes, w, x, y):
    n = sizes["data"]
    loss = expected(w, x, y)[1]
    k = len(x) // n
    first = w - 0.1 * _gradient(w, x[:k], y[:k]), np.mean((x[:k] @ w - y[:k]) ** 2)
    return {
        "averaged-too-late": (w - 0.1 * n * _gradient(w, x, y), loss),
        "missing-reduction": first,
    }
