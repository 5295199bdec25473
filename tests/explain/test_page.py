"""The page: its numbers are those of the report, it is safe, and it works in a real browser."""

from __future__ import annotations

import dataclasses
import html.parser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import P

import shardwise as sw
from shardwise._analysis.explain import page, units

from .browser import start
from .pages import KINDS, numbers_of
from .support import shaped

# --- every number is in to_dict()


@dataclasses.dataclass
class Reader(html.parser.HTMLParser):
    """The numbers and the words of a page."""

    numbers: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    words: list[str] = dataclasses.field(default_factory=list)
    tags: list[str] = dataclasses.field(default_factory=list)

    # What comes from the program as it is: source, paths, arrays; and what has no data.
    APART = ("style", "script", "pre", "code", "footer", "title", "b", "time")

    def __post_init__(self):
        super().__init__()
        self.inside: list[tuple[str, dict[str, Any]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "link", "br", "rect", "path", "circle"):
            self.inside.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attributes = self.inside[-1] if self.inside else ("", {})
        value = attributes.get("value", attributes.get("data-value"))
        if value is not None and tag in ("data", "text"):
            self.numbers.append((float(value), data))
        elif tag != "text" and not {name for name, _ in self.inside} & set(self.APART):
            self.words.append(data)


def strings_of(data: Any) -> Iterator[str]:
    if isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from strings_of(inner)
    elif isinstance(data, str) and data:
        yield data


def unknown_numbers(report: sw.Report, text: str) -> list[Any]:
    """The numbers of a page that are not those of the report."""
    reader = Reader()
    reader.feed(text)
    data = report.to_dict()
    known = set(numbers_of(data))
    formats = (units.size, units.duration, units.share, lambda v: units.large(v, "FLOP"))
    wrong: list[Any] = []
    for value, words in reader.numbers:
        ways = [form(value) for form in formats] + [f"{value:,.0f}"]
        if value not in known or words not in ways:
            wrong.append((value, words))
    rest = " ".join(reader.words)
    for string in sorted(set(strings_of(data)), key=len, reverse=True):
        rest = rest.replace(string.replace("`", ""), " ") if re.search(r"\d", string) else rest
    found = re.findall(r"\d[\d,]*(?:\.\d+)?", rest)
    return wrong + [one for one in found if float(one.replace(",", "")) not in known]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [page.html, page.notebook])
def test_every_number_is_one_of_the_report(reports, kind, form):
    assert unknown_numbers(reports[kind], form(reports[kind])) == []


def test_a_number_that_is_not_of_the_report_would_be_found(reports):
    text = page.html(reports["block"])
    more = text.replace("</main>", '<data value="987">987 B</data><p>654 calls</p></main>')
    assert unknown_numbers(reports["block"], more) == [(987.0, "987 B"), "654"]
    rounded_wrongly = text.replace(f">{units.size(reports['block'].memory.peak)}<", ">1.11 GB<")
    assert rounded_wrongly != text
    assert unknown_numbers(reports["block"], rounded_wrongly) != []


@pytest.mark.parametrize("kind", KINDS)
def test_what_matters_is_on_the_page(reports, kind):
    report = reports[kind]
    reader = Reader()
    reader.feed(page.html(report))
    shown = {value for value, _ in reader.numbers}
    held = [one.bytes for one in (*report.arguments, *report.results)]
    sent = [n for use in report.collectives for n in (use.bytes_sent, use.total_bytes, use.count)]
    wanted = {report.devices, report.bytes_sent, report.memory.peak, report.memory.arguments}
    wanted |= {report.memory.results, report.work.flops, report.work.total, *held, *sent}
    wanted |= {one.bytes for one in report.traffic} | {one.share for one in report.traffic}
    if report.cost is not None:
        cost = report.cost
        wanted |= {cost.compute, cost.communication, cost.serial, cost.overlapped}
        wanted |= {p.efficiency for curve in cost.scaling for p in curve.points}
        assert cost.assumptions[0] in page.html(report)
        assert "between <code>overlapped</code> (" in page.html(report)
    assert wanted - {None} <= shown


