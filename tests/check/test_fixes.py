"""Fixes: edits of the source that are verified before they are shown."""

from __future__ import annotations

import functools
import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import shardwise as sw
from shardwise._analysis.fixes.live import LoadedFile
from shardwise._analysis.fixes.search import Search
from shardwise._analysis.fixes.source import Edit, Source
from shardwise._analysis.lift import run
from tests.support import normal, real_mesh

from .fixes import of_corpus

X, W, Y = normal(8, 4), normal(4), normal(8)
SPECS = (P(), P("data"), P("data"))
DATA = {"data": [1, 2, 4]}


def fix_of(verdict: sw.Verdict) -> sw.Fix:
    """The fix of a wrong program, at its first finding."""
    assert not verdict.ok
    fix = verdict.findings[0].fix
    assert fix is not None, verdict
    return fix


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def textbook(w, x, y, *, mesh):
    def body(w, x, y):
        return jax.lax.pmean(jax.grad(loss)(w, x, y), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(w, x, y)


def test_the_textbook_gradient_gets_a_fix_that_was_proved():
    fix = fix_of(sw.check(textbook, W, X, Y, mesh=DATA))
    assert fix.verified == "proved"
    removed = [line for line in fix.diff.splitlines() if line.startswith("-        ")]
    added = [line for line in fix.diff.splitlines() if line.startswith("+        ")]
    assert removed == ['-        return jax.lax.pmean(jax.grad(loss)(w, x, y), "data")']
    assert len(added) == 1
    assert 'jax.lax.pcast(w, "data", to="varying")' in added[0]


def test_the_search_leaves_the_program_as_it_was():
    jitted = jax.jit(functools.partial(textbook, mesh=real_mesh(data=4)))
    before, code = np.asarray(jitted(W, X, Y)), textbook.__code__
    fix_of(sw.check(textbook, W, X, Y, mesh=DATA))
    assert textbook.__code__ is code
    np.testing.assert_array_equal(jitted(W, X, Y), before)
    again = jax.jit(functools.partial(textbook, mesh=real_mesh(data=4)))
    np.testing.assert_array_equal(again(W, X, Y), before)


def test_no_fix_is_looked_for_where_none_is_wanted():
    verdict = sw.check(textbook, W, X, Y, mesh=DATA, fix=False)
    assert all(finding.fix is None for finding in verdict.findings)
    assert "Suggestion (not verified): " in str(verdict)


def test_the_text_shows_the_diff_in_place_of_the_suggestion():
    text = str(sw.check(textbook, W, X, Y, mesh=DATA))
    assert "Fix (proved): let `w` vary over" in text
    assert "\n    -        return jax.lax.pmean(jax.grad(loss)(w, x, y), " in text
    assert "Suggestion" not in text


def test_check_vma_false_is_named_as_the_cause():
    def step(w, x, y, *, mesh):
        def body(w, x, y):
            def mean(w):
                total = jax.lax.psum(jnp.sum((x @ w - y) ** 2), "data")
                return total / jax.lax.psum(len(y), "data")

            return jax.grad(mean)(w)

        shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=SPECS, out_specs=P())
        return shard(body, check_vma=False)(w, x, y)

    fix = fix_of(sw.check(step, W, X, Y, mesh=DATA))
    assert fix.verified == "proved"
    assert "+        return shard(body)(w, x, y)" in fix.diff
    assert fix.description.startswith("remove check_vma=False: ")


def test_a_share_is_summed_where_it_is_made_and_not_where_it_is_used():
    def step(x, w, b, *, mesh):
        def body(x, w, b):
            product = x @ w
            return jnp.tanh(product + b)

        specs = (P(None, "model"), P("model"), P())
        shard = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
        return shard(x, w, b)

    fix = fix_of(sw.check(step, X, W, np.float32(0.5), mesh={"model": [1, 2, 4]}))
    assert fix.verified == "proved"
    assert '+            product = jax.lax.psum(x @ w, "model")' in fix.diff


