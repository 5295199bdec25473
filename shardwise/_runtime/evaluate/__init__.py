"""Evaluation over data of any size: exact, streamed, resumable."""

from .adding.metrics import Max as Max
from .adding.metrics import Mean as Mean
from .adding.metrics import Min as Min
from .adding.metrics import Sum as Sum
from .result import Evaluation as Evaluation
from .run import evaluate as evaluate
