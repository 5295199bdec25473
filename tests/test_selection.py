"""Which tests `make test` leaves out, and what is said of tests that are skipped."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import optional, selection

ROOT = Path(__file__).parents[1]
LISTS = {
    "ONCE": selection.ONCE,
    "SAMPLED": selection.SAMPLED,
    "DEALT": selection.DEALT,
    "WHOLE": selection.WHOLE,
    "CLUSTER": selection.CLUSTER,
    "LONG": selection.LONG,
    "ALWAYS": selection.ALWAYS,
}


class Item:
    """What `selection.mark` needs of a test."""

    def __init__(self, nodeid: str):
        self.nodeid, self.marks = nodeid, []

    def add_marker(self, name: str) -> None:
        self.marks.append(name)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def marked(nodeids: Iterable[str]) -> list[Any]:
    items: list[Any] = [Item(nodeid) for nodeid in nodeids]
    selection.mark(items)
    return items


def test_every_entry_names_tests_that_exist():
    for name, entry in [(name, entry) for name, entries in LISTS.items() for entry in entries]:
        file, *names = entry.partition("[")[0].split("::")
        assert (ROOT / file).exists(), f"{name}: {entry}: no such file. Leave it out."
        text = (ROOT / file).read_text(encoding="utf-8") if names else ""
        for part in names:
            assert f"def {part}" in text or f"class {part}" in text, f"{name}: {entry}: not there."


def test_a_share_of_many_forms_is_drawn_and_the_same_ones_for_each_test_of_a_file():
    forms = [f"form {k}" for k in range(40)]
    left = []
    for test in ("tests/test_x.py::test_a", "tests/test_x.py::test_b"):
        items = marked(f"{test}[{form}]" for form in forms)
        left.append([form for form, item in zip(forms, items, strict=True) if not item.marks])
    assert len(left[0]) == selection.KEPT * 40
    assert left[0] == left[1]


def test_of_the_forms_that_are_left_others_are_drawn_every_day(monkeypatch):
    forms = [f"tests/test_x.py::test_a[{k}]" for k in range(100)]
    drawn = []
    for date in ("2026-01-01", "2026-01-02", "2026-01-02"):
        monkeypatch.setattr(selection, "DATE", date)
        items = marked(forms)
        assert all("rare" in item.marks for item in items if "spare" in item.marks)
        drawn.append([item.nodeid for item in items if item.marks == ["rare"]])
    assert drawn[0] != drawn[1] == drawn[2]
    assert len(drawn[0]) == selection.MORE * (100 - selection.KEPT * 100)


def test_every_test_runs_on_the_first_version_of_jax():
    """In one of the three sizes; the forms of the second version are others of the same tests."""
    files = ("tests/check/test_x.py", "tests/explain/test_x.py", "tests/test_primitives.py")
    for file in files:
        (alone,) = marked([f"{file}::test_a"])
        assert not {"second", "rare"} & set(alone.marks)
        forms = marked(f"{file}::test_b[{k}]" for k in range(20))
        first = [item for item in forms if "second" not in item.marks]
        second = [item for item in forms if "once" not in item.marks]
        assert len(first) >= 10
        assert {id(item) for item in first} | {id(item) for item in second} == set(map(id, forms))


def test_few_forms_and_what_has_none_are_all_run():
    few = [f"tests/test_x.py::test_a[{k}]" for k in range(selection.FEW)]
    assert not any(item.marks for item in marked([*few, "tests/test_x.py::test_b"]))


def test_what_takes_long_is_rare():
    (item,) = marked(["tests/fuzz/test_fuzz.py::test_every_deadlock_is_found"])
    assert "rare" in item.marks


def test_skips_are_summed_up_by_reason_with_what_would_change_them():
    reasons = [optional.because("no page is looked at", "apt-get install chromium")] * 2
    reasons.append(optional.because("root may write anywhere.", "use an ordinary user"))
    assert optional.summary(f"Skipped: {reason}" for reason in reasons) == [
        "2 skipped: no page is looked at. To run: apt-get install chromium",
        "1 skipped: root may write anywhere. To run: use an ordinary user",
    ]
