"""The page and the figures: true to the data, safe, readable, and at work in a real browser."""

from __future__ import annotations

import dataclasses
import html.parser
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from jax import P

import shardwise as sw
from shardwise._explain import page, units
from shardwise._explain.figures import FIGURES, draw, mesh, png, svg

from ..support import real_mesh
from ..test_examples import load
from .browser import CHROMIUM, Browser
from .support import shaped

transformer_2d = load("transformer_2d")

HOSTILE = "<script>window.hacked=1</script>\"'&"
SOURCE = """
import jax
from jax import P

def program(tree, *, mesh):
    def body(tree):  # </pre></script><script>window.hacked=1</script><img src=x onerror=hacked=1>
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf, AXIS), tree)

    return jax.shard_map(body, mesh=mesh, in_specs=P(AXIS), out_specs=P())(tree)
"""


def nested(x, w, *, mesh):
    """Loops within loops, branches and a while, over three axes."""

    def body(x, w):
        def inner(c, w):
            return jnp.tanh(jax.lax.psum(c @ w, "model")), None

        def outer(c, _):
            c, _ = jax.lax.scan(inner, c, w)
            both, one = ("pipe", "data"), [(0, 1), (1, 0)]
            branches = (
                lambda c: jax.lax.pmean(c, both),
                lambda c: jax.lax.ppermute(c, "pipe", one),
            )
            return jax.lax.cond(c.sum() > 0, *branches, c), None

        y, _ = jax.lax.scan(outer, x, None, length=5)
        y = jax.lax.while_loop(
            lambda c: c.sum() < 5, lambda c: c + jax.lax.pmax(c.sum(), "data"), y
        )
        return jax.lax.pmean((y**2).sum(), ("pipe", "data"))

    specs = (P(("pipe", "data"), None), P(None, "model", None))
    sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return sharded(x, w)


def alone(x, *, mesh):
    return jax.shard_map(jnp.tanh, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, sw.Report]:
    """Reports of all kinds: on two axes with hardware, nested, hostile, alone, huge."""
    block = transformer_2d.example_args()
    big = jax.eval_shape(lambda: transformer_2d.example_args(examples=1024, heads=64, hidden=64))
    file = tmp_path_factory.mktemp("hostile") / "<script>window.hacked=1<i>.py"
    file.write_text(SOURCE)
    scope: dict[str, Any] = {"AXIS": HOSTILE}
    exec(compile(SOURCE, str(file), "exec"), scope)
    hostile = scope["program"]
    hostile.__name__ = HOSTILE
    tree = {f"{HOSTILE}{i}": shaped(8, 4) for i in range(9)}
    on = sw.explain
    x, w = shaped(64, 128), shaped(3, 512, 128)
    return {
        "block": on(transformer_2d.step, *block, mesh=sw.mesh(data=4, model=2), hardware="tpu-v5e"),
        "nested": on(nested, x, w, mesh=sw.mesh(pipe=2, data=4, model=4), hardware="h200-node"),
        "hostile": on(hostile, tree, mesh=sw.mesh(**{HOSTILE: 4}), hardware="h100-node"),
        "alone": on(alone, shaped(64), mesh=sw.mesh(data=4)),
        "huge": on(transformer_2d.step, *big, mesh=sw.mesh(data=1024, model=64)),
    }


KINDS = ("block", "nested", "hostile", "alone", "huge")


# --- every number is in to_dict()


@dataclasses.dataclass
class Reader(html.parser.HTMLParser):
    """The numbers and the words of a page."""

    numbers: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    words: list[str] = dataclasses.field(default_factory=list)
    tags: list[str] = dataclasses.field(default_factory=list)

    # What comes from the program as it is: source, paths, arrays; and what has no data.
    APART = ("style", "script", "pre", "code", "footer", "title", "b")

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


def numbers_of(data: Any) -> Iterator[float]:
    if isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from numbers_of(inner)
    elif isinstance(data, int | float):
        yield float(data)


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
    assert "a\ufffdb\ufffdc" in svg(report, "program")
    ElementTree.fromstring(svg(report, "program"))


# --- figures


