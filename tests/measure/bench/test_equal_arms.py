"""Arms that are the same: told before anything runs, or after the first run that shows it."""

import pytest

from dynotune.measure.bench import equal_arms
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.request import CompareRequest
from dynotune.schema.errors import UsageError
from dynotune.schema.setting import Setting

from ...fakes import of_run, process, run

WORKERS, FUSED = Setting("loader.num_workers", 4), Setting("optimizer.fused", True)
UNSET = Setting("env.CUBLAS_WORKSPACE_CONFIG", "@unset")


def request(candidate, settings=(), **changes):
    return of_run(CompareRequest, candidate=list(candidate), settings=list(settings), **changes)


def first_run(tmp_path, *already):
    """A run of two processes; the second has the last of `already` alone."""
    processes = [process(already=list(knobs), num_steps=5) for knobs in (already, already[-1:])]
    return Outcome(run=run(*processes), folder=tmp_path, launched_s=0.0, records=[], warmup_steps=None)


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [
        ([WORKERS, FUSED], [FUSED, WORKERS]),
        ([WORKERS, WORKERS], [WORKERS]),
        ([Setting("arg.b", 8)], [Setting("arg.b", "8")]),
    ],
)
def test_refuse_equal_refuses_when_both_arms_start_the_same(candidate, baseline):
    run = request(candidate, baseline, command=["python", "x.py", "{b}"]).run
    with pytest.raises(UsageError, match="the same"):
        equal_arms.refuse_equal(run, candidate)


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [([WORKERS], []), ([UNSET], []), ([Setting("arg.b", 8)], [Setting("arg.b", 9)])],
)
def test_refuse_equal_passes_when_an_arm_starts_something_else(candidate, baseline):
    run = request(candidate, baseline, command=["python", "x.py", "{b}"]).run
    equal_arms.refuse_equal(run, candidate)


def test_missing_is_what_the_other_arm_has_more_when_it_has_all_knobs_of_this_arm():
    both = request([WORKERS, FUSED], [FUSED])
    assert equal_arms.missing(both, "baseline") == [WORKERS]
    assert equal_arms.missing(both, "candidate") == []
    assert equal_arms.missing(request([], [WORKERS]), "candidate") == [WORKERS]
    assert equal_arms.missing(request([WORKERS], [FUSED]), "baseline") == []


def test_refuse_had_ends_the_comparison_when_each_process_has_the_settings(tmp_path):
    with pytest.raises(equal_arms.EqualArms, match=r"has loader\.num_workers=4 already"):
        equal_arms.refuse_had(request([WORKERS]), "baseline", first_run(tmp_path, WORKERS.knob))


def test_refuse_had_passes_when_one_process_lacks_a_setting(tmp_path):
    outcome = first_run(tmp_path, WORKERS.knob, FUSED.knob)
    equal_arms.refuse_had(request([WORKERS, FUSED]), "baseline", outcome)


def test_reason_says_that_a_variable_is_not_set_when_it_would_be_removed():
    assert equal_arms.reason([UNSET]) == (
        "CUBLAS_WORKSPACE_CONFIG is not set, neither here nor by the program, "
        "so baseline and candidate are the same."
    )
