"""Run JAX's `tests/shard_map_test.py` with `jax.shard_map` replaced by a simulated one.

    python -m tests.suite path/to/shard_map_test.py [options of pytest]

The file is JAX's and is not kept here; take it from the tag of the JAX that is installed, such as
https://github.com/jax-ml/jax/blob/jax-v0.10.2/tests/shard_map_test.py. Each call of a `shard_map`
that is not inside another one becomes a call of its simulation; under `jit`, `grad` or `vmap`, JAX
transforms that. `--native` leaves JAX as it is, to see which tests pass there. What a test says
of where results lie is left out: a simulated array lies on one device. Its values are compared all
the same.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from ..devices import request_devices

request_devices()

import jax  # noqa: E402
import pytest  # noqa: E402
from jax.sharding import AxisType, Sharding  # noqa: E402

import shardwise as sw  # noqa: E402


def main(argv: list[str]) -> int:
    """Run the file named first with pytest."""
    file, *options = argv
    if "--native" in options:
        options.remove("--native")
    else:
        replace()
    folder = os.path.dirname(os.path.abspath(file))
    quiet = ["-q", "-p", "no:cacheprovider", "--rootdir", folder, "-c", os.devnull]
    return pytest.main([file, *quiet, *options])


def replace() -> None:
    """Put simulated `shard_map`s in place of JAX's, and take no notice of where arrays lie."""
    from jax._src import shard_map as module
    from jax._src import test_util

    for holder in (jax, module):
        holder.shard_map = simulated(holder.shard_map)
    test_util.JaxTestCase.assertEqual = _where_or_equal(test_util.JaxTestCase.assertEqual)


def simulated(shard_map: Any) -> Any:
    """A `shard_map` whose calls are simulated."""

    @functools.wraps(shard_map)
    def replaced(f: Any = None, /, **options: Any) -> Any:
        if f is None:
            return lambda f: replaced(f, **options)
        native = shard_map(f, **options)
        specs = options.get("in_specs")
        fixed = [i for i, spec in enumerate(specs) if spec is None] if type(specs) is tuple else ()
        simulation = sw.simulate(native, static_argnums=fixed)

        @functools.wraps(native)
        def call(*args: Any) -> Any:
            return (native if _inside() else simulation)(*args)

        return call

    return replaced


def _inside() -> bool:
    """Whether another `shard_map` is being traced around."""
    return AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types


def _where_or_equal(equal: Any) -> Any:
    @functools.wraps(equal)
    def compare(self: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(first, Sharding) and not isinstance(second, Sharding):
            equal(self, first, second, *args, **kwargs)

    return compare


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
