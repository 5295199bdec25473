"""From a function to a `Program`: one flat list of operations, and what is known of each."""

from ._build import build as build
from ._ir import Atom as Atom
from ._ir import AxisIndex as AxisIndex
from ._ir import Body as Body
from ._ir import Collective as Collective
from ._ir import Cond as Cond
from ._ir import Join as Join
from ._ir import Leaf as Leaf
from ._ir import Lit as Lit
from ._ir import Op as Op
from ._ir import Scan as Scan
from ._ir import Split as Split
from ._ir import Var as Var
from ._ir import While as While
from ._ir import collectives_in as collectives_in
from ._ir import walk as walk
from ._vary import annotate as annotate
from ._where import Where as Where
from ._where import derivative_of as derivative_of
