"""The engine: a list of operations over mesh axes becomes ordinary JAX on one device."""

from ._plan import Pace as Pace
from ._run import execute as execute
from ._run import observe as observe
from ._trouble import Watch as Watch
from ._trouble import explain_trouble as explain_trouble
from ._value import Value as Value
