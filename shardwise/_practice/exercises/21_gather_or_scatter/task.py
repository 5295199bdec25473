import numpy as np

SAME = {"n-times": "own-row-count", "raises": "not-tiled", "uneven": "not-tiled", "out-rank": "not-tiled"}


def inputs(rng, sizes):
    return (rng.uniform(0.5, 1.5, (16, 24)).astype(np.float32),)


def expected(x):
    return x.mean(0)


def mistakes(sizes, x):
    n = sizes["data"]
    return {"own-row-count": n * x.mean(0), "everyone-keeps-all": np.tile(x.mean(0), n)}
