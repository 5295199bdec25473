"""Random SPMD programs, simulated against real devices.

`language` says what a program is and writes it as Python, `generate` draws one, `trial` runs it
both ways and compares. `python -m tests.fuzz` runs as many as wanted.
"""
