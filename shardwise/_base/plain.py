"""Dataclasses as plain data, ready for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


class Plain:
    """A dataclass that can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data: dicts, lists, numbers and strings."""
        names = [field.name for field in dataclasses.fields(self)]  # pyright: ignore
        return {name: plain(getattr(self, name)) for name in names}


def plain(value: Any) -> Any:
    """Convert a value to plain data for JSON."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple | list) else value
