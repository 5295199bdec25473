"""Hardware profiles for the cost model.

Speeds and sizes are the vendors' own; see `about`. The utilisation of the GPUs is what large steps
reach on one H200 (`benchmarks/explain_gpu.py`), that of the TPUs is about what MaxText reports.
Latencies are rounded. The share of a step that devices wait for each other is the median of
published scaling series (`benchmarks/scaling.py`).
"""

from __future__ import annotations

import dataclasses
import numbers
import sys
from typing import Any

from ..._base.calls import public, public_methods
from ..._base.errors import ShardwiseError, a_type, did_you_mean
from ..._base.plain import Plain


@public("sw.Hardware")
@public_methods("sw.Hardware")
@dataclasses.dataclass(frozen=True)
class Hardware(Plain):
    """A machine for the cost model of `explain`.

    Devices are grouped in nodes: within a node they communicate over links, between nodes over a
    network. The last axes of a mesh lie within a node. To use your own numbers, change a profile:
    `dataclasses.replace(sw.Hardware.named("h200-node"), utilisation=0.4)`.
    """

    name: str
    flops: float
    """Peak FLOPs per second of one device in matrix products of 16-bit dtypes."""
    flops_float32: float
    """The same for float32 at JAX's default precision."""
    memory_bandwidth: float
    """Bytes per second between a device and its memory."""
    memory: float
    """Bytes of memory of one device."""
    link_bandwidth: float
    """Bytes per second that one device sends within a node, in one direction."""
    link_latency: float
    """Seconds until the first byte arrives within a node."""
    node: int
    """The number of devices in a node."""
    network_bandwidth: float
    """Bytes per second that one device sends to other nodes."""
    network_latency: float
    """Seconds until the first byte arrives in another node."""
    utilisation: float = 0.5
    """The share of peak arithmetic and memory bandwidth that a good program reaches."""
    waiting: float = 0.0
    """The share of a step added by each doubling of nodes: slower devices, a shared network.
    0.02 is the median of the published series of `benchmarks/scaling.py`."""
    about: str = ""
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            if field.name in ("name", "about"):
                _need_text(field.name, value)
                continue
            if not _is_possible(field.name, value):
                raise ShardwiseError(
                    f"{field.name} is {value!r}",
                    where=f"hardware {self.name!r}",
                    rule="Speeds, sizes and times of a machine are positive numbers, in bytes, "
                    "FLOPs and seconds, not in GB or microseconds. The utilisation is a share of "
                    "the peak, and waiting a share of a step: at most 1. The number of devices of "
                    "a node is an integer.",
                    remedy="memory=80e9, link_latency=3e-6, utilisation=0.5, waiting=0.02, node=8",
                )
            # NumPy numbers are not JSON, and 8.0 devices cannot be an array size.
            is_integer = isinstance(value, numbers.Integral) or field.name == "node"
            object.__setattr__(self, field.name, int(value) if is_integer else float(value))

    def peak(self, dtype: str) -> float:
        """Return the peak FLOPs per second of matrix products of a dtype."""
        narrow = dtype in ("bfloat16", "float16") or dtype.startswith(("float8", "int8", "uint8"))
        return self.flops if narrow else self.flops_float32

    @staticmethod
    def named(name: str) -> Hardware:
        """Return a profile by its name.

        Raises:
            ShardwiseError: There is no such profile; the message lists the known ones.
        """
        _need_text("name", name)
        if name not in PROFILES:
            raise ShardwiseError(
                f"there is no profile {name!r}; there are {', '.join(PROFILES)}",
                where="hardware",
                rule="A hardware is the name of a described profile, or numbers of your own.",
                remedy=did_you_mean(name, PROFILES)
                or "name one of these, or give sw.Hardware(name=..., flops=..., ...).",
            )
        return PROFILES[name]


def find(hardware: str | Hardware) -> Hardware:
    """Return a profile by name, or the user's own."""
    if isinstance(hardware, Hardware):
        return hardware
    if isinstance(hardware, str):
        return Hardware.named(hardware)
    raise ShardwiseError(
        f"hardware is {a_type(hardware)}",
        where="sw.explain",
        rule="A hardware is the name of a described profile, or a sw.Hardware.",
        remedy=f"one of {', '.join(PROFILES)}.",
    )


def _is_possible(field: str, value: Any) -> bool:
    """Return whether a field that is a number may have this value."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        number = float(value)
    except OverflowError:  # an int may be too large for a float
        return False
    if field == "node" and not number.is_integer():
        return False
    most = 1 if field in ("utilisation", "waiting") else sys.float_info.max
    return 0 < number <= most or (field == "waiting" and number == 0)


def _need_text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ShardwiseError(
            f"{field} is {a_type(value)}",
            where="sw.Hardware",
            rule="The name of a machine, and what there is to say about it, are text.",
            remedy='sw.Hardware(name="mine", ...), sw.Hardware.named("h200-node")',
        )


_H100 = Hardware(
    name="h100-node",
    flops=989e12,
    flops_float32=495e12,
    memory_bandwidth=3.35e12,
    memory=80e9,
    link_bandwidth=450e9,
    link_latency=3e-6,
    node=8,
    network_bandwidth=50e9,
    network_latency=10e-6,
    utilisation=0.7,
    waiting=0.02,
    about="NVIDIA H100 SXM: 989 TFLOP/s in bfloat16, 495 in TF32, 3.35 TB/s, 80 GB; NVLink 4 at "
    "450 GB/s each way within a node of 8; 400 Gb/s for each GPU between nodes.",
)
_H200 = dataclasses.replace(
    _H100,
    name="h200-node",
    memory_bandwidth=4.8e12,
    memory=141e9,
    about="NVIDIA H200 SXM: as the H100, with 141 GB at 4.8 TB/s; NVLink 4 at 450 GB/s each way "
    "within a node of 8; 400 Gb/s for each GPU between nodes.",
)
_H200_NETWORK = dataclasses.replace(
    _H200,
    name="h200-network",
    link_bandwidth=50e9,
    link_latency=10e-6,
    node=1,
    about="NVIDIA H200 with every device in another node: only 400 Gb/s for each GPU.",
)
_V5E = Hardware(
    name="tpu-v5e",
    flops=197e12,
    flops_float32=197e12,
    memory_bandwidth=819e9,
    memory=16e9,
    link_bandwidth=90e9,
    link_latency=1e-6,
    node=256,
    network_bandwidth=3.125e9,
    network_latency=30e-6,
    utilisation=0.6,
    waiting=0.02,
    about="TPU v5e: 197 TFLOP/s in bfloat16, 819 GB/s, 16 GB; a torus of 256 chips with 45 GB/s "
    "each way on a link, a mesh axis using both directions of one dimension; 25 Gb/s for each "
    "chip between slices.",
)
_V5P = Hardware(
    name="tpu-v5p",
    flops=459e12,
    flops_float32=459e12,
    memory_bandwidth=2.765e12,
    memory=95e9,
    link_bandwidth=180e9,
    link_latency=1e-6,
    node=8960,
    network_bandwidth=6.25e9,
    network_latency=30e-6,
    utilisation=0.6,
    waiting=0.02,
    about="TPU v5p: 459 TFLOP/s in bfloat16, 2.765 TB/s, 95 GB; a torus of 8960 chips with 90 GB/s "
    "each way on a link, a mesh axis using both directions of one dimension; 50 Gb/s for each "
    "chip between slices.",
)

PROFILES = {item.name: item for item in (_H100, _H200, _H200_NETWORK, _V5E, _V5P)}
