"""The engine: a list of operations over mesh axes becomes ordinary JAX on one device."""

from .deadlock import Divergence as Divergence
from .deadlock import DivergenceWatch as DivergenceWatch
from .deadlock import explain_divergence as explain_divergence
from .machine import machine as machine
from .machine import room as room
from .run import execute as execute
from .run import observe as observe
from .shards_at_once import Choice as Choice
from .shards_at_once import Pace as Pace
from .shards_at_once import choosing as choosing
from .value import StackedValue as StackedValue
