import numpy as np


def inputs(rng, sizes):
    weights = rng.standard_normal((8, 4, 4)) * 0.8
    return weights.astype(np.float32), rng.standard_normal((3, 2, 4)).astype(np.float32)


def _run(weights, h):
    for w in weights:
        h = np.tanh(h @ w)
    return h


def expected(weights, x):
    return _run(weights, x)


def mistakes(sizes, weights, x):
    n, count = sizes["stage"], len(x)
    stages = np.split(weights, n)
    table = _table(stages, x)
    own = np.mean([_run(s, x) for s in stages], axis=0)
    everyone = [sum(table[t]) for t in range(n - 1, n - 1 + count)]
    early = np.zeros_like(x)
    for t in range(n - 1, count):
        early[t - (n - 1)] = table[t][-1]
    return {
        "only-own-layers": own,
        "off-by-one": np.stack([table[t][-1] for t in range(count)]),
        "everyone-keeps-results": np.stack(everyone),
        "stops-early": early,
    }


def _table(stages, x):
    """What each stage makes in each turn."""
    arrived = [np.zeros_like(x[0])] * len(stages)
    rows = []
    for turn in range(len(x) + len(stages) - 1):
        taken = [x[min(turn, len(x) - 1)], *arrived[1:]]
        made = [_run(s, h) for s, h in zip(stages, taken)]
        rows.append(made)
        arrived = [np.zeros_like(x[0]), *made[:-1]]
    return rows
