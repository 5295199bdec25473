"""The page in a real browser: stepping, keys, phone width, dark, no complaints, no requests."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import shardwise as sw
from shardwise._cli import app

from ..explain.browser import start
from ..support import normal
from .programs import learns, line_of, norm, predicted, ring, whole_and_near

CASES = """
import numpy as np
import shardwise as sw
from tests.inspect.programs import norm


@sw.case(mesh={"data": [1, 64]})
def a_norm():
    return norm, (np.arange(64, dtype=np.float32), np.float32(2))
"""


def run(*args: str):
    return CliRunner().invoke(app, ["inspect", *args], env={"COLUMNS": "100"})


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "cases.py"
    path.write_text(CASES, encoding="utf-8")
    return path


def test_the_command_shows_a_place(case, tmp_path):
    found = run(f"{case}:a_norm", "--mesh", "data=2", "--where", "psum")
    assert found.exit_code == 0, found.output
    assert "total = psum over data: f32[]" in found.output
    assert "a_norm" not in found.output
    page = tmp_path / "page.html"
    found = run(str(case), "--html", str(page), "--format", "json", "--line", str(line(norm)))
    assert found.exit_code == 0, found.output
    assert '"differs_over": []' in found.output
    assert '"data": 64' in found.output
    assert '"notes": []' in found.output
    assert page.read_text().startswith("<!doctype html>")
    page.unlink()
    found = run(f"{case}:a_norm", "--mesh", "data=2", "--html", str(page))
    assert page.exists()
    assert "psum over data" not in found.output  # the page has it


def test_a_case_without_the_place_is_left_out_where_another_has_it(case):
    other = """
@sw.case(mesh={"data": [1, 2]})
def a_double():
    return (lambda x: x * 2), (np.arange(4, dtype=np.float32),)
