"""Values for the shapes among the arguments of a program, so that it can be run."""

from .arguments import DrawnArguments as DrawnArguments
from .arguments import is_zero as is_zero
from .arguments import taken_apart as taken_apart
from .arguments import without_zeros as without_zeros
from .conditions import Conditions as Conditions
