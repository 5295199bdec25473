"""Find the cases that files and folders declare, importing as few files as possible."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._base.calls import binds
from .._base.errors import ArgumentError, ShardwiseError, did_you_mean, explain_error, name_of

if TYPE_CHECKING:
    from .._analysis.check import Case

HOW = """import shardwise as sw

    @sw.case(mesh={"data": [1, 2, 4, 8]})
    def training_step():
        return step, (params, batch)"""


@dataclasses.dataclass(frozen=True)
class LocatedCase:
    """A case and its file; or, without a case, the error from importing the file."""

    file: Path
    case: Case | None = None
    error: BaseException | None = None

    @property
    def name(self) -> str:
        """The name of the case: `train.py:training_step`."""
        return f"{shown(self.file)}:{self.case.name}" if self.case else shown(self.file)

    @property
    def line(self) -> int:
        """Where it is declared."""
        return self.case.line if self.case else 1

    @property
    def place(self) -> tuple[str, int]:
        """The file and the line."""
        return str(self.file), self.line


def find_cases(targets: list[str]) -> list[LocatedCase]:
    """Return all cases of the files and folders named, each once.

    Raises:
        ShardwiseError: A target does not exist, or declares no case.
    """
    cases: dict[Any, LocatedCase] = {}
    for target in targets:
        for case in _cases_of(target):
            cases.setdefault((case.file, id(case.case) if case.case else str(case.error)), case)
    return list(cases.values())


def shown(file: Path | str) -> str:
    """Return a path relative to the working directory, if it is below it."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except ValueError:
        return str(path)


def _cases_of(target: str) -> list[LocatedCase]:
    place, name = split_target(target)
    path = Path(place)
    if path.is_dir() and not name:
        return _cases_below(path)
    if not path.is_file():
        near = f"did you mean {place}.py?" if Path(f"{place}.py").is_file() else ""
        raise _wrong(target, "there is no such file or folder.", near)
    if path.suffix != ".py":
        raise _wrong(target, "this is not a Python file.")
    cases = _cases_in(path.resolve())
    if not cases:
        raise _no_cases(
            target, sorted({case.module for case in _cases_named_in(load(path.resolve()))})
        )
    return _named(cases, name, target) if name else cases


def split_target(target: str) -> tuple[str, str]:
    """Split a target into a file and the name of a case; `::` as in pytest is accepted too."""
    match = re.fullmatch(r"(.+\.py)::?([^:]+)", target)
    return (match[1], match[2]) if match else (target, "")


def _named(cases: list[LocatedCase], name: str, target: str) -> list[LocatedCase]:
    if cases[0].error:
        return cases
    names = [entry.case.name for entry in cases if entry.case]
    chosen = [entry for entry in cases if entry.case and entry.case.name == name]
    if not chosen:
        hint = did_you_mean(name, names) or f"name one of {', '.join(names)}."
        raise _wrong(target, f"there is no case {name!r} in this file.", remedy=hint)
    # Include the error about a second case of that name.
    return chosen + [entry for entry in cases if entry.error and repr(name) in str(entry.error)]


def _cases_below(folder: Path) -> list[LocatedCase]:
    files = declaring(sorted(python_files(folder.resolve())))
    cases = [case for file in files for case in _cases_in(file)]
    if not cases:
        raise _no_cases(str(folder))
    return cases


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, without installed packages."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _skipped(Path(root, name))]
        yield from (Path(root, name) for name in files if name.endswith(".py"))


def _skipped(folder: Path) -> bool:
    """Return whether a folder is hidden, a virtual environment or has installed packages."""
    foreign = folder.name in {"__pycache__", "node_modules", "site-packages"}
    return foreign or folder.name.startswith(".") or (folder / "pyvenv.cfg").exists()


def declaring(files: Sequence[Path]) -> list[Path]:
    """Return the files whose source declares cases; other files are not imported.

    A file declares cases if it uses `sw.case`, or a decorator imported from such a file: `from
    helpers import case`.
    """
    sharing = {file for file in files if declares_cases(file)}
    rest = {file: tree for file in files if file not in sharing and (tree := _parsed(file))}
    while more := {file for file, tree in rest.items() if _decorates(tree, sharing)} - sharing:
        sharing |= more
    return [file for file in files if file in sharing]


