"""JAX's own test file of `shard_map`, run with every `shard_map` simulated."""
