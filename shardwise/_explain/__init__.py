"""`explain`: what a sharded program sends, by whom and how much; what it holds and costs."""

from .explain import explain as explain
from .hardware import Hardware as Hardware
from .report import Report as Report
