"""The layers of the package: a row imports only from the rows above it.

The rules are read off the source with `ast`, so that an import inside a function counts too.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "shardwise"

# Each name is a module or a package right under shardwise/.
ROWS = (
    ("_base",),
    ("_jax",),
    ("_mesh",),
    ("_program",),
    ("_meaning",),
    ("_engine",),
    ("_analysis",),
    ("_runtime",),
    ("primitives", "nnx"),
    ("_practice",),
    ("_cli", "_pytest_plugin"),
    ("__main__",),
)

# The packages that hold several parts, and the rows of these.
INSIDE = {
    "_base": (
        ("version", "error_texts", "plain"),
        ("errors",),
        ("calls",),
        ("boxes", "doing", "mesh_argument", "numbers", "pages", "progress"),
        ("durable",),
    ),
    "_engine": (
        ("lower",),
        ("call", "misuse", "nnx_objects", "unused_mesh"),
        ("static", "tree_structure"),
        ("argument_specs",),
        ("tracing",),
        ("simulate",),
    ),
    "_analysis": (
        ("faults", "lift", "compiler"),
        ("draw",),
        ("check", "explain"),
        ("inspect", "prove"),
        ("fixes",),
    ),
    "_runtime": (("launch",), ("hosts",), ("evaluate", "train")),
}


def _numbered(rows: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {name: number for number, names in enumerate(rows) for name in names}


ROW_OF = _numbered(ROWS)
ROW_INSIDE = {package: _numbered(rows) for package, rows in INSIDE.items()}
ENGINE = {"_program", "_meaning", "_engine", "_analysis"}
RUNS_IN_PRODUCTION = {"_runtime"}
TOUCHES_INTERNALS = {"_jax"}
INTERNALS = ("jax._src", "jax.extend", "jax.interpreters")


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name, and whether it is imported with its importer."""

    name: str
    line: int
    eager: bool
    typed: bool = False
    """Whether it is there for types alone, and never runs."""


def broken_rules(package: Path) -> list[str]:
    """Every broken rule of the package in that folder, as `file:line: sentence`."""
    files = sorted(package.rglob("*.py"))
    return [message for file in files for message in _broken_in(file, package)]


def _broken_in(file: Path, package: Path) -> Iterator[str]:
    parts = file.relative_to(package).with_suffix("").parts
    home = parts[0]
    if home == "__init__":
        return
    where = file.relative_to(package.parent)
    if home not in ROW_OF:
        yield f"{where}: {home!r} is in no row. Add it to ROWS in tests/test_layers.py."
        return
    part = parts[1] if home in INSIDE else ""
    if part and part != "__init__" and part not in ROW_INSIDE[home]:
        yield f"{where}: {part!r} is in no row of {home}. Add it to INSIDE in tests/test_layers.py."
        return
    tree = _parsed(file.read_text(encoding="utf-8"))
    for found in _imports(tree, parts, package):
        for sentence in _broken_by(found, home, part, package.name):
            yield f"{where}:{found.line}: {sentence}"
    if home not in TOUCHES_INTERNALS:
        for name, line in (*_internals(tree), *_locals(tree, home)):
            yield f"{where}:{line}: only _jax touches {name}; add what is needed there."


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _broken_by(found: Import, home: str, part: str, root: str) -> Iterator[str]:
    top, _, rest = found.name.partition(".")
    if top != root:
        return
    target, _, inner = rest.partition(".")
    if not target:
        yield "imports the package root; import from the module that defines the name."
    elif target == home:
        yield from _broken_inside(home, part, inner.partition(".")[0])
    elif target not in ROW_OF:
        yield f"imports {target!r}, which is in no row. Add it to ROWS in tests/test_layers.py."
    elif ROW_OF[target] >= ROW_OF[home]:
        yield f"{home} imports {target}, which is not in a row above it."
    elif home in RUNS_IN_PRODUCTION and target in ENGINE and found.eager:
        yield f"{home} imports {target} eagerly; import it in the function that simulates."


def _broken_inside(home: str, part: str, target: str) -> Iterator[str]:
    """What an import of another part of one's own package breaks."""
    rows = ROW_INSIDE.get(home, {})
    if rows and not target:
        yield f"imports {home} itself; import from the part that defines the name."
    elif rows and target != part and rows.get(target, len(rows)) >= rows.get(part, -1):
        yield f"{home}.{part} imports {home}.{target}, which is not in a row above it."


def _imports(tree: ast.Module, parts: tuple[str, ...], package: Path) -> Iterator[Import]:
    lazy, typed = _lazy_nodes(tree), _typed_nodes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = _names_of_from(node, parts, package)
        else:
            continue
        for name in names:
            yield Import(name, node.lineno, node not in lazy | typed, node in typed)


def _names_of_from(node: ast.ImportFrom, parts: tuple[str, ...], package: Path) -> list[str]:
    base = _base(node, parts, package)
    folder = package.joinpath(*base.split(".")[1:])
    if base.partition(".")[0] != package.name or folder.name not in {package.name, *INSIDE}:
        return [base]
    return [f"{base}.{a.name}" if _is_module(folder / a.name) else base for a in node.names]


