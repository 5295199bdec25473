"""`sw.nnx`: data-parallel training of Flax NNX models."""

from ._base.errors import require

require("flax", "shardwise.nnx")

from ._runtime.train.nnx import ObjectStep as ObjectStep  # noqa: E402
from ._runtime.train.nnx import data_parallel as data_parallel  # noqa: E402
