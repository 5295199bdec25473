"""The benchmarks' shared table, and that `make bench` names scripts that are there."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """A module of the folder, which is no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name):
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize(
    ("value", "limit", "at_least", "row"),
    [
        (1.02, 1.02, False, ["it", "1.02 x", "<= 1.02 x", "reached"]),
        (1.03, 1.02, False, ["it", "1.03 x", "<= 1.02 x", "not reached"]),
        (0.86, 0.85, True, ["it", "0.86 x", ">= 0.85 x", "reached"]),
        (0.84, 0.85, True, ["it", "0.84 x", ">= 0.85 x", "not reached"]),
        (0.05, 0.25, False, ["it", "1/20.0", "<= 0.25 x", "reached"]),
    ],
)
def test_a_ratio_has_a_verdict(load, value, limit, at_least, row):
    assert load("report").Target("it", value, limit, at_least).row() == row


def test_the_verdicts_of_a_script_reach_the_one_that_runs_all(load, monkeypatch, tmp_path, capsys):
    report, everything = load("report"), load("all")
    kept = tmp_path / "kept"
    monkeypatch.setenv(report.KEPT, str(kept))
    found = [report.Target("a", 1.0, 1.1), report.Target("b", 0.5, 0.85, at_least=True)]
    report.conclude(found)
    assert "not reached" in capsys.readouterr().out
    assert [json.loads(line)["what"] for line in kept.read_text().splitlines()] == ["a", "b"]
    assert [target.row() for target in everything.read(kept)] == [one.row() for one in found]
    assert everything.read(tmp_path / "nothing") == []


def test_every_script_that_is_run_is_there_and_concludes(load):
    everything = load("all")
    for script in {*everything.ON_HOST, *everything.ON_GPU}:
        text = (BENCHMARKS / f"{script.name}.py").read_text()
        if "from forms import" in text:
            text += (BENCHMARKS / "forms.py").read_text()
        assert "report.conclude(" in text, script.name
        for argument in (*script.full, *(script.quick or ())):
            if argument.startswith("--"):
                assert f'"{argument}"' in text, f"{script.name} {argument}"


def test_a_script_that_fails_is_named(load, monkeypatch, tmp_path):
    everything = load("all")
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(everything, "HERE", tmp_path)
    said = everything.run(everything.Script("broken"), False, tmp_path / "kept")
    assert said == "failed with exit status 3"


def test_the_page_of_results_is_what_was_kept(load):
    results = load("results")
    page = results.PAGE.read_text(encoding="utf-8")
    assert page == results.page()
    assert len(page.split()) <= 3000
    assert "The reason is not known" not in page


def test_new_ratios_replace_those_of_the_same_script_and_device(load, monkeypatch, tmp_path):
    report, results = load("report"), load("results")
    for name in ("DATA", "PAGE", "REASONS"):
        monkeypatch.setattr(results, name, tmp_path / name)
    results.REASONS.write_text('[one]\n"a / b" = "Because."\n')

    def run(value, device):
        return results.Run("one", device, "then", "one.py", (report.Target("a / b", value, 1.0),))

    results.keep([run(2.0, "CPU"), run(0.5, "GPU")])
    assert "**one: a / b**, 2.00 x. Because." in results.PAGE.read_text()
    results.keep([run(0.9, "CPU")])
    page = results.PAGE.read_text()
    assert "0.90 x" in page
    assert "2.00 x" not in page
    assert "0.50 x" in page
