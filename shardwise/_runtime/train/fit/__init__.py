"""The training loop: steps, checkpoints, log, curves."""
