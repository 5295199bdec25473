"""Programs evaluated in float64, whatever dtypes they declare, and their runs on one mesh."""

from .body import Lifted as Lifted
from .body import lift as lift
from .extremes import asks_for_nan as asks_for_nan
from .extremes import short_range as short_range
from .run import Run as Run
from .run import ValueOnMesh as ValueOnMesh
from .run import plain as plain
from .widths import as_declared as as_declared
from .widths import eps_of as eps_of
from .widths import wide as wide
from .widths import wide_dtype as wide_dtype
from .widths import widened as widened
