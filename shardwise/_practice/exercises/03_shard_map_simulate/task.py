import numpy as np


def inputs(rng, sizes):
    seed = float(rng.integers(0, 1000))
    x = rng.standard_normal((24, 8)).astype(np.float32)
    return seed, x, float(sizes["shards"]), 3.0


def _outputs(seed, x, features):
    import flax.linen as nn
    import jax

    model = nn.Dense(int(features))
    params = model.init(jax.random.PRNGKey(int(seed)), x[:1])
    return np.asarray(model.apply(params, x))


def expected(seed, x, num_shards, features):
    return _outputs(seed, x, features).reshape(-1)


def mistakes(sizes, seed, x, num_shards, features):
    n = int(num_shards)
    out = _outputs(seed, x, features)
    return {
        "joined-sideways": np.concatenate(np.split(out, n), axis=1).reshape(-1),
        "every-nth-row": np.concatenate([out[i::n] for i in range(n)]).reshape(-1),
        "not-flat": out,
        "not-flat--stacked": out.reshape(n, -1, out.shape[1]),
        "same-shard-again": np.tile(np.split(out, n)[0], (n, 1)).reshape(-1),
    }


def notice(facts, sizes, seed, x, num_shards, features):
    rows, n = len(x), int(num_shards)
    inits = facts.get("inits", ())
    for one in [*inits, *facts.get("calls", ())]:
        if one["shape"] and one["shape"][-1] != x.shape[1]:
            return "split-features", one["line"]
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
