"""`simulate`: a traced function on a mesh becomes ordinary JAX on one device."""
