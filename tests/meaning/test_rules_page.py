"""The page of rules lists what there is a rule for, no more and no less.

python -m tests.meaning.test_rules_page    # write the table anew
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "prove" / "rules.md"


def rows() -> str:
    """The table as the page has it: primitives that share a rule in one row."""
    from shardwise._meaning import table

    by_rule: dict[str, list[str]] = {}
    for name, sentence in table().items():
        by_rule.setdefault(sentence, []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {sentence} |" for sentence, names in by_rule.items()]
    return "\n".join(["| primitive | what the rule says |", "|---|---|", *lines])


def test_the_page_has_every_rule():
    assert rows() in PAGE.read_text(encoding="utf-8"), "run python -m tests.meaning.test_rules_page"


def test_every_rule_says_what_it_does():
    from shardwise._meaning import table

    assert [name for name, sentence in table().items() if not sentence.endswith(".")] == []


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"\| primitive \|.*?(?=\n\n|\Z)", text, re.DOTALL)
    assert found is not None
    PAGE.write_text(text.replace(found[0], rows()), encoding="utf-8")
