"""The simulated program as a JAX primitive."""

from .program import SimulatedProgram as SimulatedProgram
from .program import trace as trace
from .rules import call as call
from .rules import simulate_p as simulate_p
