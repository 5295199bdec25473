"""One class per fault, and the pages that are written from the classes."""

import pytest

from shardwise._analysis.faults import FAULTS, OLD, Fault, canonical, fault_of, nearest, render
from shardwise._analysis.faults.pages import PAGES

from .codes_pages import DOCS, PRINTS, without_output


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_classes_say(name):
    page = (DOCS / name / "codes.md").read_text(encoding="utf-8")
    assert without_output(page) == render(name), "run python -m tests.check.codes_pages"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.code)
def test_a_fault_is_documented(fault):
    assert fault.explanation.startswith("**")
    assert fault.title[0] != fault.title[0].upper() or fault.title[:3] in ("NaN", "1/n")
    assert not fault.right or fault.remedy, "what is right without how to get there"
    for code in (fault.wrong, fault.right):
        if code:
            compile(code, "example", "exec")
            assert PRINTS.search(code), "it shows what is found"


def test_every_kind_of_evidence_has_a_method():
    for fault in FAULTS.values():
        has = {
            name for name in ("meaning", "numbers", "operations") if hasattr(fault, f"from_{name}")
        }
        assert has <= {*fault.evidence}, fault


def test_old_codes_and_slips_lead_to_a_fault():
    assert canonical("SW101") == "SW401"
    assert canonical("SW401") == "SW401"
    assert fault_of("SW101") is fault_of("SW401")
    assert fault_of("SW999") is None
    assert nearest("SW4O1") == "SW401"
    assert {FAULTS[new].code for new in OLD.values()} == {*OLD.values()}


def test_a_code_belongs_to_one_fault(monkeypatch):
    with pytest.raises(ValueError, match="SW401 is the code of TooLarge"):
        type("Other", (Fault,), {"code": "SW401", "title": "x", "explanation": "**x**"})
    with pytest.raises(ValueError, match="SW101 is a former code of TooLarge"):
        type("Other", (Fault,), {"code": "SW101", "title": "x", "explanation": "**x**"})
    assert FAULTS["SW401"].__name__ == "TooLarge"
