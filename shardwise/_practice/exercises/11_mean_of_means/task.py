import numpy as np

SAME = {"missing-reduction": "own-denominator"}


def inputs(rng, sizes):
    values = rng.uniform(1, 2, 16).astype(np.float32)
    weights = np.linspace(0.1, 4.0, 16).astype(np.float32)
    return values * np.linspace(1, 3, 16).astype(np.float32), weights


def expected(values, weights):
    return np.float32((values * weights).sum() / weights.sum())


def mistakes(sizes, values, weights):
    n = sizes["data"]
    tops = (values * weights).reshape(n, -1).sum(1)
    bottoms = weights.reshape(n, -1).sum(1)
    return {
        "mean-of-means": (tops / bottoms).mean(),
        "own-denominator": tops.sum() / bottoms[0],
    }
