"""Every row of the conformance table, simulated against real."""

import pytest

from . import table


@pytest.mark.parametrize("row", list(table.rows()), ids=str)
def test_simulated_is_real(row):
    table.conform(row)
