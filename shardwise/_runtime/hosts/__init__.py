"""Several processes: joining them, exchanging a few bytes, hearing when one has failed."""

from .connect import Connection as Connection
from .connect import connect as connect
