"""Evaluation over data of any size: exact, streamed, resumable."""

from .metrics import Max as Max
from .metrics import Mean as Mean
from .metrics import Min as Min
from .metrics import Sum as Sum
from .result import Evaluation as Evaluation
from .run import evaluate as evaluate
