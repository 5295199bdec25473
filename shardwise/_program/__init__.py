"""From a function to a `Program`: one flat list of operations, and what is known of each."""

from .build import build as build
from .handed import Handed as Handed
from .handed import Wanted as Wanted
from .handed import deliver as deliver
from .handed import over as over
from .handed import receive as receive
from .handed import settle as settle
from .ir import Atom as Atom
from .ir import AxisIndex as AxisIndex
from .ir import Body as Body
from .ir import Collective as Collective
from .ir import Cond as Cond
from .ir import Join as Join
from .ir import Leaf as Leaf
from .ir import Lit as Lit
from .ir import Op as Op
from .ir import Scan as Scan
from .ir import Split as Split
from .ir import Var as Var
from .ir import While as While
from .ir import collectives_in as collectives_in
from .ir import walk as walk
from .vary import annotate as annotate
from .where import Where as Where
from .where import anywhere as anywhere
from .where import derivative_of as derivative_of
