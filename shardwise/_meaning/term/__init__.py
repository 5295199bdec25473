"""Terms: values of the whole, as expressions over the whole arguments.

Terms are hash-consed: equal terms are one object, so that comparing two programs of a hundred
thousand operations is comparing pointers. A value is an exact rational *coefficient* in front of a
term (`Scaled`); scalars move into it, so that a mean over 4 rows of a mean over 8 devices is the
mean over 32. Every constructor here returns a normal form: sums and products are flat and ordered,
uniform dimensions are a `bcast`, reshapes of reshapes are one.

This is real arithmetic: rounding, overflow, and the order of a sum are not modelled.
"""

from .algebra import NOTHING as NOTHING
from .algebra import add as add
from .algebra import constant as constant
from .algebra import elementwise as elementwise
from .algebra import has_infinite as has_infinite
from .algebra import multiply as multiply
from .algebra import power as power
from .algebra import reciprocal as reciprocal
from .algebra import vanishes as vanishes
from .node import ONE as ONE
from .node import Coef as Coef
from .node import Scaled as Scaled
from .node import Shape as Shape
from .node import Term as Term
from .node import below as below
from .node import bottom_up as bottom_up
from .node import core as core
from .node import is_one as is_one
from .node import is_uniform as is_uniform
from .node import make as make
from .node import not_finite as not_finite
from .node import over as over
from .node import symbol as symbol
from .node import tidy as tidy
from .node import times as times
from .operations import BY_ELEMENT as BY_ELEMENT
from .operations import LINEAR as LINEAR
from .operations import MOVED as MOVED
from .operations import REDUCED as REDUCED
from .operations import TRUTHS as TRUTHS
from .operations import of as of
from .operations import operations as operations
from .parts import concatenate as concatenate
from .parts import cut as cut
from .parts import reduce as reduce
from .spread import bcast as bcast
from .spread import beside as beside
from .spread import full as full
from .spread import function as function
from .spread import iota as iota
from .spread import linear as linear
from .spread import matched as matched
from .spread import reshape as reshape
from .spread import strip as strip
from .spread import transpose as transpose
from .spread import uniform_dims as uniform_dims
from .spread import zero as zero
from .work import Left as Left
from .work import TooLate as TooLate
from .work import TooMuch as TooMuch
from .work import at_most as at_most
from .work import extended as extended
from .work import in_time as in_time
from .work import late as late
from .work import remaining as remaining
from .work import step as step
from .work import within as within
