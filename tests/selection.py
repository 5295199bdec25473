"""Which tests run when: the three sizes of the suite, and the tests of a second version of JAX.

`make test` runs every test, but of a test with many forms only some: `KEPT` of them, drawn by
`SHARDWISE_SAMPLE` (0 unless set). Forms are drawn by their names, so that the tests of a file that
are about the same program draw the same ones, and compile them once. What is left out is `rare`, as
is what takes long and is tested in a smaller form too.

`make test-all` also runs what takes long, and of the forms that are left `MORE`, drawn by the date:
day by day others. The remaining ones are `spare`, and `make test-every` runs all of them.
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

SAMPLE = os.environ.get("SHARDWISE_SAMPLE", "0")
FEW = 2
"""How many forms of a test always run."""
KEPT = 0.2
"""The share of them that runs if there are more."""
MORE = 0.1
"""The share of the others that `make test-all` runs too."""
DATE = os.environ.get("SHARDWISE_DATE") or datetime.date.today().isoformat()
"""Draws those. What fails says with which date, to repeat it."""
os.environ["SHARDWISE_DATE"] = DATE  # the workers draw the same, past midnight too

LONG = (
    "tests/campaigns/test_campaigns.py::test_a_short_campaign",
    "tests/campaigns/test_campaigns.py::test_files_in_wrong_places",
    "tests/check/test_marks.py::test_what_one_drawing_does_not_show_another_does",
    "tests/check/test_mutations.py",
    "tests/check/test_plugin.py::test_it_works_under_xdist",
    "tests/check/test_tied.py::test_a_proof_suspects_nothing_of_the_right_ring",
    "tests/check/test_tied.py::test_a_wrong_normaliser_is_named_and_not_the_product_before_it",
    "tests/check/test_tied.py::test_the_line_where_two_shares_meet",
    "tests/cli/test_output.py::test_nobody_who_reads_is_no_verdict[args1]",
    "tests/cli/test_settings.py::test_an_interrupt_waits_for_the_compiler",
    "tests/conformance/test_crossing.py::test_long_programs_are_not_computed_again_and_again",
    "tests/conformance/test_crossing.py::test_the_same_numbers_of_the_examples[1 at once-pipeline]",
    "tests/conformance/test_joint.py::test_scattered_sums_of_short_numbers",
    "tests/conformance/test_lowered.py::test_a_long_chain",
    "tests/conformance/test_lowered.py::test_layers_that_are_written_out_are_what_devices_do",
    "tests/conformance/test_objects.py::test_training_updates_in_place[whole_step-Net",
    "tests/evaluate/test_evaluate_at_rest.py::TestSignals::test_a_signal_during_the_compilation",
    "tests/evaluate/test_evaluate_at_rest.py::TestSignals::test_the_command_line_ends_with_128",
    "tests/evaluate/test_evaluate_at_rest.py::test_the_memory_of_an_iterable",
    "tests/evaluate/test_evaluate_stream.py::TestTheSameBits::test_in_processes_with_one_and_with",
    "tests/evaluate/test_evaluate_sums.py::test_a_running_float32_total_for_comparison",
    "tests/evaluate/test_evaluate_sums.py::test_very_many_values",
    "tests/evaluate/test_evaluate_weights.py::TestIntegers::test_one_large_step_of_the_largest",
    "tests/fuzz/test_fuzz.py::test_every_deadlock_is_found",
    "tests/fuzz/test_fuzz.py::test_simulated_is_real",
    "tests/fuzz/test_fuzz.py::test_the_generator_covers_the_language",
    "tests/hosts/test_hosts_train.py::test_the_example",
    "tests/hosts/test_launch.py::test_a_crash_loop_is_ended",
    "tests/hosts/test_launch.py::test_a_launcher_that_is_killed_may_come_back",
    "tests/practice/test_practice_cli.py::test_verify_proves_solutions_right_and_mistakes_wrong",
    "tests/test_docs.py::test_the_page_runs_and_shows_what_it_prints[docs/check/codes.md]",
    "tests/test_docs.py::test_the_page_runs_and_shows_what_it_prints[docs/train.md]",
    "tests/test_examples.py::test_digits_are_learnt_on_eight_devices",
    "tests/test_without_flax.py",
    "tests/train/test_at_rest.py::test_a_script_ends_with_the_signal",
    "tests/train/test_at_rest.py::test_an_array_that_changed_is_not_trained_on",
    "tests/train/test_at_rest.py::test_between_two_checkpoints_the_step_is_stored",
    "tests/train/test_at_rest.py::test_runs_that_never_came_to_a_checkpoint_leave_nothing",
    "tests/train/test_at_rest.py::test_tensorboard_can_follow",
    "tests/train/test_fit.py::test_a_grain_iterator_goes_on_where_it_was",
    "tests/train/test_fit.py::test_another_number_of_devices_goes_on",
    "tests/train/test_fit.py::test_killed_twice_it_ends_with_the_same_bits",
    "tests/train/test_misuse.py::test_rows_that_use_what_the_rows_of_a_device_have",
    "tests/train/test_trajectories.py::test_a_linen_cnn_with_batch_statistics_and_dropout",
    "tests/train/test_trajectories.py::test_an_nnx_transformer_with_masked_tokens[virtual 64]",
)
"""Tests that take long."""

ALWAYS = ("tests/test_docs.py::test_the_page_runs_and_shows_what_it_prints[README.md]",)
"""Forms that are never left out."""

EVERY_DAY = ("tests/test_docs.py",)
"""Tests all of whose forms `make test-all` runs: no two pages show the same."""

ONCE = (
    "tests/check/test_cli_check.py",
    "tests/check/test_corpus.py::test_the_right_one",
    "tests/check/test_plugin.py",
    "tests/campaigns",
    "tests/cli",
    "tests/evaluate/test_evaluate_at_rest.py",
    "tests/evaluate/test_evaluate_journal.py",
    "tests/evaluate/test_evaluate_memory.py",
    "tests/evaluate/test_evaluate_stream.py",
    "tests/evaluate/test_evaluate_sums.py",
    "tests/evaluate/test_evaluate_surface.py",
    "tests/evaluate/test_evaluate_values.py",
    "tests/evaluate/test_evaluate_weights.py",
    "tests/explain/test_cost.py",
    "tests/explain/test_figures.py",
    "tests/explain/test_page.py",
    "tests/fuzz/test_fuzz.py::test_simulated_is_real[1]",
    "tests/hosts/test_hosts_train.py::test_the_example",
    "tests/hosts/test_launch.py",
    "tests/test_wrong_calls.py",
    "tests/meaning/test_programs.py",
    "tests/messages",
    "tests/inspect/test_inspect_page.py",
    "tests/practice/test_hostile.py",
    "tests/practice/test_judge.py",
    "tests/practice/test_practice_cli.py",
    "tests/practice/test_watch.py",
    "tests/practice/test_web.py",
    "tests/test_cli.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_layers.py",
    "tests/train/test_at_rest.py",
    "tests/train/test_fit.py",
    "tests/train/test_pitfalls.py",
    "tests/train/test_trajectories.py::test_a_linen_cnn_with_batch_statistics_and_dropout[real 2]",
    "tests/train/test_trajectories.py::test_an_nnx_transformer_with_masked_tokens[real 2]",
    "tests/train/test_trajectories.py::test_an_nnx_transformer_with_masked_tokens[virtual 64]",
)
"""Tests that say little more on a second version of JAX."""

SAMPLED = ("tests/check/", "tests/explain/", "tests/inspect/")
"""Tests of reports: every second of them runs on a second version."""

DEALT = (
    "tests/check/",
    "tests/conformance/",
    "tests/explain/test_every_program.py",
    "tests/inspect/",
    "tests/meaning/",
    "tests/test_primitives.py",
    "tests/train/test_placing.py",
    "tests/train/test_step.py",
    "tests/train/test_trajectories.py",
)
WHOLE = (
    "tests/check/test_cli_check.py",
    "tests/check/test_corpus.py",
    "tests/check/test_plugin.py",
    "tests/conformance/test_table.py",  # it deals by itself
)
"""Tests of one thing in many forms, but for those: the forms are dealt out, one to the first
version of JAX, the next to the second."""

CLUSTER = (
    "tests/hosts/test_hosts_evaluate.py::test_broken_off",
    "tests/hosts/test_hosts_evaluate.py::test_every_process_has_the_bits_of_one",
    "tests/hosts/test_hosts_train.py::test_bad_input",
    "tests/hosts/test_hosts_train.py::test_rows_of_their_own_are_one_batch",
    "tests/hosts/test_hosts_train.py::test_terminated",
    "tests/hosts/test_leaving.py::test_a_value",
    "tests/hosts/test_leaving.py::test_one_step",
    "tests/hosts/test_leaving.py::test_when_jax",
    "tests/hosts/test_leaving.py::test_work_alone",
)
"""Tests of several processes that compute for long, or are killed and started again: `make
cluster`, which CI runs."""


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark tests, so that `-m` can leave them out."""
    dealt: Counter[str] = Counter()
    for item in items:
        for name, tests in {"once": ONCE, "cluster": CLUSTER, "rare": LONG}.items():
            if item.nodeid.startswith(tests):
                item.add_marker(name)
        test, _, form = item.nodeid.partition("[")
        deal = form and test.startswith(DEALT) and not test.startswith(WHOLE)
        if test.startswith(SAMPLED) and not deal and zlib.crc32(item.nodeid.encode()) % 2:
            item.add_marker("once")
        if deal and not item.get_closest_marker("once"):
            item.add_marker("second" if dealt[test] % 2 else "once")
            dealt[test] += 1
    _sample([item for item in items if not item.get_closest_marker("second")])
    _sample([item for item in items if item.get_closest_marker("second")])


def _sample(items: Sequence[pytest.Item]) -> None:
    """Mark those forms of a test `rare` that are not drawn."""
    forms = defaultdict(list)
    for item in items:
        if "[" in item.nodeid and not item.nodeid.startswith(ALWAYS):
            forms[item.nodeid.partition("[")[0]].append(item)
    for found in forms.values():
        drawn = sorted(found, key=lambda item: _rank(item, SAMPLE))
        left = drawn[max(FEW, round(KEPT * len(found))) :]
        for item in left:
            item.add_marker("rare")
        if not found[0].nodeid.startswith(EVERY_DAY):
            left = sorted(left, key=lambda item: _rank(item, DATE))
            for item in left[round(MORE * len(left)) :]:
                item.add_marker("spare")


def _rank(item: pytest.Item, seed: str) -> int:
    file, _, form = item.nodeid.partition("::")
    return zlib.crc32(f"{seed} {file} {form.partition('[')[2]}".encode())
