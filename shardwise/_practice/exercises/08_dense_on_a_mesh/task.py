import numpy as np

SAME = {"uneven": "split-parameters", "raises": "split-parameters"}


def inputs(rng, sizes):
    params = {
        "kernel": rng.standard_normal((8, 3)).astype(np.float32),
        "bias": rng.standard_normal(3).astype(np.float32),
    }
    return params, rng.standard_normal((16, 8)).astype(np.float32)


def expected(params, x):
    return x @ params["kernel"] + params["bias"]
