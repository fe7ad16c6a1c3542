"""Which plain run of a diagnosis stands for the baseline's pilot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dynotune.measure.live.outcome import Outcome
from dynotune.schema import document
from dynotune.schema.compilation import Compilation
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.setting import Setting
from dynotune.schema.study import Trial
from dynotune.search import earlier

from ..fakes import process, record, run

EAGER = ProcessState(pid=1)
COMPILES = replace(EAGER, compilation=Compilation(
    num_graphs=1, num_graph_breaks=0, num_recompilations=0, num_compilations_in_window=0
))  # fmt: skip
FOUR = Setting("loader.num_workers", 4)
TRIAL = Trial(arm="", phase="pilot", block=0, ended="measured")
STEADY = [0.3, *[0.02] * 60]
RESTLESS = [2.0 - 0.002 * number for number in range(100)]


@pytest.fixture
def pilot(monkeypatch, tmp_path):
    """What stands for the pilot, of a plain run that is as told."""

    def pilot(step_s=STEADY, *, processes=(EAGER,), compiled=(), ended_by="window", first_s=None):
        plain = process(time_to_first_step_s=first_s)
        made = run(plain, name="diagnosis/plain", purpose="live", ended_by=ended_by, wall_s=9.0)
        outcome = Outcome(
            run=made,
            folder=tmp_path,
            launched_s=103.0,
            records=[record(step_s, begin_s=105.0, compiled=compiled)],
        )
        monkeypatch.setattr(earlier, "pilots_on_disk", lambda folder, trials: {trials[0].arm: outcome})
        return earlier.plain_pilot(tmp_path, tmp_path / "diagnosis" / "plain", processes, 100.0)

    return pilot


def test_a_plain_run_that_was_steady_and_compiled_nothing_stands_for_the_pilot(pilot):
    trial = pilot()
    assert (trial.arm, trial.phase, trial.ended) == ("", "pilot", "measured")
    assert (trial.began_s, trial.wall_s, trial.run) == (3.0, 9.0, "diagnosis/plain")


def test_earlier_run_counts_as_if_begun_as_soon_as_the_soonest_start(pilot, tmp_path):
    def wrote(name, purpose, *starts_s):
        made = [process(time_to_first_step_s=first_s) for first_s in starts_s]
        (tmp_path / "diagnosis" / name).mkdir(parents=True)
        document.write(tmp_path / "diagnosis" / name / "run.json", run(*made, purpose=purpose))

    assert pilot(first_s=9.0).time_to_first_step_s == 9.0
    wrote("again", "live", 2.5, 3.0, None)
    (tmp_path / "diagnosis" / "cut-short").mkdir()
    (tmp_path / "diagnosis" / "cut-short" / "run.json").write_text("{")
    assert pilot(first_s=9.0).time_to_first_step_s == 3.0
    assert pilot(first_s=2.0).time_to_first_step_s == 2.0


def test_of_a_command_that_had_to_run_twice_the_first_says_how_long_it_is(pilot, tmp_path):
    for name, ended_by in (("first", "command"), ("plain", "window")):
        (tmp_path / "diagnosis" / name).mkdir(parents=True)
        document.write(tmp_path / "diagnosis" / name / "run.json", run(purpose="live", ended_by=ended_by))
    assert pilot() is None


@pytest.mark.parametrize(("told_s", "launched_s"), [(None, 100.0), (14.0, 100.0), (9.0, 105.0)])
def test_a_pilot_on_disk_was_launched_when_its_own_process_says_or_as_much_later_as_the_trial_says(
    monkeypatch, tmp_path, told_s, launched_s
):
    ranks = [
        replace(process(time_to_first_step_s=first_s), pid=pid) for pid, first_s in ((1, 10.0), (2, 14.0))
    ]
    (tmp_path / "plain").mkdir()
    document.write(tmp_path / "plain" / "run.json", run(*ranks, purpose="live", ended_by="window"))
    made = record(STEADY, begin_s=110.0 - STEADY[0])
    monkeypatch.setattr(earlier, "Records", lambda folder: SimpleNamespace(update=lambda: [made]))
    trial = Trial(arm="", phase="pilot", block=0, ended="measured", run="plain", time_to_first_step_s=told_s)
    assert earlier.pilots_on_disk(tmp_path, [trial])[""].launched_s == pytest.approx(launched_s)


def test_earlier_run_is_no_pilot_when_the_arm_compiles(pilot):
    assert pilot(compiled=[0]) is None
    assert pilot(processes=[EAGER, COMPILES]) is None


@pytest.mark.parametrize("ended_by", ["command", "timeout"])
def test_a_plain_run_that_did_not_end_with_its_window_is_no_pilot(pilot, ended_by):
    assert pilot(ended_by=ended_by) is None


def test_nor_is_one_that_never_became_steady_or_of_which_nothing_is_known(pilot):
    assert pilot(RESTLESS) is None
    assert pilot(processes=Unknown("nothing was seen")) is None


def test_nor_is_one_whose_folder_is_gone(tmp_path):
    assert earlier.plain_pilot(tmp_path, tmp_path / "diagnosis" / "plain", [EAGER], 0.0) is None
