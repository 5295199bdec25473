import numpy as np

SAME = {"missing-reduction": "missing-psum", "one-nth": "mean-for-sum"}


def inputs(rng, sizes):
    return (rng.uniform(0.5, 2.0, 24).astype(np.float32),)


def expected(x):
    return np.float32(x.sum(dtype=np.float64))


def mistakes(sizes, x):
    n = sizes["data"]
    total = expected(x)
    return {
        "missing-psum": x[: len(x) // n].sum(),
        "mean-for-sum": total / n,
        "largest-for-sum": x.reshape(n, -1).sum(1).max(),
        "largest-for-sum--least": x.reshape(n, -1).sum(1).min(),
    }
