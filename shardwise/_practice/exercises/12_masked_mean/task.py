import numpy as np


def inputs(rng, sizes):
    x = (rng.uniform(1, 2, 16) * np.linspace(1, 4, 16)).astype(np.float32)
    mask = np.array([1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0], np.float32)
    return np.where(mask > 0, x, np.float32("nan")).astype(np.float32), mask


def expected(x, mask):
    return np.float32(x[mask > 0].mean())


def mistakes(sizes, x, mask):
    n = sizes["data"]
    clean = np.where(mask > 0, x, 0.0)
    tops, counts = clean.reshape(n, -1).sum(1), mask.reshape(n, -1).sum(1)
    with np.errstate(all="ignore"):
        ratios = tops / counts
    return {
        "nan-leaks": np.float32("nan"),
        "empty-shard": ratios.mean(),
        "counts-the-masked": clean.mean(),
        "mean-of-means": (tops / np.maximum(counts, 1)).mean(),
    }
