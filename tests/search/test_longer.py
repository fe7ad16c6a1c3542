"""How long the windows of arms are that are far faster than the baseline: by trials, and in real processes."""

from __future__ import annotations

import math
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from dynotune.measure.comparison.stats import SequentialResult as Judgement
from dynotune.measure.live.warmup import MIN_WINDOW_S
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, Study, Trial
from dynotune.search import longer, real_bench
from dynotune.search.bench import BASELINE, arm
from dynotune.search.confirm import _conclude
from dynotune.search.longer import MOST, multiple
from dynotune.search.real_bench import RealBench
from dynotune.search.running import Search
from dynotune.search.study_window import LEAST_OF_START

from ..fakes import Watcher, changed, of_run, spec

WORKERS = arm([Setting("loader.num_workers", 8)])
PINNED = arm([Setting("loader.pin_memory", True)])
PLANNED = 20
STUDY = of_run(
    Study, id="s", budget_s=600.0, warmup_steps=5, window_steps=PLANNED, window_planned=True,
    run_s=5.0,
)  # fmt: skip

times_s = some.floats(0.001, 30.0)


# How many times


@given(window_s=times_s, baseline_s=times_s, start_s=some.floats(0.0, 300.0))
def test_it_is_a_power_of_two_up_to_the_cap_and_takes_no_longer_than_the_baseline(window_s, baseline_s, start_s):
    times = multiple(window_s, baseline_s, start_s)
    assert 1 <= times <= MOST
    assert times & (times - 1) == 0
    assert times == 1 or times * window_s <= baseline_s


@given(window_s=times_s, baseline_s=times_s, start_s=some.floats(0.0, 300.0), factor=some.floats(1.0, 20.0))
def test_the_faster_the_arm_or_the_later_it_starts_the_more_steps_never_fewer(window_s, baseline_s, start_s, factor):
    times = multiple(window_s, baseline_s, start_s)
    assert multiple(window_s / factor, baseline_s, start_s) >= times
    assert multiple(window_s, baseline_s, start_s * factor) >= times


@given(baseline_s=times_s, speedup=some.floats(0.1, 1.99), start_s=some.floats(0.0, 300.0))
def test_an_arm_that_is_not_twice_as_fast_times_what_the_baseline_does(baseline_s, speedup, start_s):
    assert multiple(baseline_s / speedup, baseline_s, start_s) == 1


@given(window_s=times_s, baseline_s=times_s, start_s=some.floats(0.0, 300.0))
def test_a_window_is_as_long_as_any_should_be_unless_that_takes_too_long_or_too_many_steps(
    window_s, baseline_s, start_s
):
    times = multiple(window_s, baseline_s, start_s)
    lasts = times * window_s >= max(MIN_WINDOW_S, LEAST_OF_START * start_s)
    assert lasts or 2 * times > MOST or 2 * times * window_s > baseline_s
    assert times == 1 or times / 2 * window_s < max(MIN_WINDOW_S, LEAST_OF_START * start_s)


def test_thirteen_times_as_fast_is_eight_times_the_steps():
    assert multiple(1.4 / 13, 1.4, 4.0) == 8


def test_of_energy_a_window_lasts_as_long_as_its_samples_ask_for():
    # Ten times as fast, 0.3 s of the baseline's three.
    trials = [ran(BASELINE, 0.15), ran(WORKERS, 0.015)]
    study = changed(STUDY, objective="energy", trials=trials)
    assert longer.of_run(study, trials, WORKERS, "join", 1) == 8 * PLANNED
    assert longer.of_run(changed(study, objective="throughput"), trials, WORKERS, "join", 1) == 4 * PLANNED
    assert longer.of_run(changed(study, objective="latency-p99"), trials, WORKERS, "join", 1) == PLANNED


# What decides


def ran(one, step_s, phase="race", block=1, steps=PLANNED, **fields):
    window_s = step_s * steps
    made = Trial(
        arm=one.key, phase=phase, block=block, ended="measured", value=step_s, wall_s=3.0 + window_s,
        window_steps=steps, window_s=window_s,
    )  # fmt: skip
    return replace(made, **fields)


BEFORE = [ran(BASELINE, 0.1), ran(PINNED, 0.1), ran(WORKERS, 0.01)]


def steps_of(one, phase="race", block=2, trials=BEFORE, study=STUDY):
    return longer.of_run(study, trials, one, phase, block)


