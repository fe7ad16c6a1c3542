"""What the profiled run tells where recording itself gets in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.diagnose import profiled as module
from dynotune.diagnose.profiled import RecordedSteps, profiled
from dynotune.measure.live.recording import Recording
from dynotune.measure.live.request import RecordRequest
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Run, RunSpec
from dynotune.schema.trace_summary import Cause, DeviceTime, Place, TraceSummary
from dynotune.trace.timeline import Timeline
from lab.silent import Silent

from ..report.summaries import device, summary

LOOP = Place(function="train.py(31): tally")
SPEC = RunSpec(command=["python", "train.py"], cwd=Path(), base=Path())


class Recorder:
    """Records nothing; a trace with stacks slows the command down by so much, and only that one has
    places."""

    def __init__(
        self, slowed: float | None, devices: list[DeviceTime], *, fails_without: bool = False
    ) -> None:
        self.asked: list[bool] = []
        self.brief = False
        self._slowed, self._devices, self._fails_without = slowed, devices, fails_without

    def record(self, runner: None, request: RecordRequest) -> Recording:
        stacks = request.stacks
        assert request.brief is self.brief
        self.asked.append(stacks)
        if self._fails_without and not stacks:
            raise CannotRunHere("the disk is full", hint="")
        name = "with" if stacks else "without"
        run = Run(id=name, purpose="live", command=["train.py"], cwd="/", settings=[], started_s=0.0)
        return Recording(folder=Path(), traces=[Path(name)], run=run, notes=[], slowed=self._slowed)

    def summarise(self, traces: list[Path]) -> TraceSummary:
        where = LOOP if traces == [Path("with")] else Place()
        share = 0.9 if traces == [Path("with")] else 0.3
        cause = Cause(id="host-bound", lost_s=share, share=share, claim="", where=where)
        return summary(causes=[cause], devices=self._devices)


def told(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> RecordedSteps:
    def read(traces: list[Path]) -> list[Timeline]:
        return traces  # type: ignore[return-value]

    monkeypatch.setattr(module, "_recorded", recorder.record)
    monkeypatch.setattr(module, "read_traces", read)
    monkeypatch.setattr(module, "summarise", recorder.summarise)
    found = profiled(None, SPEC, Silent(), brief=recorder.brief)  # type: ignore[arg-type]
    assert not isinstance(found, Unknown)
    return found


def test_stacks_that_slow_a_program_on_the_cpu_down_are_left_out_and_their_places_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(slowed=5.0, devices=[])
    found = told(monkeypatch, recorder)
    assert recorder.asked == [True, False]
    assert [(cause.share, cause.where) for cause in found.summary.causes] == [(0.3, LOOP)]
    assert found.timelines == [Path("without")]
    assert "5.0 times as long; places are of the run with them" in found.summary.notes[0]


def test_both_recordings_are_brief_when_a_running_job_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(slowed=5.0, devices=[])
    recorder.brief = True
    told(monkeypatch, recorder)
    assert recorder.asked == [True, False]


@pytest.mark.parametrize("slowed", [None, 1.3])
def test_stacks_that_cost_little_or_an_unknown_time_are_recorded_once(
    monkeypatch: pytest.MonkeyPatch, slowed: float | None
) -> None:
    recorder = Recorder(slowed=slowed, devices=[])
    assert told(monkeypatch, recorder).summary.causes[0].share == 0.9
    assert recorder.asked == [True]


def test_a_device_is_as_fast_as_it_is_however_slow_the_host_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(slowed=5.0, devices=[device()])
    told(monkeypatch, recorder)
    assert recorder.asked == [True]


def test_recording_with_stacks_stands_when_recording_without_them_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(slowed=5.0, devices=[], fails_without=True)
    found = told(monkeypatch, recorder)
    assert found.summary.causes[0].where == LOOP
    assert (
        "5.0 times as long while stacks were recorded; without them: the disk is full"
        in found.summary.notes[0]
    )
