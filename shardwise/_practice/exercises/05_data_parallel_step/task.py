import numpy as np

SAME = {"n-times": "sum-of-losses"}


def inputs(rng, sizes):
    seed = float(rng.integers(0, 1000))
    x = rng.standard_normal((16, 3)).astype(np.float32)
    y = (x @ rng.standard_normal((3, 2)) + np.linspace(0, 2, 16)[:, None]).astype(np.float32)
    return seed, x, y, float(sizes["shards"]), 0.125


def _loss_and_gradients(seed, x, y, step=0.0):
    # Of the model at the start, or after one step of that length on this batch.
    from flax import nnx

    model = nnx.Linear(x.shape[-1], y.shape[-1], rngs=nnx.Rngs(int(seed)))
    state = nnx.state(model, nnx.Param)
    kernel = np.asarray(state["kernel"][...], np.float64)
    bias = np.asarray(state["bias"][...], np.float64)
    error = x.astype(np.float64) @ kernel + bias - y
    scale = 2.0 / error.size
    by_bias, by_kernel = scale * error.sum(0), scale * x.T @ error
    after = error - step * (x @ by_kernel + by_bias)
    return np.mean(after**2), [by_bias, by_kernel.reshape(-1)]


def expected(seed, x, y, num_devices, lr):
    return np.array([_loss_and_gradients(seed, x, y)[0]], np.float32)


def mistakes(sizes, seed, x, y, num_devices, lr):
    loss = expected(seed, x, y, num_devices, lr)
    return {
        "sum-of-losses": loss * int(num_devices),
        "loss-after-update": np.array([_loss_and_gradients(seed, x, y, lr)[0]]),
    }


def notice(facts, sizes, seed, x, y, num_devices, lr):
    n = int(num_devices)
    optimizers, updates = facts.get("optimizers", ()), facts.get("updates", ())
    if len(optimizers) > 1:
        return "optimizer-per-shard", optimizers[-1]["line"]
    if len(updates) > 1:
        return "update-per-shard", updates[-1]["line"]
    if n > 1:
        for one in facts.get("calls", ()):
            if one["shape"] and one["shape"][0] == len(x):
                return "not-sharded", one["line"]
    if not updates:
        return "no-update" if facts.get("finished") else None
    return _about_gradients(updates[0], n, seed, x, y)


def _about_gradients(update, n, seed, x, y):
    grads = update["grads"]
    want = np.concatenate(_loss_and_gradients(seed, x, y)[1])
    got = np.concatenate(grads) if grads else np.zeros(0)
    if got.shape != want.shape:
        return None
    near = lambda a: np.allclose(got, a, rtol=1e-3, atol=1e-4 * np.abs(a).max())
    if near(want):
        return None
    shards = zip(np.split(x, n), np.split(y, n))
    if near(n * want):
        return "summed-gradients", update["line"]
    if near(y.size // n * want):
        return "sum-within-shard", update["line"]
    if any(near(np.concatenate(_loss_and_gradients(seed, a, b)[1])) for a, b in shards):
        return "one-shards-gradient", update["line"]
    return "wrong-gradients", update["line"]
