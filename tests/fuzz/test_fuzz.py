"""Random programs, simulated against real; `python -m tests.fuzz` runs more of them."""

from collections import Counter

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import trial
from .draw import Drawn, Seeded
from .generate import generate
from .shrink import shrink

PROGRAMS = 120
HANGS = 20
COUNTS: Counter = Counter()

# Each new program is compiled twice; explaining and reproducing would compile hundreds more.
OPTIONS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@st.composite
def programs(draw, hangs=False):
    return generate(Drawn(draw), hangs=hangs)


@pytest.fixture(autouse=True, scope="module")
def _small_caches():
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _strict(strict_promotion):
    pass


def check(program):
    outcome = trial.attempt(program)
    COUNTS[outcome.kind] += 1
    if sum(COUNTS.values()) % 50 == 0:
        jax.clear_caches()
    assert outcome.kind != "wrong", f"{outcome.why}\n\n{program.script()}"


@settings(OPTIONS, max_examples=PROGRAMS)
@given(programs())
def test_simulated_is_real(program):
    check(program)


def test_jax_refuses_few_of_the_programs():
    """Runs after the programs: too many refused ones would prove nothing."""
    tried = COUNTS["right"] + COUNTS["refused"]
    if tried < PROGRAMS // 2:
        pytest.skip("the programs have not been run in this process")
    assert COUNTS["refused"] < 0.3 * tried, COUNTS


@settings(OPTIONS, max_examples=HANGS)
@given(programs(hangs=True))
def test_every_deadlock_is_found(program):
    check(program)


# --- the generator itself


@pytest.mark.parametrize("number", range(3))
def test_a_program_reads_as_the_code_that_runs(number):
    program = generate(Seeded(f"reads {number}"))
    code = program.code()
    compile(program.script(), "script", "exec")
    assert code in program.script()
    assert generate(Seeded(f"reads {number}")).code() == code


def test_the_generator_covers_the_language():
    seen = Counter(f for k in range(300) for f in generate(Seeded(f"covers {k}")).features)
    wanted = {
        *("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute"),
        *("partial ppermute", "psum in groups", "psum of integers", "all_gather to invarying"),
        *("scan", "reverse scan", "fori_loop", "while_loop", "cond", "switch"),
        *("loops of different lengths", "branches that differ over other axes"),
        *("fori_loop as long as data says", "a collective in a loop's condition"),
        *("grad in the body", "jvp in the body", "vmap in the body", "jit in the body"),
        *("checkpoint in the body", "random", "an output that only seems replicated"),
        *("plain", "jit", "grad", "remat", "jvp", "vmap", "grad of the simulated"),
        *("vmap of the simulated", "check_vma", "no check_vma", "1 axes", "2 axes", "3 axes"),
    }
    assert wanted <= {feature for feature, times in seen.items() if times >= 3}


def test_a_failing_program_is_made_smaller():
    program = generate(Seeded("small 1"), length=9)

    def fails(candidate):
        return "lax." in str(candidate.body.statements)

    small = shrink(program, fails, seconds=5)
    assert fails(small)
    assert len(str(small.body)) < len(str(program.body))
    compile(small.script(), "script", "exec")


def test_a_wrong_number_is_seen():
    """A check that the check can fail."""
    want = ({"a": jax.numpy.ones(3)},)
    assert trial.compare(want, want).kind == "right"
    for got in (
        ({"a": jax.numpy.ones(3) * 1.0001},),
        ({"a": jax.numpy.ones(4)},),
        ({"a": jax.numpy.ones(3, int)},),
        ({"b": jax.numpy.ones(3)},),
    ):
        assert trial.compare(jax.device_get(got), jax.device_get(want)).kind == "wrong"
