"""Mixture of experts: each token goes to the one expert that its router picks.

Placement: the experts are split over `expert`, and so are the tokens, which come in groups.
The router is on every device.
Communication: every device sorts its tokens into slots by expert, and one `all_to_all` brings the
slots to the devices that hold the experts (dispatch). A second one brings the answers back
(combine). A `psum` counts how many tokens each expert served.

Shapes must be fixed, so an expert takes at most `CAPACITY` tokens of each group, first come first
served; a token that finds no slot passes unchanged, by the residual connection.

The trap: were the capacity counted over the tokens of a device, the dropped tokens, and with them
the result, would depend on the number of devices. Groups (as in GShard) belong to the data. A
device has one group or several, and what is dropped is the same on every mesh.
"""

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("expert",)
CAPACITY = 2
SPECS = {"router": P(), "w1": P("expert"), "w2": P("expert")}


def route(router, tokens):
    """Slots (group, token, expert, place): which token goes where; and each token's gate."""
    probabilities = jax.nn.softmax(tokens @ router)
    gate = probabilities.max(-1)
    chosen = jax.nn.one_hot(probabilities.argmax(-1), router.shape[-1])
    place = (jnp.cumsum(chosen, axis=1) - 1) * chosen
    slots = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), CAPACITY)
    return slots, gate


def experts(params, slots):
    """Each expert's MLP on its own slots (group, expert, place, feature)."""
    hidden = jax.nn.relu(jnp.einsum("gecd,edh->gech", slots, params["w1"]))
    return jnp.einsum("gech,ehd->gecd", hidden, params["w2"])


def layer(params, tokens, dispatch, combine):
    """The layer; `dispatch` brings slots to their experts and `combine` brings answers back."""
    slots, gate = route(params["router"], tokens)
    sent = dispatch(jnp.einsum("gtec,gtd->gecd", slots, tokens))
    answers = combine(experts(params, sent))
    out = tokens + gate[..., None] * jnp.einsum("gtec,gecd->gtd", slots, answers)
    return out, slots.sum((0, 1, 3))


def body(params, tokens):
    """What one device does with its groups of tokens and its experts."""

    def dispatch(x):
        return jax.lax.all_to_all(x, "expert", split_axis=1, concat_axis=0, tiled=True)

    def combine(x):
        return jax.lax.all_to_all(x, "expert", split_axis=0, concat_axis=1, tiled=True)

    out, served = layer(params, tokens, dispatch, combine)
    return out, jax.lax.psum(served, "expert")


def step(params, tokens, *, mesh):
    """The new tokens, and how many tokens each expert served."""
    sharded = jax.shard_map(
        body, mesh=mesh, in_specs=(SPECS, P("expert")), out_specs=(P("expert"), P())
    )
    return sharded(params, tokens)


def reference(params, tokens):
    """The same on one device, where there is nowhere to send the tokens."""
    return layer(params, tokens, dispatch=lambda x: x, combine=lambda x: x)


def example_args(seed=0, groups=8, size=12, features=8, hidden=16, count=8):
    """Parameters of `count` experts, and groups of tokens, as `step` and `reference` take them."""
    normal = normals(seed)
    params = {
        "router": normal(features, count),
        "w1": normal(count, features, hidden, scale=features**-0.5),
        "w2": normal(count, hidden, features, scale=hidden**-0.5),
    }
    return params, normal(groups, size, features)


def large():
    """A layer as it might be trained, as shapes."""
    sizes = {"groups": 256, "size": 1024, "features": 4096, "hidden": 14336, "count": 64}
    return step, shapes(example_args, **sizes)


@sw.case(
    mesh={"expert": [1, 2, 4, 8]}, reference=reference, explain=large, explain_mesh={"expert": 64}
)
def mixture_of_experts():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"expert": size} for size in (1, 2, 8)]
    compare("Mixture of experts", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
