"""`inspect`: every value of a sharded program, line by line, on each device."""

from .data import Step as Step
from .inspect import inspect as inspect
from .inspection import Inspection as Inspection
