"""The engine: a list of operations over mesh axes becomes ordinary JAX on one device."""

from .plan import Pace as Pace
from .run import execute as execute
from .run import observe as observe
from .trouble import Trouble as Trouble
from .trouble import Watch as Watch
from .trouble import explain_trouble as explain_trouble
from .value import Value as Value