def elements(text: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_stands_by_itself(reports, kind, figure):
    report = reports[kind]
    if figure == "scaling" and report.cost is None:
        with pytest.raises(sw.ShardwiseError, match=r"report.on\('h200-node'\)"):
            svg(report, figure)
        return
    text = svg(report, figure)
    root = ElementTree.fromstring(text)
    title, description, *_ = root
    assert title.tag.endswith("title")
    assert title.text
    assert description.tag.endswith("desc")
    assert description.text
    assert "currentColor" not in text
    assert "class=" not in text
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    known = set(numbers_of(report.to_dict()))
    values = [float(one.get("data-value", "nan")) for one in elements(text, "text")]
    assert {value for value in values if value == value} <= known


def test_an_unknown_figure(reports):
    with pytest.raises(sw.ShardwiseError) as caught:
        reports["block"].save("step.mehs.svg")
    assert "there is no figure 'mehs'" in str(caught.value)
    assert "mesh, program, traffic, memory, scaling" in str(caught.value)


def test_png(reports, tmp_path):
    pytest.importorskip("resvg_py", reason="needs the extra png")
    path = reports["block"].save(tmp_path / "step.traffic.png")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    drawing = draw(reports["block"], "traffic")
    width = int.from_bytes(data[16:20], "big")
    assert width >= 3 * drawing.width


def test_png_without_the_extra(reports, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(sw.ShardwiseError, match=r"pip install 'shardwise\[png\]'"):
        png(reports["block"], "mesh")


def test_bars_are_as_long_as_the_bytes(reports):
    report = reports["block"]
    lengths = {
        one.find("{*}title").text.split(":")[0]: float(one.get("width"))
        for one in elements(svg(report, "traffic"), "rect")
        if one.find("{*}title") is not None
    }
    shares = {units.axes(one.axes): one.share for one in report.traffic}
    assert lengths == pytest.approx({name: 360 * share for name, share in shares.items()}, rel=1e-4)


@pytest.mark.parametrize(
    "spec", [P("a"), P(None, "b"), P(("a", "c")), P(("c", "a"), "b"), P("c", "b", "a"), P()]
)
def test_who_holds_what_is_as_jax_says(spec):
    """Two devices are drawn with the same part and colour where JAX puts the same slice."""
    sizes = {"a": 2, "b": 2, "c": 2}

    def program(x, *, mesh):
        return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    report = sw.explain(program, shaped(4, 4, 4), mesh=sw.mesh(**sizes))
    (layout,) = mesh.layouts(report)
    drawn = {}
    for one in elements(mesh.shards(report, layout).standalone(), "rect"):
        hint = one.find("{*}title")
        if hint is not None:
            at, _, part = hint.text.partition(": ")
            drawn[tuple(int(word.split()[1]) for word in at.split(", "))] = (part, one.get("fill"))
    real = jax.sharding.NamedSharding(real_mesh(**sizes), spec)
    slices = real.devices_indices_map((4, 4, 4))
    assert len(drawn) == 8
    for first, part in drawn.items():
        for second, other in drawn.items():
            held = [str(slices[real.mesh.devices[at]]) for at in (first, second)]
            assert (part[0] == other[0]) == (held[0] == held[1])
            assert (part[1] == other[1]) == (held[0] == held[1])


def test_the_pictures_of_the_documentation_are_as_drawn_today():
    """What is computed between collectives differs with the version of JAX; they do not."""
    path = Path(__file__).parents[2] / "docs" / "explain" / "pictures.py"
    spec = importlib.util.spec_from_file_location("pictures", path)
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    report = pictures.report()
    stored = {name: (path.parent / f"{name}.svg").read_text() for name in pictures.FIGURES}
    assert stored["mesh"] == svg(report, "mesh")

    def sent(text: str) -> list[tuple[str | None, str | None]]:
        found = [(one.text, one.get("data-value")) for one in elements(text, "text")]
        return [(words, value) for words, value in found if value is not None]

    assert len(sent(stored["program"])) == len(report.launches)
    assert sent(stored["program"]) == sent(svg(report, "program"))


def test_a_large_mesh_is_summarised(reports):
    text = page.html(reports["huge"])
    assert len(text) < 200_000
    assert '<data value="65536">65,536</data> devices' in text
    hints = [one.text for one in elements(svg(reports["huge"], "mesh"), "title")]
    assert "data 1023, model 63: part 1023" in hints
    assert "data 500, model 30: part 500" not in hints


def test_many_axes_and_none():
    five = sw.explain(alone, shaped(4), mesh=sw.mesh(v=2, w=2, data=2, y=2, z=2))
    assert "at 0 of v" in svg(five, "mesh")
    single = sw.explain(lambda x: x + 1, shaped(4), hardware="h200-node")
    assert "Whole on the one device" in page.html(single)
    assert "no axis that could grow" in svg(single, "scaling")
    flat = sw.explain(alone, shaped(4), mesh=sw.mesh(data=4, model=1))
    assert "data 3, model 0: part 3" in svg(flat, "mesh")


def test_a_long_program_is_cut_in_the_figure_and_whole_on_the_page():
    def body(x):
        for _ in range(200):
            x = jnp.tanh(jax.lax.psum(x, "data"))
        return x

    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

    report = sw.explain(program, shaped(4), mesh=sw.mesh(data=2))
    assert "more rows" in svg(report, "program")
    assert page.html(report).count('class="sw-collective"') == 200


# --- colours


def contrast(one: str, other: str) -> float:
    """How well one colour reads on the other, by the rule of WCAG 2."""

    def light(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_words_can_be_read(theme):
    from shardwise._explain.figures.draw import COLORS

    words = [name for name in COLORS if name.startswith("axis") or name in ("ink", "soft", "warn")]
    weak = [
        (name, ground)
        for name in words
        for ground in ("paper", "fill")
        if contrast(COLORS[name][theme], COLORS[ground][theme]) < 4.5
    ]
    assert weak == []


def test_numbers_on_parts_can_be_read():
    from shardwise._explain.figures.draw import part_color

    weak = [n for n in range(64) if contrast(*part_color(n, 64)) < 4.5]
    assert weak == []


# --- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs chromium; on Debian: apt install chromium")
    one = Browser(tmp_path_factory.mktemp("browser"))
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