def test_the_most_expensive_collective_is_named(reports):
    report = reports["block"]
    assert report.cost is not None
    seconds: dict[str, float] = {}
    for use, taken in zip(report.collectives, report.cost.collectives, strict=True):
        line = f"{use.name} over {units.axes(use.axes)} at <code>{use.where}</code>"
        seconds[line] = seconds.get(line, 0.0) + taken * use.counted
    most = max(seconds, key=lambda line: seconds[line])
    assert f"The most expensive collective is {most}" in page.html(report)


VALUE = re.compile(r'<data value="([^"]*)">')


def labelled(text: str) -> list[tuple[str, list[float]]]:
    """What stands beside each term of a list: its label and its numbers."""
    pairs = re.findall(r"<dt>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", text, re.DOTALL)
    return [(label, [float(value) for value in VALUE.findall(shown)]) for label, shown in pairs]


@pytest.mark.parametrize("kind", ["block", "nested", "hostile", "huge"])
def test_each_number_stands_where_it_belongs(reports, kind):
    report, text = reports[kind], page.html(reports[kind])
    table = text.partition("All collectives</h2>")[2].partition("<tbody>")[2]
    rows = [VALUE.findall(row) for row in table.split("<tr")[1:]]
    for number, (row, use) in enumerate(zip(rows, report.collectives, strict=True)):
        times = [] if use.count is None else [use.count]
        wanted = [use.group_size, *times, use.bytes_sent, use.total_bytes]
        wanted += [report.cost.collectives[number]] if report.cost else []
        assert [float(value) for value in row] == wanted

    found = labelled(text.partition("Who holds what</h2>")[0])
    assert dict(found)["Sent per device"] == [report.bytes_sent]
    assert dict(found)["Memory per device"][0] == report.memory.peak
    assert dict(found)["Work per device"] == [report.work.flops, report.work.total]
    if report.cost:
        ends = {units.duration(end): end for end in (report.cost.serial, report.cost.overlapped)}
        assert dict(found)["One call, modelled"] == [*ends.values()][::-1]

    opened = [dict(labelled(part)) for part in text.split('<details class="sw-collective"')[1:]]
    for facts, launch in zip(opened, report.launches, strict=True):
        use = report.collectives[launch.collectives[0]]
        assert facts["Sent each time"] == [launch.bytes_sent]
        assert facts["In all"] == [launch.total_bytes]
        assert facts["Times"] == ([] if use.count is None else [use.count])
        assert facts["Devices in a group"] == [use.group_size]


# --- what a reader asks first


@pytest.fixture(scope="module")
def wasteful() -> sw.Report:
    """A program that sums over `data` what is the same along it, on a machine."""

    def body(w, x):
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return jax.lax.pmean(grads, "data")

    specs = (P("model"), P("data", "model"))

    def program(w, x, *, mesh):
        sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("model"))
        return sharded(w, x)

    args = shaped(512, 256), shaped(4096, 512)
    return sw.explain(program, *args, mesh=sw.mesh(data=8, model=2), hardware="h200-network")


def test_what_is_redundant_stands_first_and_at_its_line(wasteful):
    text = page.html(wasteful)
    assert unknown_numbers(wasteful, text) == []
    tiles = dict(labelled(text.partition("Who holds what</h2>")[0]))
    assert tiles["Sent for nothing"] == [wasteful.redundant_bytes, wasteful.cost.redundant]
    section = text.partition("<h2>Redundant traffic</h2>")[2].partition("</section>")[0]
    (saving,) = wasteful.savings
    assert [float(value) for value in VALUE.findall(section)] == [saving.bytes, saving.seconds]
    assert "<p>pmean of what is already the same on all devices along data.</p>" in section
    assert "Leave the pmean out: it gives back what goes in." in section
    opened = text.split('<details class="sw-collective"')[1:]
    marked = ['<b class="sw-mark">redundant</b>' in one for one in opened]
    assert marked == [False, True]
    meaning = wasteful.collectives[1].meaning
    assert meaning is not None
    assert f'Each device holds</span> {meaning.before} <span class="sw-muted">→' in opened[1]


