import numpy as np


def inputs(rng, sizes):
    x = rng.standard_normal((16, 3)).astype(np.float32)
    y = (x @ rng.standard_normal(3) + np.linspace(1, 3, 16)).astype(np.float32)
    return {"w": rng.standard_normal(3).astype(np.float32), "b": np.float32(0.5)}, x, y


def _step(params, x, y, scale_w=1.0, scale_b=1.0):
    error = x @ params["w"] + params["b"] - y
    new = {
        "w": params["w"] - 0.05 * scale_w * 2 * x.T @ error / len(x),
        "b": params["b"] - 0.05 * scale_b * 2 * error.mean(),
    }
    return new, np.mean(error**2)


def expected(params, x, y):
    return _step(params, x, y)


def mistakes(sizes, params, x, y):
    n = sizes["data"]
    k = len(x) // n
    own = _step(params, x[:k], y[:k])[0], _step(params, x, y)[1]
    return {
        "n-times-the-step": _step(params, x, y, n, n),
        "half-fixed": _step(params, x, y, 1, n),
        "half-fixed--other": _step(params, x, y, n, 1),
        "missing-reduction": own,
    }
