"""A cache of compiled programs, shared by cases that lower to the same program."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable
from typing import Any

import jax

MOST = 64
"""The number of compiled programs kept; the least recently used is dropped."""

_kept: collections.OrderedDict[Any, Callable[..., Any]] = collections.OrderedDict()


def compiled(lowered: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """Compile a lowered program, unless the same one was compiled before.

    The cases of one command often differ only in data or in meshes, and trying a fix often leaves
    the program on one device unchanged.
    """
    text = hashlib.blake2b(lowered.as_text().encode()).digest()
    config: Any = jax.config  # its attributes are defined dynamically
    device = config.jax_default_device or jax.devices()[0]
    # The text omits unused arguments, but the compiled function checks for them.
    types = tuple((aval.shape, aval.dtype) for aval in jax.tree.leaves(lowered.in_avals))
    key = text, types, lowered.in_tree, lowered.out_tree, device, *sorted(options.items())
    if key not in _kept:
        _kept[key] = lowered.compile(compiler_options=options)
    _kept.move_to_end(key)
    if len(_kept) > MOST:
        _kept.popitem(last=False)
    return _kept[key]
