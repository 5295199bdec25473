"""Checksums of what is written, so that what is read back can be told from what was damaged.

CRC-32 finds every flipped bit, every run of up to 32 damaged bits, and misses other damage once in
four billion; zlib computes it at about a gigabyte per second without holding the interpreter.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

SEAL = "crc"


def checksum(*parts: Any) -> int:
    """Return the checksum of bytes, or of contiguous buffers, one after another."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def seal(facts: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Return facts that go into JSON, with a checksum over all of them under `crc`.

    Args:
        facts: The facts.
        key: What they belong to, such as the name of a run. It is part of the checksum and is not
            stored: facts that belong to something else do not fit.
    """
    return {**facts, SEAL: f"{checksum(key.encode(), _canonical(facts)):08x}"}


def broken_seal(facts: Any, key: str = "") -> str:
    """Return what is wrong with sealed facts, as a clause; empty if nothing is."""
    if not isinstance(facts, dict):
        return f"it holds a {type(facts).__name__} where named values were written"
    if SEAL not in facts:
        return "its checksum is missing"
    rest = {name: value for name, value in facts.items() if name != SEAL}
    try:
        right = seal(rest, key)[SEAL] == facts[SEAL]
    except (TypeError, ValueError):
        right = False
    return "" if right else "its checksum does not fit what it holds"


def _canonical(facts: dict[str, Any]) -> bytes:
    """Return one text for the same facts, before and after they went through JSON."""
    return json.dumps(json.loads(json.dumps(facts)), sort_keys=True).encode()
