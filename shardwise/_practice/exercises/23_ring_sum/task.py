import numpy as np


def inputs(rng, sizes):
    return (rng.uniform(1, 2, (16, 3)).astype(np.float32),)


def expected(x):
    return x.sum(0)


def mistakes(sizes, x):
    n = sizes["data"]
    parts = x.reshape(n, -1, x.shape[1]).sum(1)
    totals = parts
    for _ in range(n - 1):
        totals = totals + np.roll(totals, 1, axis=0)
    return {
        "sends-the-total": totals[0],
        "one-turn-too-many": x.sum(0) + parts[0],
        "ring-not-closed": parts[0],
    }


def notice(facts, sizes, x):
    used = [one for m in facts.get("shard_maps", ()) for one in m["collectives"]]
    if sizes["data"] > 1 and facts.get("finished") and not used:
        return "no-ring"
    return None
