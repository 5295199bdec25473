import numpy as np

SAME = {"missing-reduction": "own-maximum"}


def inputs(rng, sizes):
    logits = rng.standard_normal((6, 16)) * 3 + np.linspace(0, 4, 16)
    return logits.astype(np.float32), rng.permutation(16)[:6].astype(np.int32)


def _picked(logits, target):
    return logits[np.arange(len(target)), target]


def expected(logits, target):
    top = logits.max(1)
    return np.log(np.exp(logits - top[:, None]).sum(1)) + top - _picked(logits, target)


def mistakes(sizes, logits, target):
    n = sizes["model"]
    parts = np.split(logits, n, axis=1)
    size, top = logits.shape[1] // n, logits.max(1)
    scaled = sum(np.exp(p - p.max(1)[:, None]).sum(1) for p in parts)
    logs = sum(np.log(np.exp(p - top[:, None]).sum(1)) for p in parts)
    places = [np.clip(target - d * size, 0, size - 1) for d in range(n)]
    all_picked = sum(_picked(p, at) for p, at in zip(parts, places))
    right = expected(logits, target)
    return {
        "own-maximum": np.log(scaled) + parts[0].max(1) - _picked(logits, target),
        "everyone-picks": right + _picked(logits, target) - all_picked,
        "log-of-a-part": logs + top - _picked(logits, target),
    }
