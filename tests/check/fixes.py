"""How many wrong programs get a fix, and whether the fixes are right on real devices.

    python -m tests.check.fixes [--jobs N] [--mutants N] [--journal FILE] [FILE.py ...]

Programs: the corpus, N mutants of the gallery, and the cases of the files named. A fix is applied
to a copy of the source, the copy is executed, and its results on real (virtual CPU) devices are
compared with those of the original program on one device.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import concurrent.futures.process
import copy
import dataclasses
import difflib
import functools
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.devices import request_devices

DEVICES = 16


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one wrong program."""

    name: str
    verified: str = ""
    """How the fix was verified; empty where there is none."""
    right: bool = False
    """Whether the edited program is right on real devices."""
    on_line: bool = True
    """Whether a finding names a line that was made wrong."""
    on_fix: bool = False
    """Whether a finding names a line that a right fix changes."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """CPU time of the check alone, and with the search for a fix."""
    description: str = ""


def outcome(
    name: str,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: Any,
    edited: Callable[[str], Callable[..., Any]],
    lines: set[int],
    **options: Any,
) -> Outcome:
    """Check a wrong program, and run what its fix makes of it on real devices."""
    from shardwise import ShardingError
    from shardwise._analysis.check import examine, wanted_meshes
    from shardwise._analysis.fixes.rejected import fixed_if_rejected
    from shardwise._analysis.fixes.search import fixed
    from shardwise._engine.static import Static

    meshes = wanted_meshes(mesh, "check", args)
    reference, rest = options.get("reference"), (None, Static.of(None, None))
    start = time.process_time()
    try:
        examined = examine(f, args, meshes, reference, rest)
        middle = time.process_time()
        verdict = fixed(examined, f, meshes, reference, rest)
    except ShardingError as error:  # JAX rejects the program on one of the meshes
        middle = time.process_time()
        verdict = fixed_if_rejected(error, f, args, meshes, reference, rest)
        if verdict is None:
            raise
    seconds = middle - start, time.process_time() - start
    if verdict.ok:
        return Outcome(f"{name} (right)", seconds=seconds)
    found = {one.where.line for one in verdict.findings if one.certain}
    fix = next((one.fix for one in verdict.findings if one.fix), None)
    on_line = bool(found & lines) or not lines
    if fix is None:
        return Outcome(name, on_line=on_line, seconds=seconds)
    right = is_right(edited(fix.after), f, args, mesh, options.get("reference"))
    on_fix = right and bool(found & changed_lines(fix.after, fix.before))
    return Outcome(name, fix.verified, right, on_line, on_fix, seconds, fix.description)


def is_right(
    edited: Callable[..., Any], f: Callable[..., Any], args: Any, mesh: Any, reference: Any
) -> bool:
    """Whether an edited program gives on real devices what the original gives on one."""
    import jax

    from shardwise._analysis.check import expand
    from tests.support import assert_same, real_mesh

    meshes = [dict(one.shape) for one in expand(mesh)]
    ones = dict.fromkeys(meshes[0], 1)
    want = reference(*args) if reference else on_real(f, args, real_mesh(**ones))
    try:
        for sizes in [ones, *meshes]:
            assert_same(on_real(edited, args, real_mesh(**sizes)), want)
    except (AssertionError, jax.errors.JaxRuntimeError, ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return False
    return True


def on_real(f: Callable[..., Any], args: Any, mesh: Any) -> Any:
    """Run a program on real devices."""
    import jax

    return jax.device_get(jax.jit(functools.partial(f, mesh=mesh))(*args))


def of_corpus(name: str) -> Outcome:
    """Judge one program of the corpus."""
    from .corpus import PAIRS, pairs

    pair = {str(one): one for one in pairs()}[name]
    module = sys.modules[pair.wrong.__module__]

    def edited(text: str) -> Callable[..., Any]:
        names = {"__name__": module.__name__, "__package__": module.__package__}
        known = {**PAIRS}
        exec(compile(text, str(module.__file__), "exec"), names)
        PAIRS.update(known)  # the edited file has declared all its programs again
        return names[pair.name].wrong  # pyright: ignore

    return outcome(name, pair.wrong, pair.args(), pair.mesh, edited, pair.lines)


def of_mutant(number: int) -> Outcome:
    """Judge one mutant of the gallery, as a file of its own."""
    from . import mutate

    mutant = all_mutants()[number]
    text, lines = mutated(mutant)
    module, _ = mutate.original(mutant.example)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{mutant.example}_mutant.py")
        file.write_text(text)
        changed = load(file)
        try:
            if mutate.same(mutate.on_devices(changed), mutate.original(mutant.example)[1]):
                return Outcome(f"{mutant} (unchanged)")
        except Exception as error:  # whatever JAX says when it rejects a program
            return Outcome(f"{mutant} (rejected: {type(error).__name__})")
        shape = mutate.SHAPES[len(module.AXES)]
        sizes = dict(zip(module.AXES, shape, strict=True))
        args = tuple(module.example_args())

        def edited(text: str) -> Callable[..., Any]:
            again = Path(folder, f"{mutant.example}_fixed.py")
            again.write_text(text)
            return load(again).step

        try:
            return outcome(
                str(mutant), changed.step, args, sizes, edited, lines, reference=module.reference
            )
        except Exception as error:
            return Outcome(f"{mutant} (could not be checked: {type(error).__name__})")


def mutated(mutant: Any) -> tuple[str, set[int]]:
    """Return the source of a mutant, and the lines that differ from the program's."""
    from shardwise._analysis.fixes.source import Edit, Source

    from . import mutate

    file = mutate.EXAMPLES / f"{mutant.example}.py"
    source = Source(str(file), file.read_text())
    nodes = [*ast.walk(source.tree)]
    old: Any = nodes[mutant.number]
    edits = [source.replace(old, ast.unparse(mutant.change(copy.deepcopy(old))))]
    for node in nodes if not mutant.checked else ():
        if isinstance(node, ast.Call) and mutate._name(node) == "shard_map":
            end = source.span(node)[1] - 1
            edits.append(Edit(end, end, ", check_vma=False"))
    return source.applied(edits), {*range(old.lineno, old.end_lineno + 1)}