def test_with_a_machine_shares_are_of_the_time(reports, wasteful):
    text = page.html(wasteful)
    lead = text.partition("</dl>")[2].partition("</p>")[0]
    shares = [one.time_share for one in wasteful.traffic if one.bytes]
    assert [float(value) for value in VALUE.findall(lead)][2 : 2 + len(shares)] == shares
    assert "of the time along data" in lead
    lead = page.html(reports["huge"]).partition("</dl>")[2].partition("</p>")[0]
    assert {one.share for one in reports["huge"].traffic} <= set(map(float, VALUE.findall(lead)))


def test_each_row_names_its_line(reports):
    """Two sums that look alike are told apart by their lines, or by the lines that call them."""
    text = page.html(reports["block"])
    rows = re.findall(r'<code class="sw-line">(.*?)</code>', text)
    assert len(rows) > len(reports["block"].launches)
    both = [place for place, row in enumerate(rows) if "jax.lax.psum(partial" in row][:2]
    callers = [rows[place + 1] for place in both]
    assert ["reduce(attention(" in callers[0], "reduce(hidden @" in callers[1]] == [True, True]


def test_the_head_says_where_it_comes_from(reports):
    report = dataclasses.replace(reports["block"], command="shardwise explain <x>")
    head = page.html(report).partition("<main>")[0]
    assert ">transformer_2d.py:" in head
    assert "$ shardwise explain &lt;x&gt;" in head
    assert sw.__version__ in head
    assert re.search(r"<time [^>]*>\d{4}-\d\d-\d\d \d\d:\d\d UTC</time>", head)


# --- names, paths and source are escaped


@pytest.mark.parametrize("form", [page.html, page.notebook])
def test_what_comes_from_the_program_is_escaped(reports, form):
    plain, hostile = Reader(), Reader()
    plain.feed(form(reports["block"]))
    hostile.feed(form(reports["hostile"]))
    assert hostile.tags.count("script") == plain.tags.count("script")
    assert "img" not in hostile.tags
    text = form(reports["hostile"])
    assert "<script>window" not in text
    assert "&lt;script&gt;window.hacked=1&lt;/script&gt;&#34;&#39;&amp;" in text


def test_source_is_shown(reports):
    text = page.html(reports["hostile"])
    assert "&lt;img src=x onerror=hacked=1&gt;" in text
    assert "<mark><b>7</b>        return jax.tree.map" in text


def test_characters_that_no_page_may_hold_are_replaced(reports):
    report = dataclasses.replace(reports["alone"], name="a\x00b\x1bc")
    assert "a\ufffdb\ufffdc" in page.html(report)


# --- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = start(tmp_path_factory.mktemp("browser"))
    yield one
    one.close()


@pytest.fixture
def saved(reports, tmp_path):
    def save(kind: str) -> Path:
        return reports[kind].save(tmp_path / f"{kind}.html")

    return save


