"""Evaluation over data of any size: exact, streamed, resumable."""

from .reduce.metrics import Max as Max
from .reduce.metrics import Mean as Mean
from .reduce.metrics import Min as Min
from .reduce.metrics import Sum as Sum
from .result import Evaluation as Evaluation
from .run import evaluate as evaluate