def _base(node: ast.ImportFrom, parts: tuple[str, ...], package: Path) -> str:
    """The module that names are imported from, by its absolute name."""
    if not node.level:
        return node.module or ""
    # For a package's own __init__.py the last part is dropped like any module name, so that
    # one dot means the package in both.
    above = (package.name, *parts)[: -node.level]
    return ".".join((*above, *filter(None, [node.module])))


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or path.is_dir()


def _lazy_nodes(tree: ast.Module) -> set[ast.AST]:
    """What does not run on import: the bodies of functions."""
    return _within(tree, lambda node: isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _typed_nodes(tree: ast.Module) -> set[ast.AST]:
    """What never runs: bodies of `if TYPE_CHECKING`."""
    return _within(
        tree, lambda node: isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    )


def _within(tree: ast.Module, chosen: Callable[[ast.AST], bool]) -> set[ast.AST]:
    return {inner for node in ast.walk(tree) if chosen(node) for inner in ast.walk(node)}


# --- circles


def circles(package: Path) -> list[list[str]]:
    """The groups of modules that import each other in a circle, those inside packages too.

    An import inside a function counts, for what reads one file has to know the other. One for
    types alone does not.
    """
    files = {_name(file, package): file for file in package.rglob("*.py")}
    edges = {name: set(_imported(file, package, files)) - {name} for name, file in files.items()}
    reach = {name: _reached(name, edges) for name in files}
    found = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in files
        if name in reach[name]
    }
    return sorted(map(list, found))


def _name(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, package: Path, files: Container[str]) -> Iterator[str]:
    """The modules of the package that a file imports; a name of a package that is none is the
    package's own."""
    parts = file.relative_to(package).with_suffix("").parts
    tree = _parsed(file.read_text(encoding="utf-8"))
    typed = _typed_nodes(tree)
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, parts, package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in files else base for name in names if base in files)


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    stack = list(edges[start])
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += edges[name]
    return found


