"""The notebook of the examples runs, and shows what it says it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import notebook

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"
SHOWN = ["wrong", "right", "proof", "report", "inspection"]


@pytest.fixture(scope="module")
def tour():
    found = notebook.read(TOUR)
    return found, notebook.run(found)


def test_it_shows_a_wrong_step_and_its_fix(tour):
    space = tour[1]
    assert not space["wrong"].ok
    assert space["right"].ok
    assert space["proof"].ok
    assert space["report"].collectives


def test_what_is_shown_has_an_html_representation(tour):
    outputs = [o for cell in tour[0]["cells"] for o in cell.get("outputs", ())]
    pages = ["".join(o["data"]["text/html"]) for o in outputs if "text/html" in o.get("data", {})]
    assert len(pages) == len(SHOWN)
    assert all(page.startswith("<") for page in pages)
    assert "<script" not in "".join(pages)  # which a notebook that is not trusted leaves out


def test_its_stored_outputs_are_those_of_all_cells():
    """`python -m tests.notebook examples/tour.ipynb` writes them anew."""
    stored = notebook.read(TOUR)
    for cell in stored["cells"]:
        source = "".join(cell["source"])
        assert source == source.strip("\n")
        if cell["cell_type"] == "code" and source.splitlines()[-1] in SHOWN:
            assert cell["outputs"][-1]["data"]["text/html"]


def test_an_error_in_a_cell_is_an_error():
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": []}
    with pytest.raises(ZeroDivisionError):
        notebook.run({"cells": [cell]})
