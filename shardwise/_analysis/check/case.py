"""`@sw.case`: a program with arguments and meshes, declared for the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ..._base.calls import public
from ..._base.errors import ArgumentError, ShardwiseError, a_type, caller, name_of
from ..._engine.static import Static
from ..._mesh import AbstractMesh, Mesh
from .every import AnySize
from .options import Sizes, expand, refused


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function that returns `(f, args)`, and the meshes on which to check `f`."""

    make: Callable[[], tuple[Callable[..., Any], Sequence[Any]]]
    mesh: Sizes
    options: Mapping[str, Any]
    explain: Callable[[], tuple[Callable[..., Any], Sequence[Any]]] | None = None
    """Returns the program to explain, at full size; by default the checked program is explained."""
    explain_mesh: Mapping[str, int] | None = None
    refused: ShardwiseError | None = None
    """The error in the declaration, kept instead of raised while cases are collected."""

    __shardwise_case__ = True
    """Marks a case, so that it is rejected where a program is expected."""

    @property
    def name(self) -> str:
        """The name of the declaring function."""
        return name_of(self.make)

    @property
    def module(self) -> str:
        """The module of that function."""
        return self.make.__module__

    @property
    def line(self) -> int:
        """The line of the declaration."""
        code = getattr(self.make, "__code__", None)
        return code.co_firstlineno if code else 1

    def meshes(self, f: Callable[..., Any], args: Sequence[Any]) -> list[AbstractMesh]:
        """Return the meshes to run the program on, the smallest first."""
        any_size = AnySize.of(self.mesh, "case")
        if any_size is None:
            return expand(self.mesh, "case")
        static = Static.of(*(self.options.get(f"static_arg{kind}") for kind in ("nums", "names")))
        return any_size.small(f, tuple(args), (self.options.get("in_specs"), static))[0]

    def __call__(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        return self.make()


DECLARED: list[Case] = []
"""All cases, including those whose name a later one in the same module took over."""


@public("sw.case")
def case(
    *misplaced: Any,
    mesh: Any = None,
    explain: Callable[[], Any] | None = None,
    explain_mesh: Mapping[str, int] | None = None,
    **options: Any,
) -> Callable[[Callable[[], Any]], Case]:
    """Declare a case for `shardwise check`, `prove`, `inspect` and `explain`.

    Args:
        mesh: Axis names, each with a size, a list of sizes or a letter, as in `check` and `prove`;
            or a mesh, which has one size for each axis.
        explain: A function that returns `(f, args)` for `shardwise explain`, for example with
            shapes of full size. By default, the checked program is explained.
        explain_mesh: The mesh to explain it on, with one size for each axis. By default, the
            largest of `mesh`.
        **options: Further options of `check`: `reference`, `rtol`, `atol`, `seed`, `in_specs`,
            `static_argnums`, `static_argnames`.

    Raises:
        ShardwiseError: There is no mesh (for example `@sw.case` without parentheses), `explain` is
            not a function, or `explain_mesh` has several sizes for an axis.

    Example:
        ```python
        import shardwise as sw

        @sw.case(mesh={"data": [1, 2, 4, 8]})
        def training_step():
            return step, (params, batch)
        ```

        Checked on small arrays, explained at full size:

        ```python
        def large():
            return step, (shapes_of_params, jax.ShapeDtypeStruct((65536, 4096), "bfloat16"))

        @sw.case(mesh={"data": [1, 2, 4, 8]}, explain=large, explain_mesh={"data": 256})
        def training_step():
            return step, (params, batch)
        ```
    """
    if isinstance(mesh, Mesh | AbstractMesh):
        mesh = {str(name): size for name, size in mesh.shape.items()}
    refused = None
    try:
        _refuse_no_mesh(misplaced, mesh)
        _refuse_wrong(explain, explain_mesh)
        _refuse_unknown(options)
    except ShardwiseError as error:
        if not _collecting.get():
            raise
        refused = error

    def declare(make: Callable[[], Any]) -> Case:
        _refuse_no_function(make)
        DECLARED.append(Case(make, mesh, options, explain, explain_mesh, refused))
        return DECLARED[-1]

    if refused and misplaced and callable(misplaced[0]):
        return declare(misplaced[0])  # pyright: ignore[reportReturnType]
    return declare


_collecting: ContextVar[bool] = ContextVar("collecting", default=False)


@contextlib.contextmanager
def collecting() -> Iterator[None]:
    """Store errors in declarations on the cases instead of raising, so that the others run."""
    token = _collecting.set(True)
    try:
        yield
    finally:
        _collecting.reset(token)


def _refuse_no_mesh(misplaced: Sequence[Any], mesh: Any) -> None:
    """Raise an error that says what was passed instead of a mesh."""
    if misplaced or not isinstance(mesh, Mapping) or not mesh:
        what = "it has no mesh" if mesh is None else f"its mesh is {mesh!r}"
        if misplaced:
            bare = callable(misplaced[0])
            what = "it has no parentheses" if bare else "it has positional arguments"
        raise _refused(
            what,
            "A case names the axes and the sizes to try; the function that follows returns what to "
            "check, and its arguments.",
            '@sw.case(mesh={"data": [1, 2, 4, 8]}), and below it '
            "def training_step(): return step, (params, batch)",
        )

    try:
        if AnySize.of(mesh, "case") is None:
            expand(mesh)
    except ShardwiseError as error:
        raise type(error)(f"{_where()}: {str(error).removeprefix('sw.case: ')}") from None


def _where() -> str:
    """Return the line of the caller: one file may declare many cases."""
    return ": ".join(filter(None, (caller(), "sw.case")))


def _refused(
    what: str, rule: str, remedy: str, kind: type[ShardwiseError] = ShardwiseError
) -> ShardwiseError:
    return refused(what, rule, remedy, kind, _where())


def _refuse_no_function(make: Any) -> None:
    """Raise unless the decorated object is a function with a name, and not a case already."""
    if not callable(make) or not hasattr(make, "__name__"):
        is_case = isinstance(make, Case)
        raise _refused(
            "it stands above another sw.case" if is_case else f"it decorates {a_type(make)}",
            "It decorates a function without arguments, which returns (f, args).",
            "one case for one function: def training_step(): return step, (params, batch)",
        )


OPTIONS = ("reference", "rtol", "atol", "seed", "in_specs", "static_argnums", "static_argnames")
"""The options that a case passes to `check`."""


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise at the declaration for options that `check` does not accept."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        matches = difflib.get_close_matches(unknown[0], [*OPTIONS, "explain", "explain_mesh"], n=1)
        raise _refused(
            f"there is no argument {', '.join(f'{name}=' for name in unknown)}",
            "It takes by name mesh=, explain=, explain_mesh=, and options of check: "
            f"{', '.join(f'{name}=' for name in OPTIONS)}.",
            f"did you mean {matches[0]}=?"
            if matches
            else "the arguments of the program are what the case returns: return f, (x,)",
            ArgumentError,
        )


def _refuse_wrong(explain: Any, mesh: Any) -> None:
    """Raise at the declaration, not only at `shardwise explain`, if `explain` is invalid."""
    if explain is not None and not callable(explain):
        raise _refused(
            f"explain is {type(explain).__name__}",
            "It is a function without arguments that returns (f, args).",
            "explain=lambda: (step, (params, batch))",
            ArgumentError,
        )
    sizes = mesh.values() if isinstance(mesh, Mapping) else [None]
    if mesh is not None and not (sizes and all(type(size) is int and size > 0 for size in sizes)):
        raise _refused(
            f"explain_mesh is {mesh!r}",
            "A program is explained on one mesh: a dict with one size for each axis.",
            'explain_mesh={"data": 256}',
            ArgumentError,
        )
