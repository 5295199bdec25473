"""Flax NNX objects among the arguments: split before a call, updated after it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._base.calls import parameter_names

Finish = Callable[[Any], Any]


def functionalize(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], Finish]:
    """Turn a function that may take NNX objects into a function of arrays.

    Returns:
        A pure function, the values to call it with, and a function that takes its result, updates
        the objects and returns the result of `f`.
    """
    nnx = sys.modules.get("flax.nnx")
    objects = _objects(nnx, (args, kwargs)) if nnx else []
    if nnx is None or not objects:
        return lambda args, kwargs: f(*args, **kwargs), (args, kwargs), _unchanged
    paths, tree = jax.tree_util.tree_flatten_with_path(
        (args, kwargs), is_leaf=lambda x: is_object(nnx, x)
    )
    object_mask = [is_object(nnx, leaf) for _, leaf in paths]
    arrays = [leaf for _, leaf in paths if not is_object(nnx, leaf)]

    def pure(graph: Any, state: Any, arrays: list[Any]) -> Any:
        new, rest = nnx.merge(graph, state), iter(arrays)
        merged = iter(new)
        mixed = [next(merged) if is_object else next(rest) for is_object in object_mask]
        new_args, new_kwargs = jax.tree.unflatten(tree, mixed)
        out = f(*new_args, **new_kwargs)
        return _split_out(nnx, out, new), nnx.state(new)

    graph, state = nnx.split(tuple(objects))
    names = parameter_names(f)
    labels = [_label(path, names) for path, _ in paths]
    finish = Update(
        nnx,
        objects,
        [label for label, is_object in zip(labels, object_mask, strict=True) if is_object],
        [label for label, is_object in zip(labels, object_mask, strict=True) if not is_object],
        object_mask,
        tree,
    )
    return pure, (graph, state, arrays), finish


def per_leaf(finish: Finish, values: Any, per_argument: Sequence[Any]) -> list[Any]:
    """Repeat the entry for each argument, for each of the values that it is flattened to."""
    if not isinstance(finish, Update):
        return list(per_argument)
    rows = list(zip(per_argument, finish.places, strict=True))
    objects = [entry for entry, is_object in rows if is_object]
    arrays = [entry for entry, is_object in rows if not is_object]
    entries = []
    for path, _ in jax.tree_util.tree_leaves_with_path(values):
        group, first = path[0].idx, path[1]
        entries.append(objects[first.key] if group == 1 else arrays[first.idx])
    return entries


@dataclasses.dataclass(frozen=True)
class Update:
    """Returns the result of a function whose objects were split, and updates them.

    Attributes:
        nnx: The module of NNX.
        objects: The objects among the arguments.
        names: The name of each object in the caller's code.
        others: The same for the other arrays.
        places: For each argument, whether it is an object.
        tree: The tree of the arguments, each object being a leaf.
    """

    nnx: Any
    objects: list[Any]
    names: list[str]
    others: list[str]
    places: list[bool]
    tree: Any

    def __call__(self, result: Any) -> Any:
        out, state = result
        self.nnx.update(tuple(self.objects), state)
        return _merge_out(self.nnx, out, self.objects)

    def name(self, path: tuple[Any, ...]) -> str:
        """Return the name of a path in the state of all objects: the object, and the path in it."""
        return self.names[path[0].key] + jax.tree_util.keystr(path[1:]).removesuffix(".value")


def _unchanged(out: Any) -> Any:
    return out


def name_result(finish: Finish, path: tuple[Any, ...]) -> str:
    """Return a path in the result of the pure function as the user of `f` would write it."""
    if finish is _unchanged:
        return "result" + jax.tree_util.keystr(path)
    if path[0] == jax.tree_util.SequenceKey(0):
        return "result" + jax.tree_util.keystr(path[2:])
    assert isinstance(finish, Update)
    return "updated " + finish.name(path[1:])


def name_argument(finish: Finish, path: tuple[Any, ...], names: Sequence[str]) -> str:
    """Return a path in the arguments of the pure function as the user of `f` would write it."""
    if not isinstance(finish, Update):
        return _label(path, names)
    group, rest = path[0].idx, path[1:]
    return finish.name(rest) if group == 1 else finish.others[rest[0].idx]


def _label(path: tuple[Any, ...], names: Sequence[str]) -> str:
    """Return the name of a path in a pair of positional arguments and keywords."""
    group, first, rest = path[0].idx, path[1], path[2:]
    if group == 1:
        return f"{first.key}{jax.tree_util.keystr(rest)}"
    index: int = first.idx
    name = names[index] if index < len(names) else f"args[{index}]"
    return name + jax.tree_util.keystr(rest)


def is_object(nnx: Any, x: Any) -> bool:
    """Return whether this is an NNX object, to be split as a whole."""
    return isinstance(x, nnx.Pytree | nnx.Variable)


def _objects(nnx: Any, tree: Any) -> list[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: is_object(nnx, x))
    return [leaf for leaf in leaves if is_object(nnx, leaf)]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ArgumentObject:
    """In a result: an object that was passed as an argument, by its number."""

    index: int


def _split_out(nnx: Any, out: Any, objects: Sequence[Any]) -> Any:
    """Split the NNX objects in a result into graph and state."""
    number = {id(x): index for index, x in enumerate(objects)}

    def mark(leaf: Any) -> Any:
        return ArgumentObject(number[id(leaf)]) if id(leaf) in number else leaf

    out = jax.tree.map(mark, out, is_leaf=lambda x: is_object(nnx, x))
    return nnx.split(out) if _objects(nnx, out) else (None, out)


def _merge_out(nnx: Any, parts: Any, objects: Sequence[Any]) -> Any:
    graph, out = parts
    out = out if graph is None else nnx.merge(graph, out)

    def restore(leaf: Any) -> Any:
        return objects[leaf.index] if isinstance(leaf, ArgumentObject) else leaf

    return jax.tree.map(
        restore, out, is_leaf=lambda x: isinstance(x, ArgumentObject) or is_object(nnx, x)
    )
