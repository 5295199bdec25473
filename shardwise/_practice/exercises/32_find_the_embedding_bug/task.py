import numpy as np


def inputs(rng, sizes):
    table = rng.uniform(1, 2, (16, 3)).astype(np.float32)
    return table, rng.permutation(16).astype(np.int32)


def expected(table, tokens):
    return table[tokens]


def mistakes(sizes, table, tokens):
    n = sizes["model"]
    k = len(table) // n
    border, plain, same = 0.0, 0.0, 0.0
    for d in range(n):
        part, place = table[d * k : (d + 1) * k], tokens - d * k
        rows = part[np.clip(place, 0, k - 1)]
        border = border + np.where(((place >= 0) & (place <= k))[:, None], rows, 0)
        plain = plain + rows
        same = same + np.where((tokens < k)[:, None], part[np.clip(tokens, 0, k - 1)], 0)
    return {"border-counted-twice": border, "no-mask": plain, "no-offset": same}
