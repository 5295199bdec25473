import pytest


@pytest.fixture(autouse=True)
def _strict(strict_promotion):
    """Every program of the table, and the simulator under it, lives with strict promotion."""
