"""The engine: a list of operations over mesh axes becomes ordinary JAX on one device."""

from .machine import machine as machine
from .machine import room as room
from .pace import Choice as Choice
from .pace import Pace as Pace
from .pace import choosing as choosing
from .run import execute as execute
from .run import observe as observe
from .trouble import Trouble as Trouble
from .trouble import Watch as Watch
from .trouble import explain_trouble as explain_trouble
from .value import Value as Value
