"""The report as data, as text, as files, and beside another one."""

from __future__ import annotations

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._analysis.explain import units
from shardwise._analysis.explain.page import html

from .support import explained, shaped


def body(w, x):
    def loss(w):
        h = jnp.tanh(x @ w)
        turn = lambda h, _: (lax.psum(h, "model") / 2, None)  # noqa: E731
        h = lax.scan(turn, h, None, length=3)[0]
        return lax.pmean((h**2).mean(), ("data", "model"))

    return jax.grad(loss)(w)


def report(**mesh):
    return explained(
        body, shaped(6, 4), shaped(16, 6), mesh=sw.mesh(mesh or {"data": 4, "model": 2}),
        in_specs=(P(None, "model"), P("data")), out_specs=P(None, "model"), check_vma=False,
    )  # fmt: skip


class TestData:
    def test_it_is_json_and_complete(self):
        found = report().on("h200-node")
        data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        names = {field.name for field in dataclasses.fields(found)}
        sums = {"devices", "bytes_sent", "unknown", "launches", "redundant_bytes", "savings"}
        assert names | sums == set(data)
        assert data["mesh"] == [{"name": "data", "size": 4}, {"name": "model", "size": 2}]
        first = data["collectives"][0]
        assert first["where"]["file"] == __file__
        assert "lax.psum" in first["where"]["text"]
        assert [first["where"]["line"], "        " + first["where"]["text"]] in first["excerpt"]
        assert first["total_bytes"] == 3 * first["bytes_sent"]
        assert data["cost"]["hardware"]["name"] == "h200-node"
        assert data["cost"]["assumptions"][0] == "This is a model, not a measurement."
        assert len(data["cost"]["scaling"]) == 2

    def test_steps_lead_to_every_collective(self):
        found = report()

        def numbers(steps):
            for step in steps:
                if step.collective is not None:
                    yield step.collective
                for inner in step.bodies:
                    yield from numbers(inner)

        assert list(numbers(found.steps)) == list(range(len(found.collectives)))

    def test_steps_hold_all_the_work(self):
        found = report()
        assert sum(step.flops for step in found.steps) == found.work.flops
        assert sum(step.moved for step in found.steps) == found.work.moved

    def test_shares_add_up(self):
        found = report()
        assert sum(one.share for one in found.traffic) == pytest.approx(1)
        assert sum(one.bytes for one in found.traffic) == found.bytes_sent

    def test_another_machine_is_another_report(self):
        found = report()
        assert found.cost is None
        fast, slow = found.on("h100-node"), found.on("h200-network")
        assert found.cost is None
        assert fast.cost.communication < slow.cost.communication
        assert fast.on("h200-network").cost == slow.cost


class TestText:
    def test_it_says_what_is_sent_and_where(self):
        text = str(report())
        assert text.startswith("program on {data: 4, model: 2}, 8 devices\n")
        assert "Who holds what\n" in text
        assert "P(None, 'model')" in text
        assert 'turn = lambda h, _: (lax.psum(h, "model") / 2, None)' in text
        assert "Traffic by axis: one device sends" in text
        assert "█" in text
        assert "Cost" not in text
        assert repr(report()) == text

    def test_with_a_machine_it_says_what_it_costs(self):
        text = str(report().on("tpu-v5e"))
        assert "Cost on tpu-v5e, by a model" in text
        assert "Efficiency as an axis grows and each device keeps its work" in text

    def test_many_arguments_are_summed_up(self):
        many = [shaped(8) for _ in range(40)]
        text = str(explained(lambda *xs: sum(xs), *many, in_specs=P("data")))
        assert "and 24 more" in text

    def test_nothing_in_it_is_taken_for_markup(self):
        found = explained(lambda x: {"[red]x[/red]": x}, shaped(8))
        assert "result['[red]x[/red]']" in str(found)

    @pytest.mark.parametrize(
        ("shown", "value"),
        [
            ("0 B", units.size(0)),
            ("999 B", units.size(999)),
            ("1 kB", units.size(1000)),
            ("1 MB", units.size(999_999)),
            ("1.54 kB", units.size(1536)),
            ("2.5 TFLOP", units.large(2.5e12, "FLOP")),
            ("0 s", units.duration(0)),
            ("1.5 ms", units.duration(0.0015)),
            ("12 µs", units.duration(12e-6)),
            ("3 ns", units.duration(3e-9)),
            ("90 s", units.duration(90)),
            ("< 1 %", units.share(0.001)),
            ("50 %", units.share(0.5)),
            ("bf16[8, 2]", units.array((8, 2), "bfloat16")),
            ("bool[]", units.array((), "bool")),
            ("key<fry>[2]", units.array((2,), "key<fry>")),
            ("P()", units.spec(((), ()))),
            ("P(None, ('a', 'b'))", units.spec(((), ("a", "b"), ()))),
        ],
    )
    def test_units(self, shown, value):
        assert value == shown


