"""Several processes: joining them, exchanging small values, noticing failures."""

from .connect import Connection as Connection
from .connect import connect as connect
