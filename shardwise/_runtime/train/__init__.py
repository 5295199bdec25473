"""Training that equals one-device training: `data_parallel` and `fit`."""

from .fit import fit as fit
from .pure import DataParallel as DataParallel
from .pure import data_parallel as data_parallel
from .state import TrainState as TrainState
