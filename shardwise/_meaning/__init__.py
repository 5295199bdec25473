"""Meaning: what each value of a sharded program is of the whole, found by reading it once."""

from .compare import Gap as Gap
from .compare import axes_of_ratio as axes_of_ratio
from .compare import equal as equal
from .compare import gaps as gaps
from .devices import speaks_of as speaks_of
from .keep import Kept as Kept
from .keep import Known as Known
from .keep import keep as keep
from .notes import Mistake as Mistake
from .notes import Step as Step
from .pieces import equal_in_pieces as equal_in_pieces
from .read import Meaning as Meaning
from .read import Reading as Reading
from .read import read as read
from .read import read_apart as read_apart
from .relate import changes_in_loop as changes_in_loop
from .relate import is_number as is_number
from .relate import own_part as own_part
from .relate import same_reading as same_reading
from .rules import table as table
from .softmax import equal_in_blocks as equal_in_blocks
from .term import Coef as Coef
from .value import Value as Value
from .walk import Walk as Walk
from .words import holding as holding
