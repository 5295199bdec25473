"""Training that equals one-device training: `data_parallel` and `fit`."""

from .fit.fit import fit as fit
from .params import DataParallel as DataParallel
from .params import data_parallel as data_parallel
from .step.state import TrainState as TrainState