def _internals(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Imports of JAX's internals, and attributes that reach into them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        else:
            continue
        for internal in INTERNALS:
            if any(f"{name}.".startswith(f"{internal}.") for name in names):
                yield internal, node.lineno


def _locals(tree: ast.Module, home: str) -> Iterator[tuple[str, int]]:
    """Local variables of frames, which are mostly JAX's; pytest's plugin reads those of a test."""
    for node in ast.walk(tree) if home != "_pytest_plugin" else ():
        if isinstance(node, ast.Attribute) and node.attr == "f_locals":
            yield "the variables of a frame", node.lineno


KNOW_TEXTS = ("_jax/failures.py", "_base/error_texts.py")
"""The modules with texts of errors of JAX and its libraries; the second imports no JAX."""


def error_texts(package: Path) -> list[str]:
    """Return the texts by which errors of JAX, XLA, Gloo and NCCL are recognised."""
    trees = [_parsed((package / name).read_text(encoding="utf-8")) for name in KNOW_TEXTS]
    values = [n.value for tree in trees for n in tree.body if isinstance(n, ast.Assign)]
    names = [node for value in values for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return [str(node.value) for node in names]


def misplaced_texts(package: Path, texts: list[str]) -> list[str]:
    """Return the string literals in other modules that contain such a text."""
    return [
        f"{file.relative_to(package)}:{node.lineno}: {text}"
        for file in sorted(package.rglob("*.py"))
        if file.relative_to(package).parts[0] != "_jax"
        if str(file.relative_to(package)) not in KNOW_TEXTS
        for node in ast.walk(_parsed(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in texts
        if text in node.value
    ]


def test_one_place_knows_the_texts_of_errors():
    """The judge of the exercises reads the errors of another process, Python's among them."""
    texts = error_texts(PACKAGE)
    assert len(texts) > 10, texts
    common = ("ut of memory", "bad_alloc")  # words of messages of our own, and of C++
    found = misplaced_texts(PACKAGE, [text for text in texts if text not in common])
    assert [place for place in found if not place.startswith("_practice/diagnose.py")] == []


def test_a_misplaced_text_is_found(tmp_path):
    package = _write(tmp_path / "shardwise", {"_runtime/a.py": "'NO_ROOM' in str(error)"})
    assert misplaced_texts(package, ["NO_ROOM"]) == ["_runtime/a.py:1: NO_ROOM"]


def test_the_layers_hold():
    assert broken_rules(PACKAGE) == []


def test_the_guide_names_every_module():
    guide = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", guide.partition("## Where things are")[2], re.M)
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    parts = {f"{package}.{name}" for package, rows in ROW_INSIDE.items() for name in rows}
    assert listed == (set(ROW_OF) - set(INSIDE)) | parts


def test_the_top_of_the_package_can_be_read_at_a_glance():
    shown = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(shown) <= 16, sorted(shown)


def test_nothing_imports_itself_round_about():
    assert circles(PACKAGE) == []


def repeated_classes(package: Path) -> dict[str, list[str]]:
    """Return the names that several classes have, with the files that define them."""
    files: dict[str, list[str]] = {}
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(_parsed(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "exercises" not in file.parts:
                files.setdefault(node.name, []).append(str(file.relative_to(package)))
    return {name: found for name, found in files.items() if len(found) > 1}


def test_no_two_classes_have_the_same_name():
    assert repeated_classes(PACKAGE) == {}


def test_a_repeated_class_is_found(tmp_path):
    classes = {"_jax.py": "class A: ...", "_base/errors.py": "def f():\n    class A: ..."}
    package = _write(tmp_path / "shardwise", classes)
    assert repeated_classes(package) == {"A": ["_base/errors.py", "_jax.py"]}


GOOD = {
    "__init__.py": "from ._engine.simulate import simulate as simulate\n",
    "_jax.py": "from jax._src import core\nimport jax.extend.core\n",
    "_base/__init__.py": "",
    "_base/errors.py": "import jax\n",
    "_base/progress.py": "from .errors import E\nfrom . import errors\n",
    "_engine/__init__.py": "",
    "_engine/lower/__init__.py": "from ._walk import walk as walk\nfrom ... import _jax\n",
    "_engine/lower/_walk.py": "from ..._base.errors import E\nfrom . import _rules\n",
    "_engine/lower/_rules.py": "def f():\n    from shardwise._jax import core\n",
    "_engine/simulate.py": "from .lower import walk\nfrom .._base import progress\n",
    "_analysis/check/__init__.py": "from ..lift import x\n",
    "_analysis/lift.py": "",
    "_runtime/train.py": "def run():\n    from .._engine.simulate import simulate\n",
}


def _write(package: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def test_a_good_tree_passes(tmp_path):
    assert broken_rules(_write(tmp_path / "shardwise", GOOD)) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("_base/errors.py", "from .._engine.simulate import s", "_base imports _engine"),
        ("_base/errors.py", "from .progress import p", "_base.errors imports _base.progress"),
        ("_base/errors.py", "from . import progress", "_base.errors imports _base.progress"),
        ("_base/errors.py", "from . import E", "imports _base itself"),
        (
            "_engine/lower/_walk.py",
            "def f():\n    from ..simulate import s",
            "_engine.lower imports _engine.simulate",
        ),
        (
            "_engine/lower/_walk.py",
            "import shardwise._engine.simulate",
            "_engine.lower imports _engine.simulate",
        ),
        (
            "_analysis/check/__init__.py",
            "from ..explain import x",
            "_analysis.check imports _analysis.explain",
        ),
        ("_engine/simulate.py", "import shardwise as sw", "imports the package root"),
        ("_engine/simulate.py", "from shardwise import mesh", "imports the package root"),
        ("_engine/lower/_walk.py", "from ... import mesh", "imports the package root"),
        ("_engine/simulate.py", "from jax._src import core", "only _jax touches jax._src"),
        ("_engine/simulate.py", "from jax import extend", "only _jax touches jax.extend"),
        ("_engine/simulate.py", "import jax\njax.interpreters.ad.x()", "touches jax.interp"),
        ("_engine/simulate.py", "def f(frame):\n    frame.f_locals", "touches the variables"),
        ("_runtime/train.py", "from .._engine.simulate import simulate", "_engine eagerly"),
        ("_new.py", "", "'_new' is in no row. Add it to ROWS in tests/test_layers.py."),
        ("_base/new.py", "", "'new' is in no row of _base. Add it to INSIDE"),
        ("_engine/simulate.py", "from .._new import x", "imports '_new', which is in no row"),
        ("_engine/simulate.py", "from .new import x", "imports _engine.new, which is not in a row"),
    ],
)
def test_a_broken_tree_fails(tmp_path, name, text, message):
    broken = broken_rules(_write(tmp_path / "shardwise", {**GOOD, name: text}))
    assert len(broken) == 1
    assert message in broken[0]
    assert broken[0].startswith(f"shardwise/{name}")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            {"_engine/lower/_rules.py": "def f():\n    from ._walk import walk"},
            ["shardwise._engine.lower._rules", "shardwise._engine.lower._walk"],
        ),
        (
            {"_engine/lower/_rules.py": "from . import walk"},
            [
                "shardwise._engine.lower",
                "shardwise._engine.lower._rules",
                "shardwise._engine.lower._walk",
            ],
        ),
        (
            {
                "_jax.py": "import shardwise._base.errors",
                "_base/errors.py": "from .. import _jax",
            },
            ["shardwise._base.errors", "shardwise._jax"],
        ),
    ],
)
def test_a_circle_is_found(tmp_path, files, found):
    assert circles(_write(tmp_path / "shardwise", {**GOOD, **files})) == [found]


def test_a_type_makes_no_circle(tmp_path):
    files = {"_engine/lower/_rules.py": "if TYPE_CHECKING:\n    from ._walk import walk"}
    package = _write(tmp_path / "shardwise", {**GOOD, **files})
    assert circles(package) == []
    assert broken_rules(package) == []