def test_an_arms_own_earlier_runs_decide_and_never_those_of_the_block_it_is_in():
    assert steps_of(WORKERS) == 8 * PLANNED
    assert steps_of(BASELINE) == steps_of(PINNED) == PLANNED
    assert steps_of(WORKERS, block=1) == PLANNED
    changed = [*BEFORE, ran(BASELINE, 0.1, block=2), ran(WORKERS, 0.05, block=2, void="another process")]
    assert steps_of(WORKERS, trials=changed) == 8 * PLANNED


def test_an_arm_that_never_ran_is_taken_to_be_as_fast_as_the_fastest_that_it_contains():
    assert steps_of(WORKERS | PINNED) == 8 * PLANNED
    assert steps_of(arm([Setting("loader.num_workers", 80)])) == PLANNED
    slow = [*BEFORE, ran(WORKERS | PINNED, 0.1)]
    assert steps_of(WORKERS | PINNED, trials=slow) == PLANNED


def test_values_with_spaces_are_no_other_settings():
    spaced = arm([Setting("env.A", "x loader.num_workers=8")])
    assert steps_of(spaced) == PLANNED
    trials = [*BEFORE, ran(spaced, 0.002)]
    assert steps_of(spaced | PINNED, trials=trials) == 16 * PLANNED
    assert steps_of(PINNED, trials=trials) == PLANNED


def test_what_counts_for_nothing_decides_nothing():
    assert steps_of(WORKERS, trials=[BEFORE[0], replace(BEFORE[2], void="another process")]) == PLANNED
    assert steps_of(WORKERS, trials=[BEFORE[2]]) == PLANNED
    assert steps_of(WORKERS, trials=[]) == PLANNED


def test_all_pairs_of_a_proof_have_the_window_that_the_race_has_shown():
    begun = [*BEFORE, ran(BASELINE, 0.1, "confirm"), ran(WORKERS, 0.03, "confirm", steps=8 * PLANNED)]
    assert steps_of(WORKERS, "confirm", 2, begun) == steps_of(WORKERS, "confirm", 1, BEFORE) == 8 * PLANNED


@pytest.mark.parametrize("before", [[], [replace(BEFORE[0], void="another process"), BEFORE[2]]])
def test_where_no_race_has_measured_both_the_first_pair_decides_for_those_after_it(before):
    begun = [*before, ran(BASELINE, 0.1, "confirm"), ran(WORKERS, 0.01, "confirm")]
    assert steps_of(WORKERS, "confirm", 1, begun) == PLANNED
    assert steps_of(WORKERS, "confirm", 2, begun) == 8 * PLANNED


@pytest.mark.parametrize(
    "fields", [{"window_planned": False}, {"objective": "latency-p99"}, {"objective": "memory"}, {"window_steps": None}]
)
def test_no_window_is_longer_where_it_was_asked_for_or_is_of_another_objective(fields):
    study = changed(STUDY, **fields)
    assert steps_of(WORKERS, study=study) == study.run.window_steps


def test_older_trials_which_do_not_tell_their_windows_change_nothing():
    old = [replace(trial, window_steps=None, window_s=None) for trial in BEFORE]
    assert steps_of(WORKERS, trials=old) == PLANNED
    assert longer.run_s(STUDY, old, WORKERS) == BEFORE[2].wall_s


def test_once_the_command_ended_before_a_longer_window_was_complete_all_time_the_same():
    ended = ran(WORKERS, 0.01, block=2, steps=8 * PLANNED, ended="failed", value=None, void=longer.DID_NOT_LAST)
    for phase, block in (("race", 2), ("join", 1), ("confirm", 3)):
        assert steps_of(WORKERS, phase, block, [*BEFORE, ended]) == PLANNED
    assert steps_of(WORKERS, trials=[*BEFORE, replace(ended, void="", window_steps=None)]) == 8 * PLANNED


# What it takes


def test_a_run_is_known_to_take_as_long_as_its_longer_window_asks_for():
    assert longer.run_s(STUDY, BEFORE, WORKERS) == pytest.approx(3.0 + 8 * PLANNED * 0.01)
    assert longer.run_s(STUDY, BEFORE, BASELINE) == BEFORE[0].wall_s
    assert longer.run_s(STUDY, BEFORE, WORKERS | PINNED) is None


def test_an_arm_that_is_slower_than_what_it_contains_has_the_time_for_its_steps():
    assert longer.at_most_s(STUDY, BEFORE, 8 * PLANNED) == pytest.approx(7 * PLANNED * 0.1)
    assert longer.at_most_s(STUDY, BEFORE, PLANNED) == longer.at_most_s(STUDY, BEFORE, None) == 0.0


# What is told