def test_two_mistakes_are_fixed_by_one_patch():
    def step(x, *, mesh):
        def body(x):
            return jax.lax.psum(jnp.mean(x), "data"), jax.lax.pmean(jnp.sum(x**2), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    fix = fix_of(sw.check(step, X, mesh=DATA))
    assert fix.verified == "proved"
    assert 'jax.lax.pmean(jnp.mean(x), "data"), jax.lax.psum(jnp.sum(x**2), "data")' in fix.diff


class Model:
    """A program that is a method, with a lambda inside."""

    def total(self, x, *, mesh):
        body = lambda x: jax.lax.pmean(x.sum(), "data")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def test_methods_and_lambdas_are_fixed():
    model = Model()
    fix = fix_of(sw.check(model.total, X, mesh=DATA))
    assert '+        body = lambda x: jax.lax.psum(x.sum(), "data")  # noqa: E731' in fix.diff


@jax.jit
def reduced(x):
    return jax.lax.pmean(x.sum(), "data")


def test_functions_that_jax_has_cached_are_fixed():
    def step(x, *, mesh):
        return jax.shard_map(reduced, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    fix = fix_of(sw.check(step, X, mesh=DATA))
    assert '+    return jax.lax.psum(x.sum(), "data")' in fix.diff


PROGRAM = """
from jax.lax import psum
from jax import P, shard_map
import shardwise as sw
import numpy as np

def mean(x, *, mesh):
    body = lambda x: psum(x.mean(), "data")
    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

@sw.case(mesh={"data": [1, 2, 4]})
def average():
    return mean, (np.arange(8, dtype=np.float32),)
"""


def program_from(text, name):
    """A function whose source is in linecache alone, as that of a notebook cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict = {}
    exec(compile(text, name, "exec"), names)
    return names["mean"]


def test_notebook_cells_are_fixed_and_a_missing_import_is_added():
    mean = program_from(PROGRAM, "<ipython-input-1-fixes>")
    fix = fix_of(sw.check(mean, np.arange(8, dtype=np.float32), mesh=DATA))
    assert "+from jax.lax import psum, pmean\n" in fix.diff
    assert "lambda x: pmean(x.mean(), " in fix.after
    fixed = program_from(fix.after, "<ipython-input-2-fixes>")
    assert sw.check(fixed, np.arange(8, dtype=np.float32), mesh=DATA)
    assert not {"jax", "pmean"} & {*mean.__globals__}


def test_without_source_there_is_no_fix():
    names: dict = {}
    exec(compile(PROGRAM, "<no such file>", "exec"), names)
    verdict = sw.check(names["mean"], np.arange(8, dtype=np.float32), mesh=DATA)
    assert not verdict.ok
    assert all(finding.fix is None for finding in verdict.findings)


def test_an_edit_is_undone_when_the_program_raises():
    source = Source.read(__file__)
    assert source is not None
    live = LoadedFile(source)
    code = textbook.__code__
    at = source.data.index(b"def loss(w, x, y):\n    return") + len("def loss(w, x, y):\n    ")
    with pytest.raises(ZeroDivisionError), live.edited([Edit(at, at, "1/0;")]):
        loss(W, X, Y)
    assert textbook.__code__ is code
    assert np.isfinite(loss(W, X, Y))


OUTSIDE = """
import functools
import jax
import jax.numpy as jnp
from jax import P
from jax.lax import pmean, psum

{constants}

def loss(w, x):
    return pmean(jnp.mean((x @ w) ** 2), "data")

{program}
"""
DECORATED = """
@functools.partial(jax.shard_map, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
def mean(w, x):
    return jax.grad(loss)(w, x)
"""
CALLED = """
def body(w, x):
    return jnp.tanh(x @ w)

mapped = jax.shard_map(body, in_specs=(P(), P("data")), out_specs=OUT)

def mean(w, x):
    return mapped(w, x)
"""
MODULES = {
    "decorator": (
        ("", DECORATED),
        '+@functools.partial(jax.shard_map, in_specs=(P(), P("data")), out_specs=P())',
    ),
    "constant": (
        ('OUT = P(None, "data")', CALLED.replace("x @ w)", "x @ w)[:, None] + jnp.zeros(4)")),
        '+OUT = P("data")',
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_decorators_and_constants_outside_functions_are_fixed(name):
    (constants, program), line = MODULES[name]
    text = OUTSIDE.format(constants=constants, program=program)
    mean = program_from(text, f"<ipython-input-outside-{name}>")
    before = {**mean.__globals__} if hasattr(mean, "__globals__") else {}
    fix = fix_of(sw.check(mean, W, X, mesh=DATA))
    assert line in fix.diff
    assert all(mean.__globals__[name] is value for name, value in before.items())
    fixed = program_from(fix.after, f"<ipython-input-outside-{name}-fixed>")
    assert sw.check(fixed, W, X, mesh=DATA, reference=sw.simulate(mean, mesh={"data": 1}))


def test_a_statement_that_does_more_than_define_is_not_executed_again():
    text = OUTSIDE.format(
        constants='OUT = P(None, "data")\nmade = []',
        program=MODULES["constant"][0][1] + "\nmade.append(mapped)\n",
    )
    mean = program_from(text, "<ipython-input-outside-effects>")
    assert not sw.check(mean, W, X, mesh=DATA).findings[0].fix
    assert len(mean.__globals__["made"]) == 1


KEEPS_A_RECORD = {
    "a list": "made = []\ndef keep(f):\n    made.append(f)\n    return f",
    "a global": "made = ()\ndef keep(f):\n    global made\n    made += (f,)\n    return f",
    "an object": "made = []\nclass Book:\n    keep = made.append\ndef keep(f):\n"
    "    Book.keep(f)\n    return f",
    "a method": "made = []\ndef keep(f, add=made.append):\n    add(f)\n    return f",
    "a function of a function": "made = []\ndef add(f):\n    made.append(f)\n"
    "def keep(f):\n    add(f)\n    return f",
}


@pytest.mark.parametrize("name", KEEPS_A_RECORD)
def test_what_a_decorator_records_is_recorded_once(name):
    text = OUTSIDE.format(
        constants='OUT = P(None, "data")\n' + KEEPS_A_RECORD[name],
        program=MODULES["constant"][0][1].replace(
            "mapped = jax.shard_map(body", "mapped = keep(jax.shard_map)(body"
        ),
    )
    mean = program_from(text, f"<ipython-input-recorded-{name}>")
    count = len(mean.__globals__["made"])
    assert count == 1
    assert not sw.check(mean, W, X, mesh=DATA).findings[0].fix
    assert len(mean.__globals__["made"]) == count


def test_names_that_are_imported_bare_are_written_bare():
    text = OUTSIDE.format(
        constants="",
        program="""
def mean(w, x):
    body = lambda w, x: psum(jnp.mean(x @ w), "data")
    return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())(w, x)
""",
    )
    fix = fix_of(sw.check(program_from(text, "<ipython-input-bare>"), W, X, mesh=DATA))
    assert '+    body = lambda w, x: pmean(jnp.mean(x @ w), "data")' in fix.diff


def test_several_shares_are_reduced_where_they_are_made():
    def step(x, *, mesh):
        def body(x):
            mean, second = x.mean(0), (x**2).mean(0)
            return (x - mean) * jax.lax.rsqrt(second - mean**2 + 1e-5)

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    fix = fix_of(sw.check(step, X, mesh=DATA))
    assert fix.verified == "proved"
    assert 'pmean(x.mean(0), "data"), jax.lax.pmean((x**2).mean(0), "data")' in fix.diff


STATISTICS = {
    "norm": (lambda x: x / jnp.linalg.norm(x), 'jnp.sqrt(jax.lax.psum(jnp.sum(x**2), "data"))'),
    "mean and variance": (
        lambda x: (x - jnp.mean(x, 0)) / jnp.sqrt(jnp.var(x, axis=0) + 1e-5),
        'x - jax.lax.pmean(jnp.mean(x, 0), "data")) / jnp.sqrt(jax.lax.pmean(((x - ',
    ),
    "mean, and variance by hand": (
        lambda x: (x - (m := x.mean(0))) / jnp.sqrt(((x - m) ** 2).mean(0) + 1e-5),
        'm := jax.lax.pmean(x.mean(0), "data"))) / jnp.sqrt(jax.lax.pmean(((x - m) ** 2).mean(0)',
    ),
    "mean of what counts": (
        lambda x: x - jnp.mean(x, where=x > 0),
        'jax.lax.psum(jnp.sum(x, where=x > 0), "data") / jax.lax.psum(jnp.sum(x > 0), "data")',
    ),
    "weighted average": (
        lambda x: x - jnp.average(x, weights=x**2, axis=0),
        'jax.lax.psum(jnp.sum((x) * (x**2), axis=0), "data") / jax.lax.psum(jnp.sum(x**2, axis=0)',
    ),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_a_part_become_those_of_the_whole(name):
    body, text = STATISTICS[name]

    def step(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    fix = fix_of(sw.check(step, X, mesh=DATA))
    assert fix.verified == "proved"
    assert text in fix.diff


AXIS = "data"


def sum_of_all(tree):
    return jax.tree.map(functools.partial(jax.lax.psum, axis_name=AXIS), tree)


def summed_by_autodiff_too(w, x, y):
    return sum_of_all(jax.grad(loss)(w, x, y))


def test_a_gradient_that_is_summed_by_autodiff_and_by_the_program():
    def step(w, x, y, *, mesh):
        shard = jax.shard_map(summed_by_autodiff_too, mesh=mesh, in_specs=SPECS, out_specs=P())
        return shard(w, x, y)

    fix = fix_of(sw.check(step, W, X, Y, mesh=DATA))
    assert fix.verified == "proved"
    assert "functools.partial(jax.lax.pmean, axis_name=AXIS)" in fix.diff
    assert 'jax.grad(loss)(jax.lax.pcast(w, "data", to="varying"), x, y)' in fix.diff


def test_a_program_with_its_checks_on_keeps_the_options_of_others():
    text = OUTSIDE.format(
        constants="OTHERS = dict(check_vma=False)",
        program="""
def mean(w, x):
    body = lambda w, x: jax.lax.pmean(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), "data")
    return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())(w, x)