@functools.cache
def all_mutants() -> list[Any]:
    from . import mutate

    return [one for example in mutate.examples() for one in mutate.mutants(example)]


def of_file(path: str) -> Outcome:
    """Judge the first case of a file."""
    module = load(Path(path))
    case = next(x for x in vars(module).values() if getattr(x, "__shardwise_case__", False))
    f, args = case()

    def edited(text: str) -> Callable[..., Any]:
        with tempfile.TemporaryDirectory() as folder:
            again = Path(folder, Path(path).name)
            again.write_text(text)
            return getattr(load(again), f.__name__)

    lines = _lines_unlike(Path(path), Path(path).with_name("good.py"))
    return outcome(path, f, tuple(args), case.mesh, edited, lines, **case.options)


def _lines_unlike(file: Path, good: Path) -> set[int]:
    """Return the lines of a file at which it differs from the right program beside it."""
    if not good.exists():
        return set()
    return changed_lines(*(each.read_text().partition("if __name__")[0] for each in (good, file)))


def changed_lines(before: str, after: str) -> set[int]:
    """Return the lines of the second text that differ from the first."""
    texts = before.splitlines(), after.splitlines()
    changes = difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes()
    return {
        line + 1
        for kind, _, _, start, end in changes
        if kind != "equal"
        for line in range(start, max(end, start + 1))
    }


