"""Every row of the conformance table, simulated against real."""

from itertools import cycle, groupby

import pytest

from . import table


def rows():
    """All rows, dealt out: of each program one to the first version of JAX, one to the second."""
    for _, own in groupby(table.rows(), key=lambda row: row.program):
        first, *others = own
        yield pytest.param(first, id=str(first), marks=[pytest.mark.once] if others else ())
        for row, mark in zip(others, cycle([pytest.mark.second, pytest.mark.once])):
            yield pytest.param(row, id=str(row), marks=mark)


@pytest.mark.parametrize("row", list(rows()))
def test_simulated_is_real(row):
    table.conform(row)