"""
    case.write_text(CASES + other, encoding="utf-8")
    for asked in (["--where", "psum"], ["--line", f"programs.py:{line(norm)}"]):
        found = run(str(case), "--mesh", "data=2", *asked)
        assert found.exit_code == 0, found.output
        assert "total = psum over data: f32[]" in found.stdout
        assert "could not be run" not in found.stdout
        assert found.stderr.endswith("cases.py:a_double: no value is computed there\n")
    found = run(str(case), "--mesh", "data=2", "--where", "nothing")
    assert found.exit_code == 2
    assert found.output.count("no value is computed at 'nothing'") == 2


@pytest.mark.parametrize(
    ("sizes", "taken"), [("[1, 12]", 12), ("[1, 16, 512]", 16), ("512", 512), ("[128, 512]", 128)]
)
def test_the_mesh_is_one_of_the_case_and_the_text_says_which(tmp_path, sizes, taken):
    path = tmp_path / "sizes.py"
    rows = CASES.replace("[1, 64]", sizes).replace("arange(64", f"arange({taken}")
    path.write_text(rows, encoding="utf-8")
    found = run(str(path))
    assert found.exit_code == 0, found.output
    assert f"norm on {{data: {taken}}}" in found.output
    note = f"Note: this is the mesh {{data: {taken}}} of the case; its largest, {{data: 512}}, has"
    assert (note in found.output) == (taken in (16, 128))
    assert ("--mesh data=512 shows that one." in found.output) == (taken in (16, 128))


def test_one_value_that_is_left_out_is_one():
    found = sw.inspect(norm, normal(8), 2.0, mesh={"data": 2})
    hidden = sum(len(stop.steps) - len(stop.shown) for stop in found.stops)
    assert f"{hidden} values in the middle of lines are left out" in found.text()
    shown = tuple(one for stop in found.stops for one in stop.shown)
    (more, *_) = (one for one in found.steps if one not in shown)
    kept = tuple(one for one in found.steps if one in shown or one is more)
    assert (
        "1 value in the middle of a line is left out; text(every=True)"
        in dataclasses.replace(found, steps=kept).text()
    )


def line(function) -> int:
    return line_of(function, "total")


def test_the_command_says_what_cannot_be_run(case, tmp_path):
    assert run(str(case), "--mesh", "data=2,4").exit_code == 2
    found = run(str(case), "--where", "nothing")
    assert found.exit_code == 2
    assert "no value is computed at 'nothing'" in found.output
    assert run(str(tmp_path / "none.py")).exit_code == 2


def test_what_comes_from_the_program_is_escaped(tmp_path):
    path = tmp_path / "odd.py"
    text = CASES.replace("a_norm", "odd") + "\n# </script><script>alert(1)</script>\n"
    path.write_text(text, encoding="utf-8")
    found = sw.inspect(norm, normal(8), 2.0, mesh={"data": 2})
    page = found.html()
    assert page.count("</script>") == 2
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = start(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    found = sw.inspect(ring, normal(8), mesh=sw.mesh(data=4))
    return found.save(tmp_path_factory.mktemp("pages") / "ring.html"), found


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_does_not_complain(browser, page, width, theme):
    path, found = page
    browser.open(path, width, theme=theme)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.querySelectorAll('.cell').length") == 4
    assert browser.run("document.getElementById('now').textContent").startswith(
        f"1 of {len(found.stops)}: programs.py:"
    )
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def test_the_page_steps_forwards_and_back(browser, page):
    path, found = page
    browser.open(path, 1280)
    at = "Number(document.getElementById('slide').value)"
    here = "Number(document.querySelector('.here b').textContent)"
    browser.run("document.getElementById('next').click()")
    assert browser.run(at) == 1
    assert browser.run(here) == found.stops[1].where.line
    for key, place in (("ArrowRight", 2), ("ArrowDown", 3), ("ArrowLeft", 2), ("Home", 0)):
        browser.run(f"document.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
        assert browser.run(at) == place
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))")
    assert browser.run(at) == len(found.stops) - 1
    assert browser.run("document.getElementById('next').disabled")
    # Values that differ have different colours, and a click on a line goes there.
    line = found.stops[1].where.line
    browser.run(
        "[...document.querySelectorAll('.code li.used')].find(row =>"
        f" Number(row.querySelector('b').textContent) === {line}).click()"
    )
    assert browser.run(here) == line
    colours = "new Set([...document.querySelectorAll('.cell')].map(c => c.style.background)).size"
    assert browser.run(colours) == 4
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def learning(tmp_path_factory):
    w = {"a": normal(3, 2), "b": normal(2)}
    args = (w, normal(8, 3), normal(8), 0.1, 1.0)
    found = sw.inspect(learns, *args, mesh=sw.mesh(data=4))
    return found.save(tmp_path_factory.mktemp("pages") / "learns.html"), found


def test_the_page_marks_the_passes(browser, learning):
    path, found = learning
    browser.open(path, 1300)
    stops = [stop for stop in found.stops if stop.shown]
    line = line_of(predicted, "hidden")
    for number in [i for i, stop in enumerate(stops) if stop.where.line == line]:
        browser.run(
            f"location.hash = '{number + 1}'; document.getElementById('slide').value = {number}"
        )
        browser.run("document.getElementById('slide').dispatchEvent(new Event('input'))")
        marks = browser.run("[...document.querySelectorAll('.pass')].map(one => one.textContent)")
        assert marks == ([stops[number].mark] if stops[number].mark else [])
    assert marks == ["backward pass"]
    top = browser.run("document.querySelector('#now p').textContent")
    assert top.startswith(f"{number + 1} of {len(stops)}: programs.py:{line}")
    # With every value there are also stops at which all is kept for the backward pass.
    browser.run("document.getElementById('every').click()")
    assert f"of {len(found.stops)}:" in browser.run("document.querySelector('#now p').textContent")
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [390, 1300])
def test_no_number_is_cut_off_and_only_the_panes_scroll(browser, learning, width):
    path, _ = learning
    browser.open(path, width)
    cut = (
        "[...document.querySelectorAll('.cell')].filter(c => c.scrollWidth > c.clientWidth).length"
    )
    assert browser.run(cut) == 0
    assert browser.run("document.querySelectorAll('.cell').length") == 4 + 2 * 4
    if width == 1300:
        assert browser.run("document.documentElement.scrollHeight <= innerHeight")


def test_all_steps_are_printed(browser, learning):
    path, found = learning
    browser.open(path, 1300, theme="dark")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    stops = [stop for stop in found.stops if stop.shown]
    assert browser.run("document.querySelectorAll('.stop').length") == len(stops)
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.querySelectorAll('.stop').length") == 0
    assert browser.complaints() == []


@pytest.fixture(scope="module", params=[12, 64])
def hard(request, tmp_path_factory):
    """Numbers that a double rounds or that four decimals do not tell apart, and an empty array."""
    n = request.param
    whole = np.array([*range(2**60 + 1, 2**60 + n), 2**64 - 1], np.uint64)
    near = 0.1 + 1e-10 * np.arange(n)
    with jax.enable_x64(True):
        found = sw.inspect(whole_and_near, whole, near, np.zeros((n, 0)), mesh={"data": n})
    return found.save(tmp_path_factory.mktemp("pages") / f"hard{n}.html"), found, whole


def test_parts_that_are_hard_to_tell_apart(browser, hard):
    path, found, whole = hard
    browser.open(path, 1280)
    texts = browser.run(
        "[...document.querySelectorAll('.step')].slice(0, 3).map(step =>"
        " [...step.querySelectorAll('.cell :not(h3):is(table, .facts)')].map(c => c.textContent))"
    )
    shown = min(24, len(whole))
    assert texts[0] == [str(one) for one in whole[:shown]]
    assert texts[1][:2] == ["0.1000000000", "0.1000000001"]
    assert len(set(texts[1])) == shown
    assert set(texts[2]) == {"[]"}
    looks = (
        "new Set([...document.querySelector('.step').querySelectorAll('.cell')].map(c =>"
        " c.style.background + getComputedStyle(c).outline)).size"
    )
    assert browser.run(looks) == shown
    # What is left out stands below the grid, and makes no column wider than its neighbours.
    rest = browser.run(
        "[...document.querySelector('.step').querySelectorAll('.rest')].map(p => p.textContent)"
    )
    assert rest == (["and 40 more, all different"] if len(whole) > 24 else [])
    wide = "[...document.querySelector('.held').children].map(c => Math.round(c.offsetWidth))"
    assert len(set(browser.run(wide)[:shown])) == 1
    assert browser.complaints() == []
    # The text too: all digits of whole numbers, and more decimals where four look alike.
    assert f"[{2**60 + 1}]" in found.text()
    assert "[0.1000000001]" in found.text()


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_line_is_reached_with_the_keyboard(browser, page, key):
    path, found = page
    browser.open(path, 1280)
    line = found.stops[1].where.line
    button = (
        "[...document.querySelectorAll('.code li.used [role=button][tabindex=\"0\"]')].find(one =>"
        f" one.getAttribute('aria-label').startsWith('Line {line}: '))"
    )
    browser.run(f"{button}.focus()")
    browser.run(
        "document.activeElement.dispatchEvent("
        f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true, cancelable: true}}))"
    )
    assert browser.run("Number(document.querySelector('.here b').textContent)") == line
    assert browser.run("document.querySelectorAll('.code li.used').length") == browser.run(
        "document.querySelectorAll('.code [role=button]').length"
    )
