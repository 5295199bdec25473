import numpy as np


def inputs(rng, sizes):
    x = rng.standard_normal((4, 8, 3)).astype(np.float32)
    y = (x @ rng.standard_normal(3) + np.linspace(0, 2, 8)).astype(np.float32)
    mask = (np.arange(8) < np.array([[8], [5], [2], [7]])).astype(np.float32)
    return rng.standard_normal(3).astype(np.float32), x, y, mask


def _parts(w, x, y, mask):
    error = x @ w - y
    return (mask * error**2).sum(), np.einsum("bs,bsd->d", 2 * mask * error, x), mask.sum()


def expected(w, x, y, mask):
    total, gradient, count = _parts(w, x, y, mask)
    return total / count, gradient / count


def mistakes(sizes, w, x, y, mask):
    loss, gradient = expected(w, x, y, mask)
    a, b = sizes["data"], sizes["seq"]
    own = [
        _parts(w, *(v.reshape(a, 4 // a, b, 8 // b, *v.shape[2:])[i, :, j] for v in (x, y, mask)))
        for i in range(a)
        for j in range(b)
    ]
    means = [(t / max(c, 1), g / max(c, 1)) for t, g, c in own]
    return {
        "averaged-along-seq": (loss, gradient / b),
        "summed-twice": (loss, gradient * a * b),
        "mean-of-means": (np.mean([t for t, _ in means]), np.mean([g for _, g in means], axis=0)),
    }
