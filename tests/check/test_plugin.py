"""The pytest plugin, by running pytest inside pytest."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

# The inner runs forget what they import; JAX cannot be imported twice.
import shardwise._analysis.check

from ..optional import needed

pytest_plugins = ["pytester"]

PROGRAM = """
import jax
import jax.numpy as jnp
import pytest
from jax import P

import shardwise as sw

X = jnp.arange(4.0)


def summed(x, *, mesh):
    def per_device(x):
        return jax.lax.psum(x.mean(), "data")

    return jax.shard_map(per_device, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def verdict():
    return sw.check(summed, X, mesh={"data": [1, 2]})

"""
SAID = [
    "E   *summed: WRONG on {data: 2}; right on {data: 1}",
    "E *SW401: result is 2 times what it is on one device: it is summed over 'data', where each*",
    'E * | return jax.lax.psum(x.mean(), "data")',
    "E * |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    "E *Fix (proved): use pmean instead of psum",
    'E *-*return jax.lax.psum(x.mean(), "data")',
    'E *+*return jax.lax.pmean(x.mean(), "data")',
]


def installed() -> bool:
    return any(
        point.value == "shardwise._pytest_plugin"
        for point in importlib.metadata.entry_points(group="pytest11")
    )


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on a file of tests, with the plugin."""
    for variable in ("CI", "BUILD_NUMBER"):
        # With either set, pytest's summary repeats messages in full.
        monkeypatch.delenv(variable, raising=False)
    plugin = [] if installed() else ["-p", "shardwise._pytest_plugin"]

    def run_tests(code, *args):
        pytester.makepyfile(code)
        return pytester.runpytest(*plugin, "-p", "no:cacheprovider", "--strict-markers", *args)

    return run_tests


def test_the_plugin_does_not_import_jax():
    code = "import sys, shardwise._pytest_plugin; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_run_without_meshes_does_not_import_jax(pytester):
    pytester.makepyfile("import sys\ndef test(): assert 'jax' not in sys.modules")
    plugin = [] if installed() else ["-p", "shardwise._pytest_plugin"]
    pytester.runpytest_subprocess(*plugin).assert_outcomes(passed=1)


def test_mesh_is_every_combination(run):
    result = run(
        """
        import pytest

        @pytest.mark.mesh(data=[1, 4], model=2)
        def test_it(mesh):
            assert mesh.axis_names == ("data", "model")
            assert mesh.shape["model"] == 2

        @pytest.mark.parametrize("x", [3])
        @pytest.mark.mesh(data=range(1, 3))
        def test_more(mesh, x):
            assert mesh.size in (1, 2)
        """,
        "-v",
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(
        [
            "*::test_it[[]data=1-model=2[]] PASSED*",
            "*::test_it[[]data=4-model=2[]] PASSED*",
            "*::test_more[[]data=2-3[]] PASSED*",
        ]
    )


def test_a_mark_on_a_test_that_takes_no_mesh(run):
    result = run("import pytest\n@pytest.mark.mesh(data=8)\ndef test_it(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_it (line 2): the test does not take the mesh of @pytest.mark.mesh.",
            "  Remedy: name it as an argument, def test_it(mesh), or remove the mark.",
        ]
    )


def test_a_mark_on_a_class_holds_for_those_that_take_a_mesh(run):
    result = run(
        """
        import pytest

        pytestmark = pytest.mark.mesh(data=2)

        @pytest.mark.mesh(data=4)
        class TestAll:
            def test_with(self, mesh):
                assert mesh.size == 4

            def test_without(self):
                pass

        def test_plain():
            pass
        """
    )
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    "code",
    [
        "@pytest.mark.mesh(data=2)\nclass TestAll:\n    def test_it(self): pass",
        "pytestmark = pytest.mark.mesh(data=2)\ndef test_it(): pass",
        "@pytest.mark.mesh(data=2)\nclass TestAll(unittest.TestCase):\n    def test_it(self): pass",
        "@pytest.mark.parametrize('k', [pytest.param(1, marks=pytest.mark.mesh(data=2))])\n"
        "def test_it(k): pass",
    ],
)
def test_a_mark_that_gives_a_mesh_to_nobody(run, code):
    result = run(f"import pytest, unittest\n{code}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the test does not take the mesh of @pytest.mark.mesh."])


def test_a_mark_for_tests_that_were_not_asked_for(pytester):
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.mesh(data=2)

        def test_plain():
            pass

        class TestOthers:
            def test_with(self, mesh):
                pass
        """
    )
    name = "test_a_mark_for_tests_that_were_not_asked_for.py::test_plain"
    pytester.runpytest_subprocess(name).assert_outcomes(passed=1)


def test_a_mark_in_a_parameter_comes_too_late(run):
    marks = "pytest.param(1, marks=pytest.mark.mesh(data=2))"
    result = run(
        f"import pytest\n@pytest.mark.parametrize('k', [{marks}])\ndef test_it(k, mesh): pass"
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a mark in pytest.param comes too late for it."])


def test_the_closest_mark_counts(run):
    result = run(
        """
        import pytest

        @pytest.mark.mesh(data=[1, 2], model=3)
        class TestAll:
            @pytest.mark.mesh(data=4)
            def test_it(self, mesh):
                assert dict(mesh.shape) == {"data": 4, "model": 3}
        """
    )
    result.assert_outcomes(passed=1)


def test_a_mesh_fixture_of_the_user_stands(run):
    result = run(
        """
        import pytest

        @pytest.fixture
        def mesh():
            return "mine"

        def test_it(mesh):
            assert mesh == "mine"
        """
    )
    result.assert_outcomes(passed=1)


def test_params_of_a_fixture_of_the_user_stand(run):
    result = run(
        """
        import pytest

        @pytest.fixture(params=["mine", "too"])
        def mesh(request):
            return request.param

        @pytest.mark.mesh(data=[1, 2, 4])
        def test_it(mesh):
            assert mesh in ("mine", "too")
        """
    )
    result.assert_outcomes(passed=2)


def test_a_mark_that_a_fixture_of_the_user_cannot_hear_of_is_refused(run):
    result = run(
        """
        import pytest

        @pytest.fixture
        def mesh():
            return "mine"

        @pytest.mark.mesh(data=[1, 2])
        def test_it(mesh):
            assert mesh == "mine"
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the fixture 'mesh' here*ignores the meshes of*"])