""",
    )
    fix = fix_of(sw.check(program_from(text, "<ipython-input-others>"), W, X, mesh=DATA))
    assert "OTHERS = dict(check_vma=False)\n" in fix.after


def dropped(x, key, per_device, mesh):
    def body(x, key):
        if per_device:
            key = jax.random.fold_in(key, jax.lax.axis_index("data"))
            key = jax.random.fold_in(key, jax.lax.axis_index("model"))
        return x * jax.random.bernoulli(key, 0.5, x.shape)

    specs = P("data", "model")
    return jax.shard_map(body, mesh=mesh, in_specs=(specs, P()), out_specs=specs)(x, key)


@pytest.mark.parametrize("per_device", [False, True])
def test_random_numbers_are_drawn_for_an_array_that_is_split_twice(per_device):
    def step(x, key, *, mesh):
        return dropped(x, key, per_device, mesh)

    verdict = sw.check(step, X, jax.random.key(0), mesh={"data": [1, 2], "model": [1, 2]})
    assert fix_of(verdict).verified == "proved"
    message = verdict.findings[0].message
    assert ("with a key of its own" in message) == per_device
    assert ("accept it: `# shardwise: ignore[SW106]`" in message) == per_device


def spec_of_the_result(x, *, mesh):
    body = lambda x: x * 2  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(None, "data"))(x)


def spec_of_the_argument(x, *, mesh):
    def body(x):
        return jax.lax.psum(x.sum(0), "data"), x * 2

    specs = (P(), P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=specs, check_vma=False)(x)


def doubled_divisor(x, *, mesh):
    def body(x):
        return jax.lax.psum(x.sum(0), "data") / 8 / 2

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def missing_divisor(x, *, mesh):
    def body(x):
        return jax.lax.psum_scatter(x.mean(0), "data", tiled=True)

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def part_is_not_sent_on(x, *, mesh):
    def body(x):
        part, total = x, jnp.tanh(x @ x.T).sum(1)
        for _ in range(jax.lax.axis_size("data") - 1):
            sent = part
            total = total + jnp.tanh(x @ sent.T).sum(1)
            part = sent
        return total

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def answers_are_not_sent_back(x, *, mesh):
    def back(answers):
        return answers

    def body(x):
        tokens = jax.lax.all_to_all(x, "data", split_axis=1, concat_axis=0, tiled=True)
        return jnp.tanh(back(tokens**2).sum(1))

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def loss_is_not_reduced(x, *, mesh):
    def body(x):
        value, gradient = jax.value_and_grad(jnp.vdot)(jnp.ones(x.shape[1]), x.sum(0))
        return value, jax.lax.psum(gradient, "data")

    specs = {"in_specs": P("data"), "out_specs": P(), "check_vma": False}
    return jax.shard_map(body, mesh=mesh, **specs)(x)


def largest_loss(x, *, mesh):
    def body(x):
        return jax.lax.pmax(jnp.mean(x**2), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


EDITED = {
    spec_of_the_result: 'out_specs=P("data"))',
    spec_of_the_argument: 'in_specs=P("data"), out_specs=specs',
    doubled_divisor: 'return jax.lax.psum(x.sum(0), "data") / 8',
    missing_divisor: '"data", tiled=True) / jax.lax.axis_size("data")',
    part_is_not_sent_on: 'sent = jax.lax.ppermute(part, "data", [(i, (i ',
    loss_is_not_reduced: 'return jax.lax.psum(value, "data"), ',
    largest_loss: 'return jax.lax.pmean(jnp.mean(x**2), "data")',
    answers_are_not_sent_back: 'all_to_all(answers, "data", split_axis=0, concat_axis=1, tiled',
}


@pytest.mark.parametrize("step", EDITED, ids=lambda step: step.__name__)
def test_specs_divisors_and_sends_are_mended(step):
    reference = (lambda x: x.mean(0)) if step is doubled_divisor else None
    verdict = sw.check(step, X, mesh={"data": [1, 4]}, reference=reference)
    fix = fix_of(verdict)
    assert any(line.startswith("+") and EDITED[step] in line for line in fix.diff.splitlines())
    assert fix.verified == "proved"
    if step is spec_of_the_result:  # a shape says what is wrong, and the fix says where
        assert "out_specs" in verdict.findings[0].where.text


CORPUS = (
    "data.mean_of_variances",
    "data.penalty_counted_by_every_device",
    "tensor.activation_before_the_sum",
    "tensor.gathered_along_the_wrong_dimension",
    "optimizer.clipped_by_the_norm_of_a_part",
    "randomness.same_mask_on_every_device",
    "control.iterations_of_each_device",
)


@pytest.mark.parametrize("name", CORPUS)
def test_fixes_are_right_on_real_devices(name):
    outcome = of_corpus(name)
    assert outcome.verified == "proved", outcome
    assert outcome.right, outcome


def twice_the_mean(x, *, mesh):
    def body(x):
        total = jax.lax.psum(x.sum(), "data")
        return 2 * total / jax.lax.psum(x.size, "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def test_a_finding_from_numbers_alone_names_the_line_of_its_fix():
    verdict = sw.check(twice_the_mean, X, mesh={"data": [1, 4]}, reference=lambda x: x.mean())
    assert fix_of(verdict).verified == "proved"
    (finding,) = verdict.findings
    assert finding.code == "SW110"
    assert finding.where.function == "body"
    assert finding.where.text == 'return 2 * total / jax.lax.psum(x.size, "data")'
    assert "|        ^^^^^^^^^\n" in str(finding)


def test_where_numbers_only_show_a_factor_the_line_is_that_of_the_fix():
    """A comment at that line silences the finding, as it does at any other."""
    verdict = sw.check(counted_by_the_devices, X[:, 0], mesh=DATA)
    (finding,) = verdict.findings
    assert (finding.code, finding.evidence) == ("SW401", "numbers")
    assert finding.where.text == 'total = jax.lax.psum(jnp.sort(x).sum(), "data")'
    silenced = sw.check(accepted, X[:, 0], mesh=DATA)
    assert silenced.ok
    assert [finding.code for finding in silenced.silenced] == ["SW401"]
    assert silenced.wrong_on == ()


def counted_by_the_devices(x, *, mesh):
    def body(x):
        total = jax.lax.psum(jnp.sort(x).sum(), "data")
        return total * jax.lax.axis_size("data")

    specs = {"in_specs": P("data"), "out_specs": P(), "check_vma": False}
    return jax.shard_map(body, mesh=mesh, **specs)(x)


def accepted(x, *, mesh):
    def body(x):
        total = jax.lax.psum(jnp.sort(x).sum(), "data")  # shardwise: ignore[SW401]
        return total * jax.lax.axis_size("data")

    specs = {"in_specs": P("data"), "out_specs": P(), "check_vma": False}
    return jax.shard_map(body, mesh=mesh, **specs)(x)


def convolved(x, kernel, *, mesh):
    def body(x, kernel):
        return jnp.convolve(x, kernel, mode="same")

    specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
    return jax.shard_map(body, mesh=mesh, **specs)(x, kernel)


def test_a_search_that_finds_nothing_costs_no_more_than_the_check(monkeypatch):
    """Counted in programs that are compiled, which is what both spend most of their time on."""
    compiled, tried = [], []
    compile_it, attempt = run.compiled, Search.attempt
    monkeypatch.setattr(run, "compiled", lambda *a: compiled.append(1) or compile_it(*a))
    monkeypatch.setattr(Search, "attempt", lambda *a: tried.append(a[1]) or attempt(*a))
    args = normal(16), normal(3)
    assert not sw.check(convolved, *args, mesh=DATA, fix=False)
    alone = len(compiled)
    compiled.clear()
    verdict = sw.check(convolved, *args, mesh=DATA)
    assert verdict.findings[0].fix is None
    assert alone < len(compiled) <= 2 * alone
    collectives = [text for one in tried for text in map(str, one.edits) if "lax." in text]
    assert collectives
    assert not any("(mesh," in text or "(body," in text for text in collectives)
