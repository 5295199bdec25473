"""`practice`: exercises in sharded JAX, judged on several simulated devices."""
