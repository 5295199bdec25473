"""How long a test waits for what must happen: so long that only something that hangs takes longer.

A limit of time in a test is there to end it. None says how fast something is: a machine may be slow
or busy, and where a limit of the product is tested, no other one may be reached before it.
"""

from __future__ import annotations

HANGS = 900.0
"""Seconds after which a process or an answer that has not come never will."""
