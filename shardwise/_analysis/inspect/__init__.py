"""`inspect`: every value of a sharded program, line by line, as each device holds it."""

from .data import Step as Step
from .inspect import inspect as inspect
from .inspection import Inspection as Inspection
