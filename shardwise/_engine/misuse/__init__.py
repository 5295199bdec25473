"""JAX's errors about meshes and specs, told with the place, the rule and the remedy."""

from .results import refuse_later, refuse_results
from .translate import reading_errors

__all__ = ["reading_errors", "refuse_later", "refuse_results"]
