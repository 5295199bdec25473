"""Compiled programs, kept for the next case that lowers to the same one."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable
from typing import Any

import jax

MOST = 64
"""How many compiled programs are kept, the latest used ones."""

_kept: collections.OrderedDict[Any, Callable[..., Any]] = collections.OrderedDict()


def compiled(lowered: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """Compile a lowered program, unless the same one was compiled before.

    Cases of one command differ in their data and in the meshes of which one is the mesh of ones;
    a fix that is tried often leaves the program on one device as it is.
    """
    text = hashlib.blake2b(lowered.as_text().encode()).digest()
    config: Any = jax.config  # its attributes are made as JAX starts
    device = config.jax_default_device or jax.devices()[0]
    # The text does not name arguments that the program does not use; a call is checked for them.
    given = tuple((aval.shape, aval.dtype) for aval in jax.tree.leaves(lowered.in_avals))
    key = text, given, lowered.in_tree, lowered.out_tree, device, *sorted(options.items())
    if key not in _kept:
        _kept[key] = lowered.compile(compiler_options=options)
    _kept.move_to_end(key)
    if len(_kept) > MOST:
        _kept.popitem(last=False)
    return _kept[key]
