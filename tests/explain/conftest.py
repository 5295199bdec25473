"""Reports that several files of tests read, made once."""

from __future__ import annotations

import pytest

import shardwise as sw

from .pages import make_reports


@pytest.fixture(scope="session")
def reports(tmp_path_factory) -> dict[str, sw.Report]:
    """Reports of all kinds by name: those of `pages.KINDS`."""
    return make_reports(tmp_path_factory.mktemp("hostile"))
