"""`sw.nnx`: what shardwise has for Flax NNX."""

from ._train.objects import ObjectStep as ObjectStep
from ._train.objects import data_parallel as data_parallel
