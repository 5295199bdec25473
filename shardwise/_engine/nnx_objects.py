"""Flax NNX objects among the arguments: taken apart before, updated after."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

Finish = Callable[[Any], Any]


def purely(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], Finish]:
    """A function of arrays in place of one that may take NNX objects.

    Returns:
        A pure function, the values to call it with, and what to do with its result: it gives the
        result of `f`, and has updated the objects.
    """
    nnx = sys.modules.get("flax.nnx")
    objects = _objects(nnx, (args, kwargs)) if nnx else []
    if nnx is None or not objects:
        return lambda args, kwargs: f(*args, **kwargs), (args, kwargs), _as_it_is
    paths, tree = jax.tree_util.tree_flatten_with_path(
        (args, kwargs), is_leaf=lambda x: is_object(nnx, x)
    )
    places = [is_object(nnx, leaf) for _, leaf in paths]
    arrays = [leaf for _, leaf in paths if not is_object(nnx, leaf)]

    def pure(graph: Any, state: Any, arrays: list[Any]) -> Any:
        new, rest = nnx.merge(graph, state), iter(arrays)
        own = iter(new)
        mixed = [next(own) if is_object else next(rest) for is_object in places]
        new_args, new_kwargs = jax.tree.unflatten(tree, mixed)
        out = f(*new_args, **new_kwargs)
        return _split_out(nnx, out, new), nnx.state(new)

    graph, state = nnx.split(tuple(objects))
    names = parameters(f)
    labels = [_label(path, names) for path, _ in paths]
    finish = Update(
        nnx,
        objects,
        [label for label, is_object in zip(labels, places, strict=True) if is_object],
        [label for label, is_object in zip(labels, places, strict=True) if not is_object],
        places,
        tree,
    )
    return pure, (graph, state, arrays), finish


def spread(finish: Finish, values: Any, given: Sequence[Any]) -> list[Any]:
    """What is `given` for each argument, for each of the values that they are taken apart into."""
    if not isinstance(finish, Update):
        return list(given)
    rows = list(zip(given, finish.places, strict=True))
    objects = [one for one, is_object in rows if is_object]
    arrays = [one for one, is_object in rows if not is_object]
    found = []
    for path, _ in jax.tree_util.tree_leaves_with_path(values):
        group, first = path[0].idx, path[1]
        found.append(objects[first.key] if group == 1 else arrays[first.idx])
    return found


@dataclasses.dataclass(frozen=True)
class Update:
    """Gives the result of a function whose objects were taken apart, and updates them.

    Attributes:
        nnx: The module of NNX.
        objects: The objects among the arguments.
        names: How the caller would write each of them.
        others: The same for the arrays beside them.
        places: For each argument in turn, whether it is an object.
        tree: How the arguments lie in the call, each object being one.
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
        """A path in the state of all objects: the object's name, and the place in it."""
        return self.names[path[0].key] + jax.tree_util.keystr(path[1:]).removesuffix(".value")


def _as_it_is(out: Any) -> Any:
    return out


def name_result(finish: Finish, path: tuple[Any, ...]) -> str:
    """A path in what the pure function returns, as the user of `f` would write it."""
    if finish is _as_it_is:
        return "result" + jax.tree_util.keystr(path)
    if path[0] == jax.tree_util.SequenceKey(0):
        return "result" + jax.tree_util.keystr(path[2:])
    assert isinstance(finish, Update)
    return "updated " + finish.name(path[1:])


def name_argument(finish: Finish, path: tuple[Any, ...], names: Sequence[str]) -> str:
    """A path in what the pure function is called with, as the user of `f` would write it."""
    if not isinstance(finish, Update):
        return _label(path, names)
    group, rest = path[0].idx, path[1:]
    return finish.name(rest) if group == 1 else finish.others[rest[0].idx]


def _label(path: tuple[Any, ...], names: Sequence[str]) -> str:
    """A path in a pair of positional arguments and keywords."""
    group, first, rest = path[0].idx, path[1], path[2:]
    if group == 1:
        return f"{first.key}{jax.tree_util.keystr(rest)}"
    index: int = first.idx
    name = names[index] if index < len(names) else f"args[{index}]"
    return name + jax.tree_util.keystr(rest)


def parameters(f: Callable[..., Any]) -> list[str]:
    """Names for the positional arguments of a function, where it tells."""
    try:
        own = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in own if one.kind in named]


def is_open(f: Callable[..., Any]) -> bool:
    """Whether a function takes any number of positional arguments, or does not tell."""
    try:
        own = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in own)


def keywords(f: Callable[..., Any]) -> list[str] | None:
    """What a function takes by name; None if that is anything, or not told."""
    try:
        own = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own):
        return None
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in own if one.kind in named]


def is_object(nnx: Any, x: Any) -> bool:
    """Whether this is an NNX object, to be taken apart as a whole."""
    return isinstance(x, nnx.Pytree | nnx.Variable)


def _objects(nnx: Any, tree: Any) -> list[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: is_object(nnx, x))
    return [leaf for leaf in leaves if is_object(nnx, leaf)]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Given:
    """In a result: the object that was given as an argument, by its number."""

    index: int


def _split_out(nnx: Any, out: Any, given: Sequence[Any]) -> Any:
    """Objects that `f` returns travel as graph and state; all else as it is."""
    number = {id(one): index for index, one in enumerate(given)}

    def mark(leaf: Any) -> Any:
        return Given(number[id(leaf)]) if id(leaf) in number else leaf

    out = jax.tree.map(mark, out, is_leaf=lambda x: is_object(nnx, x))
    return nnx.split(out) if _objects(nnx, out) else (None, out)


def _merge_out(nnx: Any, parts: Any, objects: Sequence[Any]) -> Any:
    graph, out = parts
    out = out if graph is None else nnx.merge(graph, out)

    def restore(leaf: Any) -> Any:
        return objects[leaf.index] if isinstance(leaf, Given) else leaf

    return jax.tree.map(restore, out, is_leaf=lambda x: isinstance(x, Given) or is_object(nnx, x))
