"""Every wrong program of the corpus is faulted, on the right line; no right one is."""

import collections

import pytest

from shardwise._analysis.faults import FAULTS, NUMBERS

from .corpus import KINDS, pairs
from .judge import judge

PAIRS = list(pairs())

each = pytest.mark.parametrize("pair", PAIRS, ids=str)


def test_the_corpus_is_large_and_mixed():
    assert len(PAIRS) >= 40
    kinds = collections.Counter(pair.kind for pair in PAIRS)
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 5
    codes = set().union(*(pair.codes for pair in PAIRS))
    certain = {code for code, fault in FAULTS.items() if NUMBERS in fault.evidence}
    assert codes >= certain - {"SW110", "SW410"}, "SW110 needs a reference, SW410 a bug of ours"


@each
def test_each_pair_says_what_is_wrong_and_where(pair):
    assert pair.mistake.endswith(".")
    assert 1 <= len(pair.lines) <= 3
    assert pair.right is not pair.wrong


@each
def test_the_wrong_one_is_faulted_on_the_right_line(pair):
    judgement = judge(pair)
    assert judgement.faulted, f"{pair} passed"
    assert judgement.named, judgement.wrong
    assert judgement.on_line, judgement.wrong
    assert not judgement.astray, judgement.wrong


@each
def test_the_right_one_is_not_faulted(pair):
    assert judge(pair).right.ok, judge(pair).right
