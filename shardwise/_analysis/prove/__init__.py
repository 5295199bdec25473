"""`prove`: is a program right on a mesh, for all inputs, from its shapes alone."""

from .proof import Proof as Proof
from .proof import Result as Result
from .prove import prove as prove
