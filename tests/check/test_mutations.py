"""A sample of the mutants of the gallery; `python -m tests.check.mutate` judges all of them."""

import pytest

import shardwise as sw

from .mutate import SHAPES, examples, judge, mutants, original, parse, run

EVERY = 31
ALL = [mutant for example in examples() for mutant in mutants(example)]
SAMPLE = ALL[5::EVERY]


def test_there_are_mutants_of_every_kind():
    kinds = " ".join(mutant.kind for mutant in ALL)
    for kind in ("delete psum", "psum -> pmean", "psum -> pmax", "axis ", "P(", "divisor"):
        assert kind in kinds
    assert {mutant.example for mutant in SAMPLE} == set(examples())


@pytest.mark.parametrize("example", examples())
def test_the_program_itself_passes(example):
    module, _ = original(example)
    sizes = dict(zip(module.AXES, SHAPES[len(module.AXES)], strict=True))
    args = module.example_args()
    verdict = sw.check(module.step, *args, mesh=sizes, reference=module.reference)
    assert verdict, verdict


@pytest.mark.parametrize("mutant", SAMPLE, ids=str)
def test_a_mutant_that_changes_the_result_is_faulted(mutant):
    outcome = judge(mutant)
    assert outcome.fate in {"refused", "unchanged", "faulted"}, outcome


def test_a_mutant_is_one_change():
    mutant = next(one for one in mutants("tensor_parallel") if one.kind == "delete psum")
    changed, whole = mutant.module(), run("tensor_parallel", parse("tensor_parallel"))
    assert changed.AXES == whole.AXES
    assert mutant.line > 0
