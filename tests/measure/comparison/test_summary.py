"""From runs to values: what a pair compares, and what is shown beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.measure.comparison import summary
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.errors import StatisticsError

from ...fakes import disturbed, process, record, run, window


def outcome(*processes, records=(), **more) -> Outcome:
    return Outcome(run=run(*processes), folder=Path("/"), launched_s=0.0, records=list(records), **more)


def test_a_value_is_the_windows_wall_time_a_sample_or_a_step():
    one = outcome(process(window(wall_s=2.0, num_steps=100, num_samples=400)))
    assert summary.value_s(one, "sample") == pytest.approx(0.005)
    assert summary.value_s(one, "step") == pytest.approx(0.02)


def test_ranks_count_their_samples_together_in_the_slowest_ones_time():
    ranks = outcome(
        process(window(wall_s=2.0, num_samples=400, begin_s=10.0)),
        process(window(wall_s=4.0, num_samples=600, begin_s=10.5)),
        process(None),
    )
    assert summary.value_s(ranks, "sample") == pytest.approx(0.004)
    assert summary.value_s(ranks, "step") == pytest.approx(0.04)


@pytest.mark.parametrize("counts", [[None, 400], [None, None], [0, 0]])
def test_samples_that_one_rank_could_not_count_give_no_value(counts):
    ranks = outcome(*(process(window(num_samples=count)) for count in counts))
    with pytest.raises(StatisticsError, match="could not be counted"):
        summary.value_s(ranks, "sample")


def test_the_unit_is_a_sample_where_every_steady_step_of_both_pilots_counted_them():
    counted = outcome(records=[record([0.1] * 20, samples=8)])
    uncounted = outcome(records=[record([0.1] * 20, samples=None)])
    assert summary.unit([counted, counted]) == "sample"
    assert summary.unit([counted, uncounted]) == "step"
    assert summary.unit([outcome(), outcome()]) == "step"


def test_an_arm_is_summed_up_by_medians_over_its_runs():
    runs = [
        summary.measured(
            run(
                process(
                    window(wall_s=wall_s, num_steps=10, num_samples=20),
                    median_step_s=wall_s / 20,
                    time_to_first_step_s=wall_s,
                    peak_rss_bytes=int(wall_s * 100),
                )
            )
        )
        for wall_s in (1.0, 2.0, 9.0)
    ]
    arm = summary.arm_summary(runs, "sample")
    assert arm.s_per_sample == pytest.approx(0.1)
    assert arm.samples_per_s == pytest.approx(10)
    assert arm.s_per_step == pytest.approx(0.2)
    assert arm.median_step_s == pytest.approx(0.1)
    assert arm.time_to_first_step_s == 2.0
    assert arm.peak_rss_bytes == 900
    assert arm.peak_device_bytes is None
    assert summary.arm_summary(runs, "step").samples_per_s is None


def test_an_arm_without_runs_knows_nothing():
    assert summary.arm_summary([], "sample").s_per_step is None


def test_waiting_for_a_loader_is_a_share_only_where_one_is_drawn_from():
    drawn = summary.measured(run(process(window(), step="draw DataLoader, step SGD", draws=True)))
    called = summary.measured(run(process(window(), step="call Linear", draws=False)))
    assert summary.arm_summary([drawn], "sample").loader_wait_share == 0
    assert summary.arm_summary([called], "sample").loader_wait_share is None


def test_a_cause_that_both_runs_of_a_pair_met_is_told_once_and_without_the_arm():
    quiet, loud = outcome(process(window())), disturbed(outcome(process(window())))
    assert summary.void_reasons({"baseline": quiet, "candidate": quiet}) == []
    assert summary.void_reasons({"baseline": loud, "candidate": loud}) == [
        "another process computes on GPU 0"
    ]
