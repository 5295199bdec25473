"""What JAX, Gloo and NCCL write, for `_jax.failures` and for the launcher, which imports no JAX."""

CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError")
"""Errors of collectives, and of what runs them, whose connection to a process broke."""

BARRIER_FAILED = "Shutdown barrier has failed"
"""JAX stopped waiting for processes that did not come to the end of the script."""

GLOO_CONNECTED = (
    r"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks?\. "
    r"Expected number of connected peer ranks is : (\d+)\s*"
)
"""Gloo's message about the ranks that are connected, and their expected number."""