class TestCompare:
    def test_two_meshes(self):
        found = report(data=4, model=2).compare(report(data=8, model=2))
        rows = {change.what: change for change in found.changes}
        assert (rows["devices"].before, rows["devices"].after) == (8, 16)
        assert rows["work of one device"].ratio == pytest.approx(0.5, rel=0.1)
        assert rows["  over model"].ratio == pytest.approx(0.5, rel=0.1)
        assert "serial" not in rows
        text = str(found)
        assert "before: program on {data: 4, model: 2}" in text
        assert "after:  program on {data: 8, model: 2}" in text
        assert "sent by one device" in text
        json.dumps(found.to_dict())

    def test_with_itself_nothing_changes(self):
        found = report().on("h200-node")
        assert {change.ratio for change in found.compare(found).changes} <= {1.0, None}

    def test_with_times(self):
        found = report().on("h200-node").compare(report(data=16, model=2).on("h200-node"))
        assert [c.what for c in found.changes if c.unit == "seconds"] == [
            "compute",
            "communication",
            "serial",
            "overlapped",
        ]

    def test_an_axis_that_only_one_has(self):
        one = explained(lambda x: lax.psum(x, "data"), shaped(16), out_specs=P())
        (change,) = [c for c in one.compare(report()).changes if c.what == "  over model"]
        assert (change.before, change.ratio) == (0, None)


class TestFiles:
    def test_json(self, tmp_path):
        path = report().save(tmp_path / "step.json")
        assert json.loads(path.read_text()) == json.loads(json.dumps(report().to_dict()))

    def test_text(self, tmp_path):
        assert report().save(tmp_path / "step.txt").read_text() == str(report())

    @pytest.mark.parametrize("name", ["trace.json", "step.trace.json"])
    def test_trace(self, tmp_path, name):
        found = report().on("h200-node")
        data = json.loads(found.save(tmp_path / name).read_text())
        slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
        assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
        top = [e for e in slices if e["cat"].split(",")[0] in ("scan", "compute", "collective")]
        last = max(event["ts"] + event["dur"] for event in top)
        assert last == pytest.approx(1e6 * found.cost.serial)
        sent = [event for event in slices if event["tid"] == 2]
        assert len(sent) == len(found.collectives)
        assert sent[0]["args"]["where"].startswith(__file__)
        named = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
        assert named == {"compute", "collectives"}

    def test_slices_nest(self, tmp_path):
        """Perfetto drops a slice that crosses another one on its track."""
        found = report().on("h200-node")
        data = json.loads(found.save(tmp_path / "trace.json").read_text())
        for track in (1, 2):
            spans = [
                (event["ts"], event["ts"] + event["dur"])
                for event in data["traceEvents"]
                if event["ph"] == "X" and event["tid"] == track
            ]
            for number, (start, end) in enumerate(spans):
                for other, until in spans[number + 1 :]:
                    assert other >= end - 1e-9 or until <= end + 1e-9 or other <= start

    def test_a_trace_needs_a_machine(self, tmp_path):
        with pytest.raises(sw.ShardwiseError, match="this report has no times") as caught:
            report().save(tmp_path / "trace.json")
        assert 'report.on("h200-node")' in str(caught.value)

    def test_an_unknown_suffix_names_the_known_ones(self, tmp_path):
        with pytest.raises(
            sw.ShardwiseError, match=r"\.pdf' is not a format of a report"
        ) as caught:
            report().save(tmp_path / "step.pdf")
        assert "trace.json (for Perfetto)" in str(caught.value)


