"""`check`: decide whether a sharded program is right on any number of devices; locate mistakes."""

from ..faults import Finding as Finding
from ..faults import Fix as Fix
from ..faults import advice as advice
from ..faults import told_once as told_once
from ..faults import underline as underline
from .case import DECLARED as DECLARED
from .case import Case as Case
from .case import case as case
from .case import collecting as collecting
from .cause import cause as cause
from .cause import ratios as ratios
from .every import AnySize as AnySize
from .every import Every as Every
from .examine import Examined as Examined
from .examine import examine as examine
from .numbers import paths_apart as paths_apart
from .options import Meshes as Meshes
from .options import Sizes as Sizes
from .options import expand as expand
from .options import validate as validate
from .options import wanted_meshes as wanted_meshes
from .unsharded import verdict_unsharded as verdict_unsharded
from .verdict import NOTHING as NOTHING
from .verdict import Verdict as Verdict
from .verdict import counted as counted
from .verdict import is_not_sharded as is_not_sharded
