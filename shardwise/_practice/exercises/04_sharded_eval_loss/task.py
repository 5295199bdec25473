import numpy as np


def inputs(rng, sizes):
    seed = float(rng.integers(0, 1000))
    x = rng.standard_normal((24, 4)).astype(np.float32)
    y = (x @ rng.standard_normal(4) + np.linspace(0, 3, 24)).astype(np.float32)
    return seed, x, y, float(sizes["shards"])


def _predictions(seed, x):
    import flax.linen as nn
    import jax

    model = nn.Dense(1)
    params = model.init(jax.random.PRNGKey(int(seed)), x[:1])
    return np.asarray(model.apply(params, x), np.float64).reshape(-1)


def expected(seed, x, y, num_shards):
    return np.mean((_predictions(seed, x) - y) ** 2).reshape(1).astype(np.float32)


def mistakes(sizes, seed, x, y, num_shards):
    n = int(num_shards)
    pairs = list(zip(np.split(_predictions(seed, x), n), np.split(y, n)))
    losses = [np.mean((p - t) ** 2) for p, t in pairs]
    mixed = [np.mean((p[:, None] - t) ** 2) for p, t in pairs]
    return {
        "sum-of-losses": np.array([np.sum(losses)]),
        "broadcast": np.array([np.mean(mixed)]),
        "only-one-shard": np.array([losses[-1]]),
        "only-one-shard--first": np.array([losses[0]]),
        "sum-within-shard": np.array([np.mean(losses) * len(x) / n]),
        "sum-within-shard--all": np.array([np.sum(losses) * len(x) / n]),
        "targets-of-one-shard": np.array([np.mean([np.mean((p - pairs[0][1]) ** 2) for p, _ in pairs])]),
        "wrong-shape": np.mean(losses),
    }


def notice(facts, sizes, seed, x, y, num_shards):
    rows, n = len(x), int(num_shards)
    inits = facts.get("inits", ())
    if len(inits) > 1:
        return "reinit-per-shard", inits[-1]["line"]
    if n > 1:
        for one in inits:
            if one["shape"] and one["shape"][0] > rows // n:
                return "init-on-everything", one["line"]
        for one in facts.get("calls", ()):
            if one["shape"] and one["shape"][0] == rows:
                return "not-sharded", one["line"]
    return None
