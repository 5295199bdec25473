"""Programs evaluated in float64, whatever dtypes they declare."""

from .body import Lifted as Lifted
from .body import lift as lift
from .quantities import rounds as rounds
from .widths import as_declared as as_declared
from .widths import eps_of as eps_of
from .widths import wide_dtype as wide_dtype
from .widths import widened as widened
