"""`explain`: report what a sharded program sends, stores and costs, without running it."""

from .budget import BudgetError as BudgetError
from .budget import excesses as excesses
from .earlier import changes_since as changes_since
from .explain import explain as explain
from .hardware import Hardware as Hardware
from .report import Report as Report
from .save import save_page as save_page
from .save import save_trace as save_trace
from .text import show as show
