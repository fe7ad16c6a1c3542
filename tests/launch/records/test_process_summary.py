"""Summaries of processes."""

from pathlib import Path

import pytest

from dynotune.launch.records.process_summary import summarise
from dynotune.launch.records.record import Record, Step
from dynotune.schema.facts import Unknown


def test_samples_that_one_step_does_not_know_are_unknown_for_the_process():
    steps = [Step(1.0, 0.0, 8, 0), Step(2.0, 0.0, None, 0)]
    record = Record(Path("x"), 1, 0.0, steps, {"cycle": [{"begin_s": 0.5, "step": "call Net"}]})
    process = summarise(record, 0.0)
    assert (process.num_steps, process.num_samples, process.median_step_s) == (2, None, 0.75)


@pytest.mark.parametrize("found", [None, {"type": "unknown", "reason": "no loader was drawn from"}])
def test_what_the_agent_could_not_find_is_unknown_and_not_text(tmp_path, found):
    reason = "no loader was drawn from"
    entry = {"knob": "loader.num_workers", "asked": "2", "found": found, "ok": False, "detail": reason}
    events = {"readback": [{"event": "readback", "settings": [entry]}]}
    record = Record(tmp_path / "process-1-0.rec", 1, 0.0, [], events)
    (readback,) = summarise(record, 0.0).readback
    assert readback.found == Unknown("no loader was drawn from")
