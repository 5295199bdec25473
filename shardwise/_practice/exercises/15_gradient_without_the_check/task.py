import numpy as np

SAME = {"follows-the-mesh": "reduced-inside"}

def inputs(rng, sizes):
    x = rng.standard_normal((16, 4)).astype(np.float32)
    y = (x @ rng.standard_normal(4) + np.linspace(0, 2, 16)).astype(np.float32)
    return rng.standard_normal(4).astype(np.float32), x, y


def expected(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x)


def mistakes(sizes, w, x, y):
    n = sizes["data"]
    k = len(x) // n
    right, own = expected(w, x, y), expected(w, x[:k], y[:k])
    return {
        "reduced-inside": own / n,
        "reduced-inside--whole": own,
        "n-times": n * right,
    }


def notice(facts, sizes, w, x, y):
    # What comes back is one device's gradient in both cases; the source says which it is.
    if sizes["data"] > 1 and facts["finished"]:
        if not any(word in facts["source"] for word in ("psum", "pmean")):
            return "missing-reduction"
    return None
