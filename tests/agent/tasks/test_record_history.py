"""The allocator's history from its start, in steps of a real model on a device that is made up."""

import gc
from pathlib import Path

import pytest

from dynotune.agent.tasks.record_history import RecordHistory
from dynotune.trace.snapshot import load_snapshot

from .test_record_memory import Training

torch = pytest.importorskip("torch")


@pytest.fixture
def training(tmp_path, monkeypatch):
    gc.collect()
    return Training(tmp_path, monkeypatch)


def recorded(training, task, num_steps):
    for _ in range(num_steps):
        training.step()
        task.reached(training.num_steps)
    assert not training.program.errors, training.program.errors
    return task.result


def test_all_that_was_allocated_until_the_step_is_recorded_and_nothing_after_it(training):
    task = RecordHistory(training.program, {"id": -1, "at_step": 3})
    task.torch_is_here()
    (lives,) = load_snapshot(
        Path(training.program.folder) / recorded(training, task, 3)["file"], limit_bytes=1 << 28
    ).values()
    assert not lives.unknown
    batches = [life for life in lives.lives if life.size == 64 * 256 * 4 and life.born >= 0]
    assert len(batches) >= 3 * 3  # inputs and two activations of each step
    assert not training.cuda.is_recording
    assert not hasattr(torch.cuda.memory._record_memory_history, "__wrapped__")


def test_a_program_that_records_the_history_itself_has_it_to_itself(training):
    task = RecordHistory(training.program, {"id": -1, "at_step": 3})
    task.torch_is_here()
    training.step()
    torch.cuda.memory._record_memory_history()
    result = recorded(training, task, 3)
    assert result["event"] == "given_up"
    assert training.cuda.is_recording


def test_record_history_is_given_up_when_torch_came_before_the_task(training):
    task = RecordHistory(training.program, {"id": 1, "at_step": 0})
    assert recorded(training, task, 1)["event"] == "given_up"