OVERFLOWING = """
Array.from(document.querySelectorAll("body *"))
  .filter(e => !e.closest(".sw-scroll, pre, svg"))
  .filter(e => e.getBoundingClientRect().right > WIDTH + 0.5)
  .map(e => e.tagName + "." + e.className)
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1200, "light")])
def test_it_loads_alone_without_complaint_and_fits(browser, saved, kind, width, theme):
    path = saved(kind)
    browser.open(path, width, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.run("window.innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERFLOWING.replace("WIDTH", str(width))) == []
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def test_the_browser_would_see_faults(browser, saved, tmp_path):
    text = saved("alone").read_text(encoding="utf-8")
    wide = '<p style="width:900px">wide</p><img src="https://example.com/x.png" alt="">'
    path = tmp_path / "faults.html"
    path.write_text(text.replace("</main>", f"{wide}<script>console.error(1)</script></main>"))
    browser.open(path, 360)
    assert browser.run("window.innerWidth") > 360
    assert browser.run(OVERFLOWING.replace("WIDTH", "360")) == ["P."]
    complaints = " ".join(browser.complaints())
    assert "Content Security Policy" in complaints
    assert "'value': 1" in complaints


def test_pictures_have_words(browser, saved):
    browser.open(saved("nested"), 1200)
    labels = browser.run(
        "Array.from(document.querySelectorAll('svg')).map(e => [e.getAttribute('role'),"
        " e.getAttribute('aria-label')])"
    )
    assert len(labels) >= 6
    assert all(role == "img" and len(label) > 20 for role, label in labels)
    bare = (
        "Array.from(document.querySelectorAll('button, summary')).filter(e => !e.innerText.trim())"
    )
    assert browser.run(f"{bare}.length") == 0


def test_every_collective_opens_with_the_keyboard(browser, saved, reports):
    browser.open(saved("nested"), 1200)
    wanted = browser.run("document.querySelectorAll('.sw-collective').length")
    assert wanted == len(reports["nested"].launches)
    opened, seen = 0, 0
    focus = "document.activeElement"
    for _ in range(80):
        browser.press("Tab")
        if browser.run(f"{focus}.matches('.sw-small > summary')"):
            browser.press("Enter")
        if browser.run(f"{focus}.matches('.sw-collective > summary')"):
            seen += 1
            browser.press("Enter")
            opened += browser.run(f"{focus}.parentElement.open")
            source = f"{focus}.parentElement.querySelector('pre mark').innerText"
            assert "jax.lax." in browser.run(source)
        if browser.run(f"{focus} === document.body"):
            break
    assert (seen, opened) == (wanted, wanted)
    missed = browser.run("document.querySelectorAll('[tabindex=\"-1\"]').length")
    assert missed == 0


def test_the_theme_follows_the_system_and_the_button(browser, saved):
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(saved("alone"), 1200, theme="light")
    assert browser.run(ground) == "rgb(255, 255, 255)"
    browser.run("document.getElementById('theme').click()")
    dark = browser.run(ground)
    assert dark != "rgb(255, 255, 255)"
    browser.open(saved("alone"), 1200, theme="dark")
    assert browser.run(ground) == dark
    browser.run("document.getElementById('theme').click()")
    assert browser.run(ground) == "rgb(255, 255, 255)"
    browser.run("document.getElementById('theme').click()")
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.run(ground) == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    browser.send("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("kind", ["nested", "hostile"])
def test_on_paper_nothing_is_cut_off(browser, saved, kind):
    browser.open(saved(kind), 700)
    browser.send("Emulation.setEmulatedMedia", media="print")
    script = OVERFLOWING.replace("WIDTH", "700").replace(".sw-scroll, pre, svg", "svg")
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.run(script) == []
    browser.send("Emulation.setEmulatedMedia", media="")


def test_a_button_shows_the_traffic_of_one_axis(browser, saved):
    browser.open(saved("block"), 1200)
    button = "document.querySelector('.sw-tools [data-axes=model]')"
    browser.run(f"{button}.click()")
    faded = "Array.from(document.querySelectorAll('.sw-dim')).map(e => e.dataset.axes)"
    assert set(browser.run(faded)) == {"data"}
    browser.run(f"{button}.click()")
    assert browser.run(faded) == []


def test_without_scripts_everything_is_there(browser, saved):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(saved("block"), 1200)
    assert browser.run("document.querySelectorAll('.sw-collective').length") > 3
    assert browser.run("document.querySelector('.sw-tools').hidden") is True
    browser.send("Emulation.setScriptExecutionDisabled", value=False)


def test_the_piece_for_notebooks(browser, reports, tmp_path):
    path = tmp_path / "notebook.html"
    both = reports["block"]._repr_html_() + reports["nested"]._repr_html_()
    path.write_text(
        f"<!doctype html><meta charset=utf-8><body data-jp-theme-light=false><p>own</p>{both}",
        encoding="utf-8",
    )
    before = "getComputedStyle(document.querySelector('p')).color"
    browser.open(path, 700)
    assert browser.run(before) == "rgb(0, 0, 0)"
    ground = "getComputedStyle(document.querySelector('.sw-notebook')).backgroundColor"
    assert browser.run(ground) != "rgb(255, 255, 255)"
    assert browser.run("document.documentElement.scrollWidth") <= 700
    assert browser.complaints() == []
