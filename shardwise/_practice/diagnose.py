"""Find the pitfall of a wrong solution.

The evidence, in decreasing order of certainty: how a run ended, the calls that were recorded, the
numbers of a known mistake, a missing requirement, and by how much the numbers are wrong.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from .._base import error_texts as texts
from . import compare
from .exercise import Exercise
from .sandbox.host import Ran

REFUSED = "may differ between devices along"
"""How an error says that results differ for which `out_specs` promise one value."""

ERRORS: tuple[tuple[str, str], ...] = (
    (r"^DeadlockError\b", "deadlock"),
    (
        rf"{texts.AXIS_DIFFERS}|of a value .* that differs along .* but is the same along",
        "mixed-axes",
    ),
    (r"Missing required argument `grads`|update requires both \(model, grads\)", "old-update"),
    (texts.UNEQUAL_SHAPES, "stack-shapes"),
    (
        r"^PermissionError\b|\[Errno (1|13|30)\]|Operation not permitted|Read-only file system",
        "refused",
    ),
    (r"^SystemExit\b|^KeyboardInterrupt\b|^GeneratorExit\b", "ends-the-process"),
    (rf"^MemoryError\b|{texts.NO_MEMORY}", "too-much-memory"),
    (r"File too large|No space left on device", "too-much-output"),
    (r"^NotImplementedError: *$", "not-started"),
    (
        r"there is no mesh axis|refers to '\w+', which is not an axis"
        rf"|{texts.UNKNOWN_AXIS}",
        "axis-name",
    ),
    (r"missing .*argument:? '?wrt|missing .*'wrt'|wrt.* (must|required)", "no-wrt"),
    (rf"{texts.NO_MESH}|has no mesh, and there is none", "no-mesh"),
    (texts.OTHER_SHARDING, "explicit-mesh"),
    (rf"{texts.NOT_REPLICATED}|{REFUSED}", "missing-reduction"),
    (texts.UNEVEN, "uneven"),
    (texts.OTHER_RANK, "out-rank"),
    (texts.OTHER_STRUCTURE, "spec-count"),
    (texts.NOT_AN_INTEGER, "not-an-int"),
    (texts.CONCRETE_NEEDED, "traced-if"),
    (texts.OTHER_VARYING_AXES, "mismatched-types"),
    (r"^TypeError: \w+\(\) (missing|takes|got an unexpected)", "signature"),
)
"""Patterns in the text of an error, and the pitfall of each; the first match counts."""


def of_error(error: Mapping[str, Any], function: str = "") -> str:
    """Return the pitfall of an exception."""
    kinds = [error.get("type", ""), *error.get("kinds", ())]
    text = f"{error.get('type')}: {error.get('message', '')}"
    if "DeadlockError" in kinds:
        return "deadlock"
    if "PermissionError" in kinds:
        return "refused"
    for pattern, name in ERRORS:
        if re.search(pattern, text, re.MULTILINE):
            names_function = re.search(rf"\b{re.escape(function)}\(\)", text) if function else None
            if name == "signature" and not names_function:
                continue
            return name
    return "raises"


def of_ending(ran: Ran) -> tuple[str, str] | None:
    """Return the pitfall of a run without an answer, and a sentence that explains it."""
    if ran.data is not None:
        return None
    if ran.flooded:
        return "too-much-output", "It was stopped because it printed too much."
    if ran.garbled:
        return "tampered", "Something came back from the run that is no answer of the judge's own."
    if ran.skipped:
        return "too-slow", "It was not run: another run did not come to an end."
    if ran.late:
        return (
            "too-slow",
            f"It was stopped after {ran.seconds:.0f} seconds, {ran.cpu:.0f} of them computing.",
        )
    if ran.code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS) and _hungry(ran):
        return "too-much-memory", "It was stopped when there was no memory left for it."
    if ran.code < 0:
        name = signal.Signals(-ran.code).name if -ran.code in set(signal.Signals) else -ran.code
        return "ends-the-process", f"The process was ended by a signal ({name})."
    return "ends-the-process", f"The process ended by itself, with exit code {ran.code}."


def _hungry(ran: Ran) -> bool:
    return bool(re.search(r"bad_alloc|out of memory|alloc|Resource temporarily", ran.printed, re.I))


def of_numbers(
    outcomes: Sequence[tuple[Mapping[str, int], Any, Any]],
    mistakes: Sequence[Mapping[str, Any]],
) -> str:
    """Return the pitfall of wrong results: sizes, found and expected result for each run."""
    wrong = [
        (sizes, result, expected, known)
        for (sizes, result, expected), known in zip(outcomes, mistakes, strict=True)
        if not compare.same(result, expected)
    ]
    for name in {name: None for _, _, _, known in wrong for name in known}:
        if all(name in k and compare.same(f, k[name]) for _, f, _, k in wrong):
            return name.partition("--")[0]
    _, result, expected, _ = wrong[-1]
    kind = compare.difference(result, expected)
    alone = any(math.prod(s.values()) == 1 for s, *_ in wrong)
    if result is None:
        return "not-started"
    if kind == "kind":
        return "not-an-array"
    if kind == "shape":
        return "wrong-shape"
    if kind == "finite":
        return "not-finite"
    if alone:
        return "one-device"
    return _by_factor(wrong) or "follows-the-mesh"


def _by_factor(wrong: Sequence[tuple[Mapping[str, int], Any, Any, Any]]) -> str:
    """Return the pitfall of results wrong by a factor of the number of devices on every mesh."""
    times = [(compare.factor(f, e), math.prod(s.values()), s) for s, f, e, _ in wrong]
    if any(t is None for t, _, _ in times):
        return ""
    for name, sign in (("n-times", 1), ("one-nth", -1)):
        if all(
            any(abs((t or 0) / float(n) ** sign - 1) < 1e-3 for n in {n, *s.values()} if n > 1)
            for t, n, s in times
        ):
            return name
    return ""


def of_requirements(exercise: Exercise, facts: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """Return the pitfall of the first requirement that is not met on this mesh."""
    for what, pitfall in exercise.requires:
        if not met(what, facts, sizes):
            return pitfall
    return ""


def met(what: str, facts: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
    """Return whether a requirement is met: `shard_map`, `split`, `psum|pmax`, `not all_gather`."""
    if what.startswith("not "):
        return not met(what.removeprefix("not "), facts, sizes)
    count = math.prod(sizes.values())
    maps = [
        entry for entry in facts.get("shard_maps", ()) if math.prod(entry["mesh"].values()) >= count
    ]
    if what == "shard_map":
        return bool(maps)
    if what == "split":
        return any(entry["split"] for entry in maps)
    if what.startswith("split:"):
        return any(what.removeprefix("split:") in entry["split"] for entry in maps)
    if what == "unchecked":
        return any(not entry["checked"] for entry in maps)
    if what == "vmap":
        return bool(facts.get("vmaps"))
    used = {entry["name"] for m in facts.get("shard_maps", ()) for entry in m["collectives"]}
    return bool(used & set(what.split("|")))
