"""JAX's errors about meshes and specs, told with the place, the rule and the remedy."""

from .read import reading_errors
from .results import refuse_later, refuse_results

__all__ = ["reading_errors", "refuse_later", "refuse_results"]
