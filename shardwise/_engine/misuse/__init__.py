"""JAX's errors about meshes and specs, told with the place, the rule and the remedy."""

from .results import refuse_not_run, refuse_results
from .translate import reading_errors

__all__ = ["reading_errors", "refuse_not_run", "refuse_results"]
