"""`sw.nnx`: what shardwise has for Flax NNX."""

from ._errors import require

require("flax", "shardwise.nnx")

from ._train.objects import ObjectStep as ObjectStep  # noqa: E402
from ._train.objects import data_parallel as data_parallel  # noqa: E402
