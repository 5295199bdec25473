"""JAX's errors about meshes and specs, told with the place, the rule and the remedy."""

from .read import reading_errors

__all__ = ["reading_errors"]
