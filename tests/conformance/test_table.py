"""Every row of the conformance table, simulated against real."""

from collections import Counter

import pytest

from . import table


def rows():
    """All rows; of each program every second one says little more on a second version of JAX."""
    seen: Counter[str] = Counter()
    for row in table.rows():
        seen[row.program.name] += 1
        often = seen[row.program.name] % 2
        yield pytest.param(row, id=str(row), marks=() if often else pytest.mark.once)


@pytest.mark.parametrize("row", list(rows()))
def test_simulated_is_real(row):
    table.conform(row)
