"""Errors, progress, dtypes and durable files: what every other package builds on."""