def test_windows_that_stayed_too_short_are_a_caution_where_the_baselines_is_not():
    (told,) = longer.cautions(STUDY, BEFORE)
    assert told.startswith("The window of loader.num_workers=8 is 200 ms long: little noise is too much.")
    (told,) = longer.cautions(STUDY, [*BEFORE, ran(WORKERS | PINNED, 0.005)])
    assert "The windows of 2 arms are short, the least 100 ms long" in told
    assert longer.cautions(STUDY, [*BEFORE, ran(WORKERS, 0.01, block=2, steps=8 * PLANNED)]) == []
    assert longer.cautions(STUDY, [ran(BASELINE, 0.02), ran(WORKERS, 0.02)]) == []
    assert longer.cautions(changed(STUDY, objective="memory"), BEFORE) == []


def test_a_proof_says_how_many_steps_its_candidate_timed_where_that_is_more_than_planned():
    trials = [
        ran(one, 0.1, "confirm", block, steps, run=f"{block}{name}")
        for block in (1, 2)
        for name, one, steps in (("baseline", BASELINE, PLANNED), ("candidate", WORKERS, 8 * PLANNED))
    ]
    pairs = [Pair("baseline", 0.1, 0.01, f"{block}baseline", f"{block}candidate") for block in (1, 2)]
    comparison = of_run(
        Comparison, id="s", candidate_settings=list(WORKERS.settings), window_steps=PLANNED, pairs=pairs
    )

    def of_arms(trials):
        search = Search(replace(STUDY, trials=trials), None, lambda study: None, Watcher())
        found = _conclude(
            search, comparison, Judgement(verdict="faster", finished=True, speedup=10.0, ci=(9.0, 11.0), num_pairs=2)
        )
        return found.baseline.window_steps, found.candidate.window_steps

    assert of_arms(trials) == (None, 8 * PLANNED)
    assert of_arms([replace(trial, window_steps=None) for trial in trials]) == (None, None)


# Real processes

PROGRAM = """
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 2 * int(sys.argv[1])

    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.ones(4)


weights = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for batch in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    (batch @ weights).sum().backward()
    optimizer.step()
"""
WARMUP, TIMED = 8, 10


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Of the command with so many steps."""
    # Tests beside this one are other processes.
    monkeypatch.setattr(real_bench.summary, "void_reasons", lambda runs: [])
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "study").mkdir()

    def bench(num_steps):
        command = [sys.executable, "train.py", str(num_steps)]
        request = spec(
            command=command, cwd=tmp_path, env=dict(os.environ), base=tmp_path, seed=0, sandbox=False, lock=False
        )
        planned = replace(request.recorded, warmup_steps=WARMUP, window_steps=TIMED)
        study = Study(
            id="study", run=planned, budget_s=3600.0, window_planned=True, run_s=30.0, unit="s/sample",
            facts={"host.num_cores": 2, "gpu.count": 0, "torch.version": "2.13.0", "torch.cuda": None},
            candidates=[Candidate(setting=setting, effect="exact") for setting in WORKERS.settings],
        )  # fmt: skip
        return RealBench(request, tmp_path / "study", study, Watcher())

    return bench


def test_in_real_runs_workers_that_make_it_far_faster_time_more_steps_and_the_baseline_does_not(bench):
    bench = bench(100_000)
    first = [bench.run(one, "race", 1) for one in (BASELINE, WORKERS)]
    assert [(trial.ended, trial.window_steps) for trial in first] == [("measured", TIMED)] * 2
    again = [bench.run(one, "race", 2) for one in (BASELINE, WORKERS)]
    assert [trial.ended for trial in again] == ["measured"] * 2
    assert again[0].window_steps == TIMED
    times = again[1].window_steps / TIMED
    assert times in (2, 4, 8, 16)
    assert math.isfinite(again[1].value)


def test_a_real_command_that_ends_before_the_longer_window_is_complete_is_no_failure_of_the_arm(bench):
    bench = bench(WARMUP + TIMED + 5)
    for one in (BASELINE, WORKERS):
        assert bench.run(one, "race", 1).ended == "measured"
    short = bench.run(WORKERS, "race", 2)
    assert (short.ended, short.value, short.void) == ("failed", None, longer.DID_NOT_LAST)
    assert short.window_steps > TIMED
    assert "before the window of" in short.detail
    assert [text for text in bench._watcher.said if "from here on all time 10" in text]
    again = bench.run(WORKERS, "race", 2)
    assert (again.ended, again.void, again.window_steps) == ("measured", "", TIMED)
