"""`check`: is a sharded program right on any number of devices, and if not, at which line."""

from ._case import DECLARED as DECLARED
from ._case import Case as Case
from ._case import Sizes as Sizes
from ._case import case as case
from ._draw import run_drawn as run_drawn
from ._options import Meshes as Meshes
from ._run import check as check
from ._run import expand as expand
from ._run import words as words
from ._running import Run as Run
from ._verdict import Finding as Finding
from ._verdict import Verdict as Verdict
from ._verdict import told_once as told_once
from ._verdict import underline as underline
from .cause import cause as cause
from .cause import grouped as grouped
