"""Summaries of processes."""

from pathlib import Path

from dynotune.launch.records.process_summary import summarise
from dynotune.launch.records.record import Record, Step
from dynotune.schema.facts import Unknown

from ...fakes import take


def test_samples_that_one_step_does_not_know_are_unknown_for_the_process():
    steps = [Step(1.0, 0.0, 8, 0), Step(2.0, 0.0, None, 0)]
    record = take(Record(Path("x"), 1, 0.0, steps), {"event": "cycle", "begin_s": 0.5})
    process = summarise(record, 0.0)
    assert (process.num_steps, process.num_samples, process.median_step_s) == (2, None, 0.75)


def test_readback_is_unknown_and_not_text_when_the_agent_could_not_find_a_value(tmp_path):
    reason = "no loader was drawn from"
    found = {"type": "unknown", "reason": reason}
    entry = {"knob": "loader.num_workers", "asked": "2", "found": found, "witness": "none", "ok": False}
    record = take(Record(tmp_path / "process-1-0.rec", 1, 0.0), {"event": "readback", "settings": [entry]})
    (readback,) = summarise(record, 0.0).readback
    assert readback.found == Unknown("no loader was drawn from")
