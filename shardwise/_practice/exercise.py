"""Exercises as data: each is a folder.

    03_mean_of_means/
      exercise.toml    title, function, how it is run, what it must use, its pitfalls
      statement.md     what to do and why it matters
      start.py         where the learner starts
      solution.py      a solution
      wrong/           wrong solutions; each file is named after the pitfall that it shows
      hints.md         hints, from the gentle to the plain, with --- between them
      task.py          inputs(rng, sizes), expected(*inputs), mistakes(sizes, *inputs), notice(...)

`task.py` needs only `inputs`; without `expected` the solution defines the right result.
`mistakes` maps pitfalls to the numbers that the mistake leads to. `notice(facts, sizes, *inputs)`
names a pitfall from the recorded calls of the solution: `facts` are those of `sandbox.hooks`, plus
`finished` and `source`. `SAME` maps common pitfalls to the exercise's own. `task.py` is run in the
judge's own process, so a folder of exercises must be as trustworthy as a Python package.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
import textwrap
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .._base.errors import ShardwiseError, did_you_mean
from .pitfalls import COMMON, Pitfall

OWN = Path(__file__).parent / "exercises"
FORMS = {
    "mesh": "it takes a keyword mesh",
    "replace": "it makes a mesh of one device, which gets more",
    "shards": "it takes a number of shards",
    "answer": "it returns an answer",
}
"""The ways to run a function."""

FILES = {
    "statement.md": ("It says what to do and why it matters.", "write it, as Markdown."),
    "start.py": ("It is where the learner starts.", "write it: the function, without its body."),
    "solution.py": ("It shows that the exercise can be done.", "write it: the function, done."),
    "hints.md": ("It has hints, from the gentle to the plain.", "write it, with --- between them."),
    "task.py": (
        "It makes the arguments of the function.",
        "write it: def inputs(rng, sizes): return (rng.normal(size=16),)",
    ),
}
"""The files of an exercise: the purpose of each, and the remedy if it is missing."""

FOLDER = re.compile(r"(\d+)_([a-z0-9_]+)")


@dataclasses.dataclass(frozen=True)
class Exercise:
    """One exercise."""

    folder: Path
    number: int
    name: str
    title: str
    topic: str
    function: str
    form: str
    """How the function is run: one of `FORMS`."""
    meshes: tuple[Mapping[str, int], ...]
    requires: tuple[tuple[str, str], ...]
    """What a solution must use, and the pitfall of not using it."""
    pitfalls: Mapping[str, Pitfall]
    needs: tuple[str, ...] = ()
    """Exercises that should be done before."""

    @property
    def file_name(self) -> str:
        """The name of its file in the learner's folder."""
        return f"{self.number:02}_{self.name}.py"

    @functools.cached_property
    def statement(self) -> str:
        """The statement, as Markdown."""
        return self._read("statement.md").strip() + "\n"

    @functools.cached_property
    def start(self) -> str:
        """The learner's initial file: the statement at the top, then the code."""
        body = textwrap.indent(self.statement, "", lambda line: True).replace('"""', "'''")
        backslash = "r" if "\\" in body else ""
        return f'{backslash}"""{self.title}\n\n{body}"""\n\n{self._read("start.py").lstrip()}'

    @functools.cached_property
    def solution(self) -> str:
        """A solution."""
        return self._read("solution.py")

    @functools.cached_property
    def hints(self) -> tuple[str, ...]:
        """Hints, from the gentle to the plain."""
        parts = re.split(r"(?m)^---\s*$", self._read("hints.md"))
        return tuple(part.strip() for part in parts if part.strip())

    @functools.cached_property
    def wrong(self) -> Mapping[str, str]:
        """The wrong solutions by file stem; `name--more` demonstrates pitfall `name`."""
        files = sorted((self.folder / "wrong").glob("*.py"))
        return {file.stem: file.read_text(encoding="utf-8") for file in files}

    @functools.cached_property
    def task(self) -> ModuleType:
        """The module task.py, which defines the inputs and answers."""
        path = self.folder / "task.py"
        spec = importlib.util.spec_from_file_location(f"_shardwise_task_{self.name}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise _damaged(self.folder, "there is no task.py", *FILES["task.py"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not callable(getattr(module, "inputs", None)):
            raise _damaged(path, "it has no function inputs(rng, sizes)", *FILES["task.py"])
        return module

    def pitfall(self, name: str) -> Pitfall:
        """Return a pitfall of this exercise, or one common to all exercises."""
        return self.pitfalls.get(name) or COMMON.get(name) or Pitfall(name, name, "")

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise _damaged(self.folder, f"there is no {name}", *FILES[name]) from error


def load_all(folder: Path | None = None) -> list[Exercise]:
    """Load the exercises of a folder, in order; by default those of shardwise."""
    root = folder or OWN
    if not root.is_dir():
        raise ShardwiseError(
            "there is no such folder",
            where=f"--exercises {root}",
            remedy="name a folder of exercises, or leave it out for those of shardwise.",
        )
    exercises = [
        load(path) for path in sorted(root.iterdir()) if (path / "exercise.toml").is_file()
    ]
    if not exercises:
        raise ShardwiseError(
            "there are no exercises here",
            where=str(root),
            rule="An exercise is a folder such as 01_name with an exercise.toml.",
            remedy="name the folder that holds them, or leave --exercises out for those of "
            "shardwise.",
        )
    names = [exercise.name for exercise in exercises]
    for name in names:
        if names.count(name) > 1:
            raise _damaged(
                root,
                f"two exercises are called {name!r}",
                "The name behind the number is how an exercise is asked for.",
                "give one of the two folders another name.",
            )
    return exercises


def load(folder: Path) -> Exercise:
    """Load the exercise in a folder."""
    named = FOLDER.fullmatch(folder.name)
    if not named:
        raise _damaged(
            folder,
            f"{folder.name!r} is no name for an exercise",
            "It is a number and a name, in small letters, digits and underscores.",
            "call the folder 07_some_name.",
        )
    try:
        data = tomllib.loads((folder / "exercise.toml").read_text(encoding="utf-8"))
    except ValueError as error:  # it is no TOML, or not even text
        raise _damaged(
            folder / "exercise.toml",
            str(error),
            "It is TOML, in UTF-8.",
            'title = "..." on a line of its own.',
        ) from error
    _check_keys(folder, data)
    pitfalls = {
        name: Pitfall(name, entry["title"], entry["text"].strip(), entry.get("hint", "").strip())
        for name, entry in data.get("pitfalls", {}).items()
    }
    return Exercise(
        folder=folder,
        number=int(named[1]),
        name=named[2],
        title=data["title"],
        topic=data.get("topic", ""),
        function=data.get("function", named[2]),
        form=data["form"],
        meshes=tuple(_meshes(data)),
        requires=tuple((str(a), str(b)) for a, b in data.get("requires", [])),
        pitfalls=pitfalls,
        needs=tuple(data.get("needs", ())),
    )


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _size(value: Any) -> bool:
    return type(value) is int and value > 0


def _mesh(value: Any) -> bool:
    return _size(value) or _of(dict, _size)(value)


def _pair(value: Any) -> bool:
    return _of(list, _text)(value) and len(value) == 2


def _of(kind: type, each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return whether a value is a list, or a table, of such elements."""
    return lambda value: (
        isinstance(value, kind) and all(map(each, value.values() if kind is dict else value))
    )


KEYS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "title": (_text, 'title = "A sum over all devices"'),
    "topic": (_text, 'topic = "means and masks"'),
    "function": (_text, 'function = "total"'),
    "form": (_text, 'form = "mesh"'),
    "meshes": (_of(list, _mesh), "meshes = [1, 2, {data = 2, model = 2}]"),
    "requires": (_of(list, _pair), 'requires = [["shard_map", "no-shard-map"]]'),
    "pitfalls": (_of(dict, _of(dict, _text)), '[pitfalls.name], and below it title = "..."'),
    "needs": (_of(list, _text), 'needs = ["ring_sum"]'),
}
"""The keys of an exercise.toml: a test of the value's type, and an example."""


def _check_keys(folder: Path, data: Mapping[str, Any]) -> None:
    where = folder / "exercise.toml"
    if "title" not in data:
        rule = "The title is what learners see in the list."
        raise _damaged(where, "'title' is missing", rule, 'title = "A sum over all devices"')
    if data.get("form") not in [*FORMS]:
        problem = f"form = {data['form']!r}" if "form" in data else "'form' is missing"
        ways = "; ".join(f"{form} ({how})" for form, how in FORMS.items())
        rule = f"It says how the function is run: {ways}."
        raise _damaged(where, problem, rule, 'form = "mesh", or another of these.')
    for key in data:
        if key not in KEYS:
            remedy = did_you_mean(key, KEYS) or "take it out."
            rule = f"Known are {', '.join(sorted(KEYS))}."
            raise _damaged(where, f"{key!r} is not known", rule, remedy)
        fits, example = KEYS[key]
        if not fits(data[key]):
            rule = "Each key has values of one kind."
            raise _damaged(where, f"{key} = {data[key]!r}", rule, f"{example}, for example.")
    for name, pitfall in data.get("pitfalls", {}).items():
        if not {"title", "text"} <= set(pitfall):
            rule = "A verdict shows both."
            remedy = f'under [pitfalls.{name}]: title = "..." and text = "...".'
            raise _damaged(where, f"pitfall {name!r} lacks a title or a text", rule, remedy)


def _meshes(data: Mapping[str, Any]) -> Sequence[Mapping[str, int]]:
    if data["form"] == "answer":
        return [{"data": 1}]
    meshes = data.get("meshes", [1, 2, 4, 8])
    return [dict(mesh) if isinstance(mesh, Mapping) else {"data": mesh} for mesh in meshes]


def find(exercises: Sequence[Exercise], name: str) -> Exercise:
    """Return the exercise with this name, number or file."""
    stem = Path(name).stem if name.endswith(".py") else name
    for exercise in exercises:
        if stem in (exercise.name, exercise.file_name.removesuffix(".py"), str(exercise.number)):
            return exercise
        if stem.isdecimal() and int(stem) == exercise.number:
            return exercise
    names = [exercise.name for exercise in exercises]
    raise ShardwiseError(
        f"there is no exercise {name!r}",
        where="shardwise practice",
        remedy=did_you_mean(stem, names, 0.5) or "shardwise practice list names them.",
    )


def listing(
    exercises: Sequence[Exercise], solved: Collection[str], at: Exercise | None = None
) -> list[tuple[str, str]]:
    """Return the lines of a list of all exercises by topic, with the progress."""
    lines, topic = [], None
    for item in exercises:
        if item.topic != topic:
            topic = item.topic
            lines.append((topic, "head"))
        done = item.name in solved
        mark = "x" if done else ">" if item is at else " "
        row = f"  [{mark}] {item.number:02} {item.name:<30} {item.title}"
        lines.append((row, "right" if done else ""))
    return lines


def _damaged(where: Path, what: str, rule: str, remedy: str = "") -> ShardwiseError:
    return ShardwiseError(what, where=str(where), rule=rule, remedy=remedy)
