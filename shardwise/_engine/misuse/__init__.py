"""Translate JAX's errors about meshes and specs: add the line, the rule and the remedy."""

from .results import refuse_not_run, refuse_results
from .translate import reading_errors

__all__ = ["reading_errors", "refuse_not_run", "refuse_results"]