@pytest.mark.parametrize("made", ["mesh(request): return request.param", "mesh(mesh): return mesh"])
def test_a_fixture_of_the_user_that_takes_what_the_mark_names_is_given_it(run, made):
    result = run(
        f"""
        import pytest

        @pytest.fixture
        def {made}

        @pytest.mark.mesh(data=[1, 2])
        def test_it(mesh):
            assert dict(getattr(mesh, "shape", mesh))["data"] in (1, 2)
        """
    )
    result.assert_outcomes(passed=2)


def test_mesh_without_a_mark(run):
    result = run("def test_it(mesh): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_it (line 1): the fixture 'mesh' has no axis sizes.",
            "  Remedy: @pytest.mark.mesh(data=[[]1, 2, 4, 8[]])",
        ]
    )


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("mesh(8)", "mesh(8,) names no axes by keywords."),
        ("mesh", "mesh() names no axes by keywords."),
        ("mesh(data=0)", "data=0 is not a positive integer or a list of them."),
        ("mesh(data='8')", "data='8' is not a positive integer or a list of them."),
        ("mesh(data=[])", "data=[[][]] is not a positive integer or a list of them."),
    ],
)
def test_a_mark_that_makes_no_sense(run, mark, message):
    result = run(f"import pytest\n@pytest.mark.{mark}\ndef test_it(mesh): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*::test_it (line 2): {message}"])


def test_a_size_that_is_named_twice_is_one_test(run):
    result = run("import pytest\n@pytest.mark.mesh(data=[2, 2, 4, 2])\ndef test_it(mesh): pass")
    result.assert_outcomes(passed=2)


def test_the_marker_is_documented(run):
    run("", "--markers").stdout.fnmatch_lines(["@pytest.mark.mesh(*axes): run the test on every*"])


@pytest.mark.parametrize(
    "statement",
    [
        "assert verdict()",
        "assert sw.check(summed, X, mesh={'data': [1, 2]})",
        "assert verdict().ok",
        "v = verdict(); assert v",
        "for v in [verdict()]: assert v",
        "v = verdict()\n    assert v, v",
        "v = verdict()\n    assert (\n        X.any() and\n        v.ok\n    )",
        "assert [verdict()][0]",
    ],
)
def test_a_failed_assert_says_what_the_verdict_says(run, statement):
    result = run(f"{PROGRAM}def test_it():\n    {statement}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(SAID)
    shown = result.stdout.str()
    body, summary = shown.split("short test summary info")
    assert body.count("SW401") == 1
    assert re.search(r"FAILED \S+ - SW", summary)
    assert "+  where" not in shown


def test_the_summary_begins_with_code_and_line(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run(f"{PROGRAM}def test_it():\n    assert verdict()\n")
    line = next(i for i, text in enumerate(PROGRAM.strip().splitlines(), 1) if "psum(" in text)
    result.stdout.fnmatch_lines([f"FAILED *::test_it - SW401 *.py:{line}: result is 2 times what*"])


def test_a_method_of_a_test_case_says_so_too(run):
    case = "import unittest\nclass TestAll(unittest.TestCase):\n    def test_it(self):\n"
    result = run(f"{PROGRAM}{case}        assert verdict()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(SAID)
    assert re.search(r"FAILED \S+ - SW", result.stdout.str())


def test_the_words_of_the_user_come_first(run):
    result = run(f"{PROGRAM}def test_it():\n    assert verdict(), 'the step is wrong'\n")
    result.stdout.fnmatch_lines(["E *AssertionError: the step is wrong", *SAID])


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("assert len(v.findings) == 7", "E *assert 1 == 7"),
        ("assert not v.findings", "E *assert not (Finding(*"),
        ("x = 0; assert x", "E *assert 0"),
    ],
)
def test_other_asserts_are_left_alone(run, statement, shown):
    result = run(f"{PROGRAM}def test_it():\n    v = verdict()\n    {statement}\n")
    result.stdout.fnmatch_lines([shown])
    assert "Fix (proved)" not in result.stdout.str().partition("where")[0]


def test_raise_if_wrong_shows_the_line_of_the_test(run):
    result = run(f"{PROGRAM}def test_it():\n    verdict().raise_if_wrong()\n")
    result.stdout.fnmatch_lines([">       verdict().raise_if_wrong()", *SAID])
    assert "verdict.py" not in result.stdout.str()


def test_it_works_under_xdist(run):
    needed("xdist", "that the plugin works under it")
    code = PROGRAM + (
        "@pytest.mark.mesh(data=[1, 2])\ndef test_mesh(mesh):\n    assert mesh.size < 3\n\n"
        "def test_it():\n    assert verdict()\n"
    )
    result = run(code, "-n", "1")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(SAID)
    assert shardwise._analysis.check
