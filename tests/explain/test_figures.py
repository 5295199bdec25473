"""The figures: well formed, true to the data, readable, and as JAX lays arrays out."""

from __future__ import annotations

from xml.etree import ElementTree

import jax
import pytest
from jax import P

import shardwise as sw
from shardwise._analysis.explain import page, units
from shardwise._analysis.explain.figures import charts, mesh
from shardwise._analysis.explain.figures.draw import part_color
from shardwise._base.pages import COLORS

from ..support import real_mesh
from .pages import KINDS, alone, numbers_of
from .support import shaped


def elements(text: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


FIGURES = {
    "devices": mesh.devices,
    "shards": lambda report: mesh.shards(report, mesh.layouts(report)[0]),
    "traffic": charts.traffic,
    "memory": charts.memory,
    "scaling": charts.scaling,
}


def svg(report: sw.Report, figure: str) -> str:
    return FIGURES[figure](report).inline()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_well_formed_and_shows_numbers_of_the_report(reports, kind, figure):
    report = reports[kind]
    text = svg(report, figure)
    assert ElementTree.fromstring(text).get("aria-label")
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    known = set(numbers_of(report.to_dict()))
    values = [float(one.get("data-value", "nan")) for one in elements(text, "text")]
    assert {value for value in values if value == value} <= known


@pytest.mark.parametrize("kind", ["block", "huge"])
def test_bars_are_as_long_as_what_counts(reports, kind):
    """The time where it is known, else the bytes."""
    report = reports[kind]
    lengths = {
        one.find("{*}title").text.split(":")[0]: float(one.get("width"))
        for one in elements(svg(report, "traffic"), "rect")
        if one.find("{*}title") is not None
    }
    shares = {
        units.axes(one.axes): one.share if report.cost is None else one.time_share
        for one in report.traffic
    }
    assert (report.cost is None) == (kind == "huge")
    assert lengths == pytest.approx({name: 360 * share for name, share in shares.items()}, rel=1e-4)


def words_of(text: str) -> list[str]:
    return ["".join(one.itertext()) for one in elements(text, "text")]


def test_small_neighbours_are_one_row():
    def body(x):
        small = x.sum()
        for _ in range(5):
            small = jax.lax.psum(small * jax.lax.axis_index("data"), "data")
        return jax.lax.psum(x * small, "data")

    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

    report = sw.explain(program, shaped(1 << 20), mesh=sw.mesh(data=4))
    assert len(report.launches) == 6
    found = page.html(report)
    assert found.count('class="sw-collective"') == 6
    assert "Small parts: psum over data" in found or "Small parts: compute, psum over data" in found


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
    for one in elements(mesh.shards(report, layout).inline(), "rect"):
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


def test_a_large_mesh_is_summarised(reports):
    text = page.html(reports["huge"])
    assert len(text) < 200_000
    assert '<data value="65536">65,536</data> devices' in text
    hints = [one.text for one in elements(svg(reports["huge"], "devices"), "title")]
    assert "data 1023, model 63" in hints
    assert "data 500, model 30" not in hints


def test_many_axes_and_none():
    five = sw.explain(alone, shaped(4), mesh=sw.mesh(v=2, w=2, data=2, y=2, z=2))
    assert "at 0 of v" in svg(five, "shards")
    single = sw.explain(lambda x: x + 1, shaped(4), hardware="h200-node")
    assert "Whole on the one device" in page.html(single)
    assert "no axis that could grow" in svg(single, "scaling")
    flat = sw.explain(alone, shaped(4), mesh=sw.mesh(data=4, model=1))
    assert "data 3, model 0: part 3" in svg(flat, "shards")


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
    words = [name for name in COLORS if name.startswith("axis") or name in ("ink", "soft", "warn")]
    weak = [
        (name, ground)
        for name in words
        for ground in ("paper", "fill")
        if contrast(COLORS[name][theme], COLORS[ground][theme]) < 4.5
    ]
    assert weak == []


def test_numbers_on_parts_can_be_read():
    weak = [n for n in range(64) if contrast(*part_color(n, 64)) < 4.5]
    assert weak == []


def test_the_columns_of_the_traffic_are_named(reports):
    assert {"time, as the bars", "bytes sent"} <= set(words_of(svg(reports["block"], "traffic")))
    assert "bytes sent" not in words_of(svg(reports["huge"], "traffic"))


@pytest.mark.parametrize("name", ["a.html", "a.json", "a.txt", "trace.json"])
def test_a_folder_that_is_not_there(reports, tmp_path, name):
    report = reports["block"].on("h200-node")
    with pytest.raises(sw.ShardwiseError, match="it cannot be written") as error:
        report.save(tmp_path / "no" / name)
    assert error.match("Remedy: name a file in an existing, writable folder")
