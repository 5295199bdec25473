"""The cost model by hand: levels of the machine, latency, bounds, scaling."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._analysis.explain import units
from shardwise._analysis.explain.cost import SIZES, seconds

from .support import explained, shaped, spmd

# Round numbers: a link moves a byte in 1, the network in 10; messages take 1000 and 5000.
MACHINE = sw.Hardware(
    name="round",
    flops=2.0,
    flops_float32=1.0,
    memory_bandwidth=100.0,
    memory=1e6,
    link_bandwidth=1.0,
    link_latency=1000.0,
    node=4,
    network_bandwidth=0.1,
    network_latency=5000.0,
    utilisation=1.0,
)


def one(body, *args, **options):
    """The seconds of the one collective of a program."""
    report = explained(body, *args, **options)
    (use,) = report.collectives
    return seconds(use, MACHINE, {axis.name: axis.size for axis in report.mesh})


def psum(x):
    return lax.psum(x, "data")


def test_within_a_node():
    """f32[16] on each of four devices: 2 * 3/4 * 64 bytes, and 2 * log2(4) messages."""
    time = one(psum, shaped(64), out_specs=P())
    assert (time.bandwidth, time.latency) == (96.0, 4 * 1000.0)


def test_across_nodes_in_two_levels():
    """Eight devices in two nodes of four send 2 * 7/8 * 64 bytes, a seventh of them outside."""
    time = one(psum, shaped(128), out_specs=P(), mesh=sw.mesh(data=8))
    outside = 2 * (1 / 2) * 64 / 4  # an all-reduce of a quarter between two nodes
    assert time.bandwidth == pytest.approx((112 - outside) + outside / 0.1)
    assert time.latency == 4 * 1000.0 + 2 * 5000.0


def test_only_across_nodes():
    """The last axis fills the nodes; along the first every device is in another one."""
    time = one(
        psum, shaped(16, 4), out_specs=P(None, "model"), in_specs=P("data", "model"),
        mesh=sw.mesh(data=2, model=4),
    )  # fmt: skip
    assert time.bandwidth == 2 * (1 / 2) * 32 / 0.1
    assert time.latency == 2 * 5000.0


def test_along_the_last_axis_within_a_node():
    time = one(
        lambda x: lax.psum(x, "model"), shaped(16, 4), out_specs=P("data"),
        in_specs=P("data", "model"), mesh=sw.mesh(data=2, model=4),
    )  # fmt: skip
    assert (time.bandwidth, time.latency) == (2 * 3 / 4 * 32, 4 * 1000.0)


def test_an_all_to_all_across_nodes():
    """Of the seven parts that a device sends, four leave its node."""
    exchange = lambda x: lax.all_to_all(x, "data", 0, 0, tiled=True)  # noqa: E731
    time = one(exchange, shaped(64, 2), mesh=sw.mesh(data=8))
    part = 8 * 2 * 4 / 8
    assert time.bandwidth == pytest.approx(3 * part + 4 * part / 0.1)


def test_a_permutation_across_nodes_goes_at_the_pace_of_the_slowest():
    ring = [(i, (i + 1) % 8) for i in range(8)]
    time = one(lambda x: lax.ppermute(x, "data", ring), shaped(128), mesh=sw.mesh(data=8))
    assert (time.bandwidth, time.latency) == (64 / 0.1, 6000.0)


def test_nothing_to_send_takes_no_time():
    time = one(psum, shaped(64), out_specs=P(), mesh=sw.mesh(data=1))
    assert (time.bandwidth, time.latency) == (0.0, 0.0)


def test_what_is_sent_together_waits_once():
    report = explained(lambda x: lax.psum((x, x * 2), "data"), shaped(64), out_specs=P())
    cost = report.on(MACHINE).cost
    assert cost.collectives == (96.0 + 4000.0, 96.0)
    assert (cost.communication, cost.latency) == (4192.0, 4000.0)
    assert cost.by_axes == ((("data",), 4192.0),)


def test_compute_is_arithmetic_or_memory_whichever_is_longer():
    report = explained(lambda x: x @ x, shaped(16, 4))
    assert report.on(MACHINE).cost.compute == 2 * 4**3  # one FLOP a second in float32
    slow = dataclasses.replace(MACHINE, memory_bandwidth=0.01)
    cost = report.on(slow).cost
    assert cost.compute == 2 * 64 / 0.01  # the matrix is read once, the result written
    assert cost.bound == "memory"


def test_narrow_types_are_faster_and_utilisation_slows():
    narrow = explained(lambda x: x @ x, shaped(16, 4, dtype=jnp.bfloat16))
    assert narrow.on(MACHINE).cost.compute == 4**3
    half = dataclasses.replace(MACHINE, utilisation=0.5)
    assert narrow.on(half).cost.compute == 2 * 4**3


def test_loops_multiply():
    def body(x):
        turn = lambda x, _: (lax.psum(x @ x, "data") / 4, None)  # noqa: E731
        return lax.scan(turn, lax.psum(x, "data"), None, length=5)[0]

    report = explained(body, shaped(16, 4), out_specs=P(), check_vma=False).on(MACHINE)
    cost = report.cost
    assert cost.communication == 6 * (96.0 + 4000.0)
    loop = next(step for step in report.steps if step.kind == "scan")
    each = sum(step.seconds for step in loop.bodies[0])
    assert loop.seconds == 5 * each
    assert sum(step.seconds for step in report.steps) == pytest.approx(cost.serial)


def test_serial_and_overlapped_are_the_two_ends():
    cost = explained(lambda x: psum(x @ x), shaped(16, 4), out_specs=P()).on(MACHINE).cost
    assert cost.serial == cost.compute + cost.communication
    assert cost.overlapped == max(cost.compute, cost.communication)
    assert cost.bound == "latency"


def test_nodes_wait_for_each_other_with_each_doubling():
    waits = dataclasses.replace(MACHINE, node=2, waiting=0.1)
    report = explained(lambda x: psum(x @ x), shaped(32, 4), out_specs=P(), mesh=sw.mesh(data=8))
    cost, before = report.on(waits).cost, report.on(dataclasses.replace(waits, waiting=0.0)).cost
    assert before.waiting == 0
    assert cost.waiting == pytest.approx(0.2 * cost.serial)  # 4 nodes
    assert (cost.serial, cost.overlapped) == (before.serial, before.overlapped)
    for point, other in zip(cost.scaling[0].points, before.scaling[0].points, strict=True):
        doublings = max(0, np.log2(point.size / 2))
        assert point.efficiency == pytest.approx(other.efficiency / (1 + 0.1 * doublings))
    assert f"{units.duration(cost.waiting)} waiting" in str(report.on(waits)).replace("\n", " ")


def test_whether_it_fits():
    report = explained(lambda x: x @ x, shaped(16, 4))
    assert report.on(MACHINE).cost.fits
    tight = report.on(dataclasses.replace(MACHINE, memory=100.0))
    assert not tight.cost.fits
    assert "The peak does not fit a device: it has 100 B." in str(tight)


class TestScaling:
    def curve(self, body, *args, axis="data", **options):
        cost = explained(body, *args, **options).on(MACHINE).cost
        return {
            point.size: point
            for curve in cost.scaling
            if curve.axis == axis
            for point in curve.points
        }

    def test_from_1_to_1024(self):
        points = self.curve(psum, shaped(64), out_specs=P())
        assert tuple(points) == SIZES == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        assert points[1].communication == 0
        assert points[1].efficiency == points[1].efficiency_overlapped == 1

    def test_the_own_size_is_the_cost_itself(self):
        report = explained(lambda x: psum(x @ x), shaped(32, 4), out_specs=P(),
                           mesh=sw.mesh(data=8)).on(MACHINE)  # fmt: skip
        (curve,) = report.cost.scaling
        point = next(point for point in curve.points if point.size == 8)
        assert point.communication == pytest.approx(report.cost.communication)
        assert point.serial == pytest.approx(report.cost.serial)

    def test_the_operand_of_a_sum_stays(self):
        """64 bytes on each device whatever their number: 2 (n - 1) / n of them are sent."""
        points = self.curve(psum, shaped(64), out_specs=P())
        assert points[2].communication == 64 + 2 * 1000
        assert points[4].communication == 96 + 4 * 1000

    def test_what_is_gathered_stays_as_a_whole(self):
        """256 bytes in all: two devices have 128 each, four have 64."""
        gather = lambda x: lax.all_gather(x, "data")  # noqa: E731
        points = self.curve(gather, shaped(64))
        assert points[2].communication == 128 + 1000
        assert points[4].communication == 3 * 64 + 2 * 1000

    def test_an_axis_that_sends_nothing_costs_nothing(self):
        points = self.curve(psum, shaped(64), out_specs=P(), axis="model",
                            mesh=sw.mesh(data=4, model=2))  # fmt: skip
        # A longer last axis pushes the other one out of the node: that is all it changes.
        assert points[1].efficiency == 1
        assert points[1024].communication == points[4].communication

    def test_a_program_traced_on_one_device_scales_as_well(self):
        points = self.curve(psum, shaped(16), out_specs=P(), mesh=sw.mesh(data=1))
        assert points[4].communication == 96 + 4000


class TestMesh65536:
    def test_in_seconds(self):
        """Nothing is done for each device: a mesh of 65,536 is traced like one of eight."""
        import time

        def body(w, x):
            def loss(w):
                layer = lambda h, w: (jnp.tanh(lax.psum(h @ w, "model")), None)  # noqa: E731
                return lax.pmean(lax.scan(layer, x, w)[0].sum(), "data")

            return jax.grad(loss)(w)

        args = shaped(32, 8192, 128, dtype=jnp.bfloat16), shaped(2048, 8192, dtype=jnp.bfloat16)
        began = time.process_time()
        report = explained(
            body, *args, mesh=sw.mesh(data=1024, model=64), check_vma=False,
            in_specs=(P(None, "model"), P("data", "model")), out_specs=P(None, "model"),
        ).on("tpu-v5p")  # fmt: skip
        assert "65,536 devices" in str(report)
        assert time.process_time() - began < 5
        forward = report.collectives[0]
        assert (forward.group_size, forward.count) == (64, 32)
        assert forward.bytes_sent == 2 * 63 * (2 * 128 * 2) // 64
        assert report.work.total == pytest.approx(65536 * report.work.flops)
        rows = [line for line in str(report).splitlines() if line.startswith("data ")]
        assert len(rows) < 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("waiting", -0.1),
        ("waiting", 1.1),
        ("utilisation", 7),
        ("utilisation", 0),
        ("node", 2.5),
        ("flops", float("inf")),
        ("memory", float("nan")),
        ("link_latency", -1),
        ("flops", "a"),
        ("flops_float32", 10**400),
        ("network_latency", True),
        ("link_bandwidth", None),
    ],
)
def test_a_machine_that_cannot_be(field, value):
    with pytest.raises(sw.ShardwiseError, match=rf"hardware .*: {field} is ") as caught:
        dataclasses.replace(MACHINE, **{field: value})
    assert "Remedy" in str(caught.value)


def test_a_name_is_text():
    for give in (lambda: dataclasses.replace(MACHINE, about=3), lambda: sw.Hardware.named(3)):
        with pytest.raises(sw.ShardwiseError, match=r"sw\.Hardware: (name|about) is an int"):
            give()


def test_numbers_of_numpy_are_numbers():
    given = {"node": np.float64(2), "memory": np.int64(10**9), "utilisation": np.float32(0.5)}
    machine = dataclasses.replace(MACHINE, **given)
    found = sw.explain(spmd(psum, out_specs=P()), shaped(64), mesh={"data": 4}, hardware=machine)
    assert json.loads(json.dumps(found.to_dict()))
    assert json.loads(json.dumps(machine.to_dict()))["node"] == 2


def test_a_range_whose_ends_read_alike_is_one_figure():
    assert units.between(1e-3, 2e-3) == "1 ms to 2 ms"
    assert units.between(36.01e-6, 36.02e-6) == "36 µs"