class TestBadInput:
    def test_an_unknown_machine_names_the_known_ones(self):
        with pytest.raises(sw.ShardwiseError) as caught:
            report().on("h200-nodes")
        assert "there are h100-node, h200-node, h200-network, tpu-v5e, tpu-v5p" in str(caught.value)
        assert "did you mean 'h200-node'?" in str(caught.value)

    def test_a_machine_that_is_none(self):
        with pytest.raises(sw.ShardwiseError, match="hardware is an int"):
            report().on(7)

    def test_numbers_that_cannot_be(self):
        with pytest.raises(sw.ShardwiseError, match="link_bandwidth is -1") as caught:
            dataclasses.replace(sw.Hardware.named("h200-node"), link_bandwidth=-1)
        assert "not in GB or microseconds" in str(caught.value)

    def test_no_function(self):
        with pytest.raises(TypeError, match="f is an int"):
            sw.explain(3, mesh=sw.mesh(data=2))

    def test_a_mesh_without_the_axis(self):
        with pytest.raises(sw.ShardingError, match="there is no mesh axis 'data' here") as caught:
            explained(lambda x: lax.psum(x, "data"), shaped(8), mesh=sw.mesh(date=4))
        assert "did you mean 'date'?" in str(caught.value)

    def test_no_mesh_at_all(self):
        with pytest.raises(sw.ShardingError, match="mesh is 'data'"):
            explained(lambda x: x, shaped(8), mesh="data")

    def test_a_size_that_does_not_divide(self):
        with pytest.raises(sw.ShardingError, match="the nearest sizes that work are 4 or 8"):
            explained(lambda x: x, shaped(7))

    def test_a_size_that_is_smaller_than_the_axis(self):
        with pytest.raises(sw.ShardingError, match="the nearest that works is 1024"):
            explained(lambda x: x, shaped(8), mesh=sw.mesh(data=1024))

    def test_what_is_not_known(self):
        def told(x):
            jax.debug.print("{}", x, ordered=True)
            return x

        with pytest.raises(sw.UnsupportedError, match="does not support debug_print"):
            explained(told, shaped(16), check_vma=False)


@pytest.mark.parametrize("hardware", [None, "h200-node"])
def test_text_and_page_lead_with_the_same_measure(hardware):
    """Time where the hardware is known, else bytes; and both say which it is."""
    report = sw.explain(two_axes, *TWO_AXES, mesh=sw.mesh(data=8, model=4), hardware=hardware)
    measure = "of the time" if hardware else "of the bytes"
    page = re.sub(r"<[^>]*>", "", html(report))
    for one in report.traffic:
        told = f"{round(100 * one.part)} % {measure}"
        (axis,) = one.axes
        bars = next(row for row in str(report).splitlines() if row.startswith(axis) and "█" in row)
        assert told in bars
        assert bars.count("█") == max(1, round(18 * one.part))
        assert f"{told} along {axis}" in page
    if hardware:
        assert report.traffic[0].part != pytest.approx(report.traffic[0].share, abs=0.1)