def declares_cases(file: Path) -> bool:
    """Return whether a file names `sw.case`, or imports it by its name."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if "shardwise" not in text or not re.search(r"\bcase\b", text):
        return False
    tree = _parsed(file)
    # A file that cannot be parsed is imported, so that its error is reported.
    return tree is None or any(map(_names_case, ast.walk(tree)))


def _parsed(file: Path) -> ast.AST | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return None


def _names_case(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "shardwise" and any(alias.name == "case" for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr == "case"


def _decorates(tree: ast.AST, sharing: Collection[Path]) -> bool:
    """Return whether a file decorates a function with a name imported from one of those files."""
    modules = {file.parent.name if file.stem == "__init__" else file.stem for file in sharing}
    nodes = list(ast.walk(tree))
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = (getattr(node, "module", None) or "").rpartition(".")[2]
            names = node.names
            shared = [n for n in names if {source, n.name.rpartition(".")[2]} & modules]
            imported |= {n.asname or n.name.partition(".")[0] for n in shared}
    used = {
        name.id
        for node in nodes
        for decorator in getattr(node, "decorator_list", ())
        for name in ast.walk(decorator)
        if isinstance(name, ast.Name)
    }
    return bool(used & imported) or ("*" in imported and bool(used))


def _cases_in(file: Path) -> list[LocatedCase]:
    try:
        module = load(file)
    except (Exception, SystemExit) as error:
        return [LocatedCase(file, error=error)]
    cases = [case for case in _cases_named_in(module) if case.module == module.__name__]
    return [*(LocatedCase(file, case) for case in cases), *_hidden(file, module, cases)]


def _cases_named_in(module: ModuleType) -> list[Case]:
    """Return the cases in the namespace of a module, each once, including imported ones."""
    from .._analysis.check import Case

    return list({id(x): x for x in vars(module).values() if isinstance(x, Case)}.values())


def _hidden(file: Path, module: ModuleType, visible: list[Case]) -> Iterator[LocatedCase]:
    """Yield errors for cases that no name of the module refers to."""
    from .._analysis.check import DECLARED

    lines, reached = {case.name: case.line for case in visible}, {id(case) for case in visible}
    for case in DECLARED:
        # A module that is imported again declares its cases again.
        before = getattr(case.make, "__globals__", vars(module)) is not vars(module)
        if case.module != module.__name__ or before or id(case) in reached:
            continue
        if case.name in lines:
            first = lines[case.name]
            at = f"lines {case.line} and {first}" if case.line != first else f"line {first}"
            what = f"two cases are named {case.name!r}, in {at}."
            rule = "In a Python file the second definition of a name replaces the first."
            remedy = "give them two names."
        else:
            what = (
                f"case {case.name!r} in line {case.line} is inside a class or a function, or its "
                "name is reassigned later in the file."
            )
            rule = "A case is found by its name in the file."
            remedy = "declare it at the top level, and keep its name."
        words = explain_error(what, where=shown(file), rule=rule, remedy=remedy)
        yield LocatedCase(file, error=ShardwiseError(words))


def load(file: Path) -> ModuleType:
    """Import a file under its usual module name, with its folder on the path."""
    root, name = _module_name(file)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    # Another module of this name may be imported already.
    for free in (name, re.sub(r"\W", "_", str(file))):
        known = sys.modules.get(free)
        if known is None:
            return _execute(file, free)
        if getattr(known, "__file__", None) == str(file):
            return known
    raise ImportError(f"a module named {name!r} is imported already")


def _execute(file: Path, name: str) -> ModuleType:
    from .._analysis.check import collecting

    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with collecting():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(file: Path) -> tuple[Path, str]:
    """Return the folder to put on `sys.path` and the module name, including packages."""
    root, parts = file.parent, [file.stem] if file.stem != "__init__" else []
    while (root / "__init__.py").exists() and root.parent != root:
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def program_of(
    case: Case, explained: Callable[[], Any] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and the arguments of a case, or of its `explain=`."""
    if case.refused is not None:
        raise case.refused
    where = f"{_place(case)}: case {case.name!r}" + (", explain" if explained else "")
    make: Any = explained or case.make
    if refusal := binds(make, []):
        raise ArgumentError(
            f"{name_of(make)}() cannot be called without arguments: {refusal}",
            where=where,
            rule="A case takes no arguments: it returns the program and its arguments.",
            remedy=f"def {case.name}(): return f, (x,)",
        )
    result: Any = make()
    if not isinstance(result, tuple) or len(result) != 2 or not callable(result[0]):
        got = f"it returns {type(result).__name__}"
    elif not isinstance(result[1], tuple | list):
        got = f"the arguments are {type(result[1]).__name__}"
    else:
        return result[0], tuple(result[1])
    raise ShardwiseError(
        f"{got}.",
        where=where,
        rule="A case returns (f, args): a function and the tuple of its arguments.",
        remedy="return f, (x,)",
    )


def _place(case: Case) -> str:
    code = getattr(case.make, "__code__", None)
    return f"{shown(code.co_filename)}:{case.line}" if code else "a file"


def _wrong(target: str, what: str, remedy: str = "") -> ShardwiseError:
    remedy = remedy or "name FILE.py, FILE.py:NAME or a folder."
    return ShardwiseError(what, where=target, remedy=remedy)


def _no_cases(target: str, homes: Sequence[str] = ()) -> ShardwiseError:
    if homes:
        what = f"it only imports cases, which are declared in {', '.join(homes)}."
        return _wrong(target, what, "name the file that declares them.")
    return ShardwiseError(
        "no cases found.",
        where=target,
        rule="A case is a function that returns (f, args), decorated with sw.case.",
        remedy=HOW,
    )
