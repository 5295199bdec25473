"""`practice`: exercises in sharded JAX, and a judge that sees more than one device."""
