import numpy as np


def inputs(rng, sizes):
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return draw(16, 3), draw(3) + 2, draw(4, 16)


def expected(kernel, bias, x):
    return x @ kernel + bias


def mistakes(sizes, kernel, bias, x):
    n = sizes["model"]
    k = len(kernel) // n
    return {
        "bias-before-sum": x @ kernel + n * bias,
        "mean-for-sum": x @ kernel / n + bias,
        "missing-reduction": x[:, :k] @ kernel[:k] + bias,
    }
