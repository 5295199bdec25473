"""What is changed of JAX while a program is traced is as it was afterwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._jax.patches import Patch, Patches
from shardwise._jax.virtual import virtually

DATA = np.arange(8.0, dtype=np.float32)


def attributes() -> dict[tuple[str, ...], Any]:
    """Every attribute of the modules of JAX, of their classes, and every item of their tables."""
    found: dict[tuple[str, ...], Any] = {}
    for module, held in list(sys.modules.items()):
        if module.split(".")[0] != "jax":
            continue
        for name, value in list(vars(held).items()):
            found[module, name] = value
            if isinstance(value, type) and value.__module__ == module:
                inner = vars(value).items()
                found.update({(module, name, attr): one for attr, one in inner})
            elif isinstance(value, dict) and name.endswith("rules"):
                found.update({(module, name, str(k)): v for k, v in list(value.items())})
    return found


def changed(before: dict[tuple[str, ...], Any]) -> list[str]:
    """The attributes that are another object now, or gone; modules that were loaded are new."""
    after = attributes()
    return [".".join(key) for key, value in before.items() if after.get(key) is not value]


def program(x: Any, mesh: Any) -> Any:
    def body(x: Any) -> Any:
        return lax.psum(jnp.tanh(x).sum(), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def with_refs(x: Any, mesh: Any) -> Any:
    total = jax.new_ref(jnp.zeros(()))
    total[...] += program(x, mesh)
    return total[...]


def counted(x: Any, mesh: Any) -> Any:
    return x / jax.device_count()


CALLS: dict[str, Callable[[], Any]] = {
    "simulate": lambda: sw.simulate(program, mesh=sw.mesh({"data": 4}))(DATA),
    "grad": lambda: jax.grad(sw.simulate(program, mesh=sw.mesh({"data": 4})))(DATA),
    "refs": lambda: sw.simulate(with_refs, mesh=sw.mesh({"data": 4}))(DATA),
    "check": lambda: sw.check(program, DATA, mesh={"data": [1, 2]}),
    "prove": lambda: sw.prove(program, DATA, mesh={"data": [1, 2]}),
    "explain": lambda: sw.explain(program, DATA, mesh={"data": 4}),
    "inspect": lambda: sw.inspect(program, DATA, mesh={"data": 4}),
}


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Let JAX load what it loads lazily, and fill its own tables."""
    for call in CALLS.values():
        call()


@pytest.mark.parametrize("name", CALLS)
def test_jax_is_as_it_was(name):
    before = attributes()
    assert len(before) > 10_000
    CALLS[name]()
    assert changed(before) == []


def test_jax_is_as_it_was_after_an_error():
    before = attributes()
    with pytest.raises(sw.ShardwiseError, match="counts the devices of this machine"):
        sw.simulate(counted, mesh=sw.mesh({"data": 4096}))(DATA)
    assert changed(before) == []


def test_what_is_changed_is_seen():
    before = attributes()
    with virtually(None):
        found = changed(before)
    assert "jax._src.xla_bridge.get_backend" in found
    assert "jax._src.sharding_impls.set_mesh.__init__" in found
    assert changed(before) == []


def test_a_thread_that_traces_nothing_sees_no_difference():
    found: list[Any] = []
    with virtually(sw.mesh({"data": 4096})):
        thread = threading.Thread(target=lambda: found.append(jax.device_count()))
        thread.start()
        thread.join()
    assert found == [jax.device_count()]


class Owner:
    value = 1


def test_overlapping_patches_end_with_the_last():
    patches = Patches(lambda: [Patch(Owner, "value", lambda old: old + 1)])
    first, second = patches.installed(), patches.installed()
    with first:
        second.__enter__()
        assert Owner.value == 2
    assert Owner.value == 2
    second.__exit__(None, None, None)
    assert Owner.value == 1


def test_an_item_that_was_absent_is_absent_again():
    table: dict[str, int] = {}
    with Patches(lambda: [Patch(table, "new", lambda old: 1 if old is None else 2)]).installed():
        assert table == {"new": 1}
    assert table == {}


def test_another_patch_on_top_of_ours_stays():
    patches = Patches(lambda: [Patch(Owner, "value", lambda old: old + 1)])
    with patches.installed():
        Owner.value = 7
    assert Owner.value == 7
    Owner.value = 1
