"""Find a fix of a program that JAX rejects on a mesh, though it runs on one device.

There is no program on the mesh to analyse, so a stand-in is analysed: the same program without the
check of replicated results, or its results up to the `shard_map` behind which the shapes clash. It
only shows where to look: an edit is a fix if it makes the real program right.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..._base.errors import ShardwiseError, name_of, text_of
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._jax.virtual import EndedEarly, leniently
from ..._mesh import AbstractMesh, one_device
from ..check import Verdict, examine
from ..check.clash import CALL
from ..faults import Rejected, place_of, split_silenced
from ..prove.reading import ReadProgram
from .led import fix_of
from .program import WrongProgram
from .search import Search


def fixed_if_rejected(
    error: ShardwiseError,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
) -> Verdict | None:
    """Return the verdict on a program that is rejected with an error; None if no fix is found."""
    if reference is not None and not callable(reference):
        return None
    call = vars(error).get(CALL)
    stand_in = _lenient(f, call)
    try:
        examined = examine(stand_in, args, meshes, None if call is not None else reference, options)
        if examined.verdict.ok:
            return None
        shown = WrongProgram.of(examined, stand_in, meshes, reference, options)
        plain = shown.plain
        if call is not None:
            ones = one_device(meshes[0])
            right = f if reference is None else reference
            tracing = Tracing(right, ones, *shown.options)
            plain = ReadProgram.of(tracing, ones, shown.args).followed()
        program = dataclasses.replace(shown, f=f, plain=plain)
        search = Search(program, examined.verdict.findings, shown)
        result = search.run()
    except Exception:  # the error that is raised instead says more
        return None
    if result is None:
        return None
    candidate, evidence = result
    first, *_ = (finding for finding in examined.verdict.findings if finding.certain)
    fix = fix_of(candidate, evidence, search.names_of(candidate.source))
    where = candidate.source.where(min(candidate.edits))
    finding = Rejected.from_operations(text_of(error), where, first.mesh)
    finding = dataclasses.replace(finding, fix=fix)
    findings, silenced = split_silenced([finding], place_of(f))
    return dataclasses.replace(
        examined.verdict,
        findings=findings,
        silenced=silenced,
        name=name_of(f),
        # The check of replicated results does not depend on the sizes of the axes.
        wrong_on=examined.verdict.wrong_on if call is not None else (),
        proved_on=(),
    )


def _lenient(f: Callable[..., Any], call: int | None) -> Callable[..., Any]:
    """Return a function that JAX does not reject, whose results are those of a `shard_map`."""

    @functools.wraps(f)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        with leniently(call):
            try:
                return f(*args, **kwargs)
            except EndedEarly as ended:
                return ended.results

    return stand_in