def two_axes(w, x, *, mesh):
    def body(w, x):
        return jax.lax.psum(jax.lax.psum(x @ w, "model").sum(0), "data")

    specs = (P("model"), P("data", "model"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x)


TWO_AXES = (
    jax.ShapeDtypeStruct((512, 4096), jnp.float32),
    jax.ShapeDtypeStruct((256, 512), jnp.float32),
)


class TestDearest:
    """The report answers which collective costs the most, by line."""

    @staticmethod
    def body(w, x):
        small = lax.psum(jnp.sum(x), "data")
        large = lax.psum(x @ w, "data")
        other = lax.psum(jnp.max(x) * small, "data")
        return large, small + other

    def found(self):
        specs = {"in_specs": (P(), P("data")), "out_specs": P()}
        return explained(self.body, shaped(4096, 8192), shaped(4096, 4096), **specs)

    def test_by_bytes_without_a_machine(self):
        text = str(self.found())
        line = self.body.__code__.co_firstlineno + 3
        most = f"Most bytes: psum over data, forward, test_report.py:{line}, 50.3 MB, 100 % of what"
        assert most in text
        assert "in all  pass" in text

    def test_by_time_with_one(self):
        found = self.found().on("h200-node")
        text, first = str(found), self.body.__code__.co_firstlineno
        most = max(found.cost.collectives)
        share = units.share(most / found.cost.communication)
        assert f"test_report.py:{first + 3}, {units.duration(most)}, {share} of the comm" in text
        assert "in all    time  pass" in text
        rows = [line for line in text.splitlines() if line.startswith("psum  data")]
        times = [f"{units.duration(one)}  forward" for one in found.cost.collectives]
        assert all(row.endswith(time) for row, time in zip(rows, times, strict=True))

    def test_small_messages_are_counted_and_one_psum_of_a_tuple_sends_them_together(self):
        found = self.found().on("h200-node")
        where = self.body.__code__.co_firstlineno
        text = " ".join(str(found).split())
        said = f"2 small messages of psum over data (test_report.py:{where + 2} and test_report.py:"
        assert said in text
        assert "One psum of a tuple sends together those" in text

        def together(x):
            return lax.psum((jnp.sum(x), jnp.max(x)), "data")

        one = explained(together, shaped(16), out_specs=P()).on("h200-node")
        assert len(one.launches) == 1
        assert "of a tuple" not in str(one)

    def test_gradients_too(self):
        """What the advice promises: one psum of the tree of gradients is one message."""

        def summed(p, x):
            def loss(p):
                return jnp.mean((jnp.tanh(x @ p["a"] + p["c"]) @ p["b"]) ** 2)

            return jax.grad(lambda p: lax.pmean(loss(p), "data"))(p)

        def own(p, x):
            def loss(p):
                return jnp.mean((jnp.tanh(x @ p["a"] + p["c"]) @ p["b"]) ** 2)

            return lax.pmean(jax.grad(loss)(lax.pcast(p, "data", to="varying")), "data")

        args = {"a": shaped(4, 4), "b": shaped(4, 4), "c": shaped(4)}, shaped(8, 4)
        specs = {"in_specs": (P(), P("data")), "out_specs": P()}
        by_autodiff = explained(summed, *args, **specs).on("h200-node")
        by_hand = explained(own, *args, **specs).on("h200-node")
        assert "jax.lax.pcast" in str(by_autodiff)
        assert (len(by_autodiff.launches), len(by_hand.launches)) == (3, 1)
        assert by_hand.cost.latency == pytest.approx(by_autodiff.cost.latency / 3)

    def test_lines_with_the_same_figure_are_named_too(self):
        def body(x):
            first = lax.psum(x, "data")
            return first, lax.psum(jnp.tanh(x + first), "data")

        text = " ".join(str(explained(body, shaped(4096), out_specs=P())).split())
        line = body.__code__.co_firstlineno + 2
        assert f"50 % of what one device sends; as much at test_report.py:{line}" in text

    def test_with_one_there_is_no_choice(self):
        text = str(explained(lambda x: lax.psum(x, "data"), shaped(16), out_specs=P()))
        assert "Most bytes" not in text


def test_an_axis_that_was_forgotten_can_be_added():
    with pytest.raises(sw.ShardingError) as caught:
        explained(lambda x: lax.psum(x, "data"), shaped(16), mesh=sw.mesh(tp=2), out_specs=P())
    assert "Otherwise add it to the mesh: {'data': ..., 'tp': ...}." in str(caught.value)


def test_arguments_in_another_order():
    specs = {"in_specs": ({"w": P()}, P("data")), "out_specs": P("data")}
    with pytest.raises(sw.ShardingError, match="Do they have the order of the arg"):
        explained(lambda p, x: x, shaped(8), {"w": shaped(4)}, **specs)
