"""The list of JAX's private names: complete, and a JAX that differs gives one clear error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwise as sw
from shardwise._jax import probe

FOLDER = Path(probe.__file__).parent
LISTED = {f"{module}.{name}" for module, names in probe.NEEDED.items() for name in names}
MOVED = {name for row in probe.ALTERNATIVES for name in row}


def is_private(module: str | None) -> bool:
    return module is not None and (module.startswith("jax._src") or module == "jax.interpreters")


def used(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a file uses: attributes of what it imports from inside JAX."""
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in imports
        if is_private(node.module)
        for alias in node.names
    }
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in modules:
                yield f"{modules[name]}.{attribute}"
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "Patch"),
                args=[ast.Name(id=name), ast.Constant(value=attribute), *_],
            ) if name in modules:
                yield f"{modules[name]}.{attribute}"


def test_every_private_name_is_listed_and_no_other():
    files = FOLDER.glob("*.py")
    found = {name for file in files for name in used(ast.parse(file.read_text(encoding="utf-8")))}
    known = LISTED | MOVED | set(probe.OPTIONAL)
    assert found - known == set(), "add these to shardwise/_jax/probe.py"
    assert known - found == set(), "leave these out of shardwise/_jax/probe.py"


def test_this_jax_fits():
    assert list(probe.differences()) == []
    probe.require()


@pytest.mark.parametrize(
    ("name", "use", "words"),
    [
        ("gone", "", r"jax\._src\.core\.gone is missing"),
        ("eval_jaxpr", "2 unheard_of", r"core\.eval_jaxpr\(.* was used as \(2 unheard_of\)"),
        ("check_eval_args", "3", r"core\.check_eval_args\(args\).* was used as \(3\)"),
        ("check_eval_args", "= others", "was used as"),
        ("check_eval_args", "= others *", "was used as"),
    ],
)
def test_a_jax_that_differs_is_one_clear_error(monkeypatch, name, use, words):
    monkeypatch.setitem(probe.NEEDED["jax._src.core"], name, use)
    with pytest.raises(sw.UnsupportedError, match=f"(?s)JAX .* is not supported.*{words}") as error:
        probe.require()
    assert f"pip install 'jax>={probe.WORKS[0]},<={probe.WORKS[1]}'" in str(error.value)


@pytest.mark.parametrize("use", ["1", "= args", "= *", ""])
def test_what_fits(monkeypatch, use):
    monkeypatch.setitem(probe.NEEDED["jax._src.core"], "check_eval_args", use)
    probe.require()


def test_names_that_moved_and_are_nowhere(monkeypatch):
    monkeypatch.setattr(probe, "ALTERNATIVES", (("jax._src.core.here", "jax._src.mesh.there"),))
    assert list(probe.differences()) == ["jax._src.core.here and jax._src.mesh.there are missing"]


def test_the_table_of_versions_has_the_oldest_and_the_newest_one():
    page = (FOLDER.parents[1] / "docs" / "supported.md").read_text(encoding="utf-8")
    assert all(f"| {version} | " in page for version in probe.WORKS)
