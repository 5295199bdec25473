import numpy as np


def inputs(rng, sizes):
    return (rng.uniform(1, 2, 24).astype(np.float32),)


def _smooth(parts, lefts, rights):
    padded = [np.concatenate([[a], p, [b]]) for a, p, b in zip(lefts, parts, rights)]
    return np.concatenate([(p[:-2] + p[1:-1] + p[2:]) / 3 for p in padded]).astype(np.float32)


def expected(x):
    return _smooth([x], [0], [0])


def mistakes(sizes, x):
    n = sizes["data"]
    parts = np.split(x, n)
    zeros = [0.0] * n
    firsts, lasts = [p[0] for p in parts], [p[-1] for p in parts]
    return {
        "no-exchange": _smooth(parts, zeros, zeros),
        "wraps-around": _smooth(parts, np.roll(lasts, 1), np.roll(firsts, -1)),
        "sent-the-wrong-way": _smooth(parts, [*lasts[1:], 0], [0, *firsts[:-1]]),
        "wrong-edge": _smooth(parts, [0, *firsts[:-1]], [*lasts[1:], 0]),
    }
