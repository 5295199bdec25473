import numpy as np

SAME = {"missing-reduction": "one-axis-forgotten", "mixed-axes": "counted-along-model"}


def inputs(rng, sizes):
    return (rng.uniform(0.5, 2.0, 32).astype(np.float32),)


def expected(x):
    return np.float32(x.sum(dtype=np.float64))


def mistakes(sizes, x):
    parts = x.reshape(sizes["data"], sizes["model"], -1)
    return {
        "one-axis-forgotten": parts[:, 0].sum(),
        "counted-along-model": x.sum() * sizes["model"],
    }
