import numpy as np


def inputs(rng, sizes):
    draw = lambda scale: (rng.standard_normal((16, 4)) * scale).astype(np.float32)
    return draw(2.0), draw(2.0), draw(1.0)


def _softmax(s):
    p = np.exp(s - s.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def expected(q, k, v):
    return _softmax(q @ k.T / 2) @ v


def mistakes(sizes, q, k, v):
    n = sizes["seq"]
    qs, ks, vs = np.split(q, n), np.split(k, n), np.split(v, n)
    own = [_softmax(a @ b.T / 2) @ c for a, b, c in zip(qs, ks, vs)]
    mean = [np.mean([_softmax(a @ b.T / 2) @ c for b, c in zip(ks, vs)], axis=0) for a in qs]
    stay = [_softmax(a @ k.T / 2) @ np.tile(vs[d], (n, 1)) for d, a in enumerate(qs)]
    old = []
    for d, a in enumerate(qs):
        m, l, o = np.full(len(a), -np.inf), 0.0, 0.0
        for t in range(n):
            s = a @ ks[(d - t) % n].T / 2
            m = np.maximum(m, s.max(1))
            p = np.exp(s - m[:, None])
            l, o = l + p.sum(1), o + p @ vs[(d - t) % n]
        old.append(o / l[:, None])
    return {
        "own-block-only": np.concatenate(own),
        "average-of-blocks": np.concatenate(mean),
        "values-stay": np.concatenate(stay),
        "not-rescaled": np.concatenate(old),
    }
