"""Training steps of small models of many kinds: memory and time, by number of shards at once.

    python benchmarks/kinds.py                      # all of them, in two to three minutes
    python benchmarks/kinds.py recurrent graph      # these

For each kind: one shard at a time against a scan over slices by hand, `auto` against the unsharded
step. What is slow or large in one kind of model hides behind the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import report
from forms import Forms, measure, targets
from jax import lax

Loss = Callable[[Any, Any], jax.Array]
SHARDS = 32


class Random:
    """Create different arrays of random numbers."""

    def __init__(self):
        self.key = jax.random.key(0)

    def next(self) -> jax.Array:
        self.key, own = jax.random.split(self.key)
        return own

    def normal(self, *shape: int, scale: float = 1.0) -> jax.Array:
        return scale * jax.random.normal(self.next(), shape)

    def weights(self, *shape: int) -> jax.Array:
        """All dimensions but the last are summed over."""
        return self.normal(*shape, scale=(shape[-1] / jnp.zeros(shape).size) ** 0.5)

    def below(self, limit: int, *shape: int) -> jax.Array:
        return jax.random.randint(self.next(), shape, 0, limit)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def recurrent(random: Random) -> tuple[Loss, Any, Any]:
    """An LSTM: every step uses the same weights."""
    words, width = 1000, 128
    params = {
        "embedding": random.weights(words, width),
        "inputs": random.weights(width, 4 * width),
        "state": random.weights(width, 4 * width),
        "head": random.weights(width, words),
    }

    def loss(params: Any, ids: Any) -> jax.Array:
        def cell(carry: Any, x: Any) -> Any:
            hidden, cell = carry
            gates = x @ params["inputs"] + hidden @ params["state"]
            take, forget, new, give = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(give) * jnp.tanh(cell)
            return (hidden, cell), hidden

        xs = params["embedding"][ids].swapaxes(0, 1)
        _, hidden = lax.scan(cell, (0 * xs[0], 0 * xs[0]), xs)
        return cross_entropy(hidden[:-1].swapaxes(0, 1) @ params["head"], ids[:, 1:])

    return loss, params, random.below(words, 256, 64)


def state_space(random: Random) -> tuple[Loss, Any, Any]:
    """A linear recurrence by an associative scan."""
    inputs, width, states = 16, 64, 8
    params = {
        "in": random.weights(inputs, width),
        "decay": random.normal(width, states),
        "both": random.weights(width, 2 * states),
        "out": random.weights(width, inputs),
    }

    def loss(params: Any, rows: Any) -> jax.Array:
        x = rows @ params["in"]
        write, read = jnp.split(x @ params["both"], 2, axis=-1)
        decay = jnp.broadcast_to(jnp.exp(-jnp.exp(params["decay"])), (*x.shape, states))
        pairs = decay, x[..., None] * write[..., None, :]
        join = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
        _, state = lax.associative_scan(join, pairs, axis=1)
        out = jnp.einsum("btwn,btn->btw", state, read) @ params["out"]
        return jnp.mean((out[:, :-1] - rows[:, 1:]) ** 2)

    return loss, params, random.normal(256, 128, inputs)


def graph(random: Random) -> tuple[Loss, Any, Any]:
    """Messages along edges, summed at each node."""
    nodes, edges, width = 32, 128, 64
    params = {
        "in": random.weights(8, width),
        "message": [random.weights(2 * width, width) for _ in range(3)],
        "update": [random.weights(2 * width, width) for _ in range(3)],
        "out": random.weights(width, 1),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        def one(features: Any, edges: Any, wanted: Any) -> jax.Array:
            source, target = edges.T
            h = features @ params["in"]
            for message, update in zip(params["message"], params["update"], strict=True):
                sent = jax.nn.relu(jnp.concatenate([h[source], h[target]], -1) @ message)
                got = jax.ops.segment_sum(sent, target, nodes)
                h = h + jax.nn.relu(jnp.concatenate([h, got], -1) @ update)
            return (jnp.mean(h @ params["out"]) - wanted) ** 2

        return jnp.mean(jax.vmap(one)(*batch))

    batch = random.normal(256, nodes, 8), random.below(nodes, 256, edges, 2), random.normal(256)
    return loss, params, batch


def convolve(x: jax.Array, weights: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    space = "DHW"[5 - x.ndim :]
    order = (f"N{space}C", f"{space}IO", f"N{space}C")
    strides = (stride,) * len(space)
    return lax.conv_general_dilated(
        x, weights, strides, "SAME", dimension_numbers=order, feature_group_count=groups
    )


def separable(random: Random) -> tuple[Loss, Any, Any]:
    """Convolutions of each channel by itself."""
    width = 32
    params = {
        "first": random.weights(3, 3, 3, width),
        "space": [random.weights(3, 3, 1, width) for _ in range(3)],
        "mix": [random.weights(width, width) for _ in range(3)],
        "head": random.weights(width, 10),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        x, classes = batch
        x = convolve(x, params["first"], 2)
        for space, mix in zip(params["space"], params["mix"], strict=True):
            x = x + jax.nn.relu(convolve(x, space, groups=width) @ mix)
        return cross_entropy(jnp.mean(x, axis=(1, 2)) @ params["head"], classes)

    return loss, params, (random.normal(256, 32, 32, 3), random.below(10, 256))


def pooled(random: Random) -> tuple[Loss, Any, Any]:
    """Convolutions and the largest of each four pixels."""
    params = {
        "first": random.weights(3, 3, 3, 16),
        "second": random.weights(3, 3, 16, 32),
        "head": random.weights(32 * 8 * 8, 10),
    }

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def loss(params: Any, batch: Any) -> jax.Array:
        x, classes = batch
        for name in ("first", "second"):
            x = pool(jax.nn.relu(convolve(x, params[name])))
        return cross_entropy(x.reshape(len(x), -1) @ params["head"], classes)

    return loss, params, (random.normal(256, 32, 32, 3), random.below(10, 256))


def volumes(random: Random) -> tuple[Loss, Any, Any]:
    """Convolutions in three dimensions."""
    params = {
        "first": random.weights(3, 3, 3, 1, 8),
        "second": random.weights(3, 3, 3, 8, 16),
        "head": random.weights(16, 1),
    }

    def loss(params: Any, x: Any) -> jax.Array:
        x = jax.nn.relu(convolve(x, params["first"]))
        x = jax.nn.relu(convolve(x, params["second"], 2))
        return jnp.mean((jnp.mean(x, axis=(1, 2, 3)) @ params["head"] - 1) ** 2)

    return loss, params, random.normal(64, 16, 16, 16, 1)


def recommender(random: Random) -> tuple[Loss, Any, Any]:
    """Sums of rows of large tables."""
    size, width = 20_000, 32
    params = {
        "tables": [random.normal(size, width, scale=0.1) for _ in range(4)],
        "first": random.weights(4 * width, 64),
        "head": random.weights(64, 1),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        ids, clicked = batch
        sums = [table[ids[:, i]].sum(1) for i, table in enumerate(params["tables"])]
        hidden = jax.nn.relu(jnp.concatenate(sums, axis=-1) @ params["first"])
        score = (hidden @ params["head"])[:, 0]
        return jnp.mean(jnp.logaddexp(0.0, score) - clicked * score)

    return loss, params, (random.below(size, 4096, 4, 8), random.below(2, 4096).astype(jnp.float32))


def spectral(random: Random) -> tuple[Loss, Any, Any]:
    """Weights of the lowest frequencies."""
    width, modes = 32, 16
    params = {
        "in": random.weights(1, width),
        "layers": [random.normal(2, modes, width, width, scale=0.1) for _ in range(3)],
        "out": random.weights(width, 1),
    }

    def loss(params: Any, rows: Any) -> jax.Array:
        x = rows @ params["in"]
        for real, imaginary in params["layers"]:
            waves = jnp.fft.rfft(x, axis=1)
            low = jnp.einsum("bmi,mio->bmo", waves[:, :modes], real + 1j * imaginary)
            low = jnp.pad(low, ((0, 0), (0, waves.shape[1] - modes), (0, 0)))
            x = x + jax.nn.gelu(jnp.fft.irfft(low, n=x.shape[1], axis=1))
        return jnp.mean((x @ params["out"] - rows) ** 2)

    return loss, params, random.normal(256, 256, 1)


KINDS = (recurrent, state_space, graph, separable, pooled, volumes, recommender, spectral)


def main() -> None:
    names = [kind.__name__ for kind in KINDS]
    parser = argparse.ArgumentParser(description="Small models of many kinds, sharded and not.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=4, help="steps timed per form")
    asked = parser.parse_args()
    if unknown := set(asked.kinds).difference(names):
        parser.error(f"no kind is called {', '.join(unknown)}: they are {', '.join(names)}")
    rows = []
    for kind in KINDS:
        if asked.kinds and kind.__name__ not in asked.kinds:
            continue
        loss, params, batch = kind(Random())
        forms = Forms(loss)
        found = measure(forms.all([SHARDS], []), (params, batch), asked.rounds)
        losses = [one.loss for one in found.values()]
        if max(losses) - min(losses) > 1e-2 * abs(losses[0]):
            raise SystemExit(f"{kind.__name__}: the forms end at different losses: {losses}")
        (loop,) = forms.simulated(SHARDS, "auto").plan(params, batch).loops
        one_kept, auto_kept, one, auto, _ = targets(found, [SHARDS])
        figures = (one, one_kept, auto, auto_kept)
        plain = report.milliseconds(found["unsharded"].seconds)
        rows.append([kind.__name__, plain, *(t.row()[1] for t in figures), str(loop.at_once)])
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + f", {SHARDS} shards\n")
    header = ["kind", "unsharded", "one by one / by hand", "temporaries"]
    header += ["auto / unsharded", "temporaries", "at once"]
    print(report.table(header, rows))


if __name__ == "__main__":
    main()
