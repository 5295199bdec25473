"""The data-parallel step: layout of a batch, gradient, reduction, compiled program."""
