"""`prove`: whether a program is correct on a mesh for all inputs, from its shapes alone."""

from .proof import Proof as Proof
from .proof import Result as Result
from .prove import prove as prove