def load(file: Path) -> types.ModuleType:
    """Import a file."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


Job = tuple[Callable[[Any], Outcome], Any]


def _outcomes(jobs: Sequence[Job], workers: int) -> Iterator[tuple[str, Any, Outcome]]:
    """Yield what becomes of each program; one that ends its process does not cost the others."""
    left = dict(enumerate(jobs))
    for _ in range(ATTEMPTS):
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, request_devices, (DEVICES,))
        with pool:
            futures = {pool.submit(judge, given): at for at, (judge, given) in left.items()}
            for future in concurrent.futures.as_completed(futures):
                at = futures[future]
                judge, given = jobs[at]
                try:
                    one = future.result()
                except concurrent.futures.process.BrokenProcessPool:
                    continue
                except Exception as error:
                    text = str(error).splitlines()[0][:99] if str(error) else ""
                    one = Outcome(f"{given} ({type(error).__name__}: {text})")
                del left[at]
                yield judge.__name__, given, one
        if not left:
            return
    for judge, given in left.values():
        yield judge.__name__, given, Outcome(f"{given} (its process ended)")


ATTEMPTS = 4


def _journal(file: str | None) -> dict[str, tuple[str, Outcome]]:
    """Return the outcomes that a file has."""
    kept = {}
    path = Path(file) if file else None
    for line in path.read_text().splitlines() if path and path.exists() else ():
        row = json.loads(line)
        judge, given = row.pop("judge"), row.pop("given")
        kept[f"{judge} {given}"] = judge, Outcome(**{**row, "seconds": tuple(row["seconds"])})
    return kept


def main() -> int:
    """Print an outcome for each program, and the sums; 1 if a fix is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="files with cases, besides corpus and mutants")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--mutants", type=int, default=50, help="mutants that change a result (50)")
    parser.add_argument("--no-corpus", action="store_true", help="leave the corpus out")
    parser.add_argument("--journal", help="outcomes are kept here; those in it are not repeated")
    asked = parser.parse_args()
    request_devices(DEVICES)
    from .corpus import pairs

    jobs: list[tuple[Callable[[Any], Outcome], Any]] = [(of_file, one) for one in asked.files]
    if not asked.no_corpus:
        jobs += [(of_corpus, str(one)) for one in pairs()]
    step = max(1, len(all_mutants()) // max(1, 3 * asked.mutants))
    if asked.mutants:
        jobs += [(of_mutant, number) for number in range(0, len(all_mutants()), step)]
    kept = _journal(asked.journal)
    jobs = [(judge, given) for judge, given in jobs if f"{judge.__name__} {given}" not in kept]
    sums: dict[str, list[Outcome]] = {}
    for judge, one in [*kept.values()]:
        if not one.name.endswith(")"):
            sums.setdefault(judge, []).append(one)
    for judge, given, one in _outcomes(jobs, asked.jobs):
        if asked.journal:
            row = {"judge": judge, "given": given, **dataclasses.asdict(one)}
            with Path(asked.journal).open("a") as file:
                file.write(json.dumps(row) + "\n")
        if not one.name.endswith(")"):
            sums.setdefault(judge, []).append(one)
        verdict = "" if not one.verified else "right" if one.right else "WRONG"
        line = "" if one.on_line else " (line of the fix)" if one.on_fix else " (other line)"
        times = f"{one.seconds[0]:.1f} + {one.seconds[1] - one.seconds[0]:.1f} s"
        print(
            f"{one.name}: {one.verified or 'no fix'} {verdict} {times}{line} {one.description}",
            flush=True,
        )
    print()
    for kind, rows in sums.items():
        count = sum(bool(one.verified) for one in rows)
        right = sum(one.right for one in rows)
        lines = sum(one.on_line for one in rows)
        either = sum(one.on_line or one.on_fix for one in rows)
        extra = sum(max(0.0, one.seconds[1] - one.seconds[0]) for one in rows)
        alone = sum(one.seconds[0] for one in rows)
        print(
            f"{kind[3:]:8} {len(rows)} wrong, {count} ({count / len(rows):.0%}) with a fix, "
            f"{right} of {count} fixes right on real devices, {lines} with the line that was made "
            f"wrong, {either} with that or one that a right fix changes; "
            f"the search takes {extra / alone:.2f} of the check"
        )
    return int(any(one.verified and not one.right for rows in sums.values() for one in rows))


if __name__ == "__main__":
    sys.exit(main())
