"""`check`: is a sharded program right on any number of devices, and if not, at which line."""

from .case import DECLARED as DECLARED
from .case import Case as Case
from .case import Sizes as Sizes
from .case import case as case
from .cause import cause as cause
from .cause import grouped as grouped
from .compare import wide as wide
from .examine import Examined as Examined
from .examine import disagreement as disagreement
from .examine import examine as examine
from .lint import not_sharded as not_sharded
from .options import Meshes as Meshes
from .options import expand as expand
from .options import wanted_meshes as wanted_meshes
from .options import words as words
from .run import check as check
from .silence import Ignore as Ignore
from .silence import ignore_of as ignore_of
from .silence import ignores_in as ignores_in
from .silence import place_of as place_of
from .silence import split_silenced as split_silenced
from .verdict import Finding as Finding
from .verdict import Verdict as Verdict
from .verdict import counted as counted
from .verdict import told_once as told_once
from .verdict import underline as underline
