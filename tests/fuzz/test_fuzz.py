"""Random programs, simulated against real; `python -m tests.fuzz` runs more of them."""

from collections import Counter

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from . import trial
from .draw import Drawn, Seeded
from .generate import generate
from .shrink import shrink

PARTS = 4
PROGRAMS = 40
HANGS = 20

# Each new program is compiled twice; explaining and reproducing would compile hundreds more.
OPTIONS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def _strict(strict_promotion):
    yield
    jax.clear_caches()


def run(count, part, hangs=False):
    """Draw and try `count` programs; what came of them."""
    kinds = Counter()

    @seed(part)
    @settings(OPTIONS, max_examples=count)
    @given(st.data())
    def each(data):
        program = generate(Drawn(data.draw), hangs=hangs)
        outcome = trial.attempt(program)
        kinds[outcome.kind] += 1
        assert outcome.kind != "wrong", f"{outcome.why}\n\n{program.script()}"

    each()
    return kinds


@pytest.mark.parametrize("part", range(PARTS))
def test_simulated_is_real(part):
    kinds = run(PROGRAMS, part)
    # Programs that JAX refuses prove nothing.
    assert kinds["refused"] < 0.3 * PROGRAMS, kinds


def test_every_deadlock_is_found():
    run(HANGS, PARTS, hangs=True)


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
