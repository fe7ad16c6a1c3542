"""The agent comes to a program that runs, and leaves nothing when it goes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import dynotune
from dynotune.agent import joined as joining
from dynotune.agent import late_start
from dynotune.agent.core.forks import Forks
from dynotune.agent.facts.fetching import Fetching
from dynotune.launch.records.reader import Records
from dynotune.schema.events import (
    AgentError,
    AgentLeft,
    CycleFound,
    GivenUp,
    ProcessBegun,
    TraceRecorded,
    Window,
)

AGENT = Path(dynotune.__file__).parent / "agent"
PROGRAM = Path(__file__).parent / "joined_program.py"
WINDOW = {"type": "time-window", "num_steps": 10, "at_step": 5}
TRACE = {"type": "record-trace", "num_steps": 3, "most_s": 60, "stacks": True}
SHORT_TRACE = {"type": "record-trace", "num_steps": 1 << 30, "most_s": 0.5}
LONG_TRACE = {"type": "record-trace", "num_steps": 1 << 30, "most_s": 1e6}


@pytest.fixture
def joined(tmp_path, interpreters):
    """`joined(case, tasks)` runs the program; returns what it printed, and the record of its process."""

    def run(case: str, *tasks: dict[str, object]):
        folder, output = tmp_path / "run", tmp_path / "output"
        folder.mkdir()
        output.mkdir()
        plan = {"settings": [], "observe": True, "note_events": True, "tasks": tasks}
        (folder / "plan.json").write_text(json.dumps(plan))
        words = [str(PROGRAM), str(folder), str(AGENT), case]
        done = interpreters["compiler"].run(words, cwd=tmp_path, folder=output)
        failed = folder / "failed.txt"
        assert done.returncode == 0 and not failed.exists(), done.stderr
        records = [record for record in Records(folder).update() if record.steps]
        return json.loads(done.stdout.splitlines()[-1]), records[0]

    return run


def test_agent_times_and_records_and_leaves_nothing_when_it_comes_late(joined):
    said, record = joined("steps", WINDOW, TRACE)
    assert said["differ"] == {} and said["ended"]
    assert record.last(ProcessBegun).late
    assert record.last(Window).num_steps == 10
    assert record.last(TraceRecorded).file
    assert record.last(AgentLeft).stay == []
    assert record.last(AgentError) is None
    kinds = [part.kind for part in record.last(CycleFound).parts]
    assert kinds[0] == "draw" and kinds[-1] == "step"


def test_agent_takes_over_frozen_objects_when_the_collector_does_not_list_them(joined):
    said, record = joined("frozen", WINDOW)
    assert said["differ"] == {}
    assert record.last(Window).num_samples == 40
    assert record.last(AgentError) is None


def test_workers_are_without_the_agent_when_they_are_forked_beside_it(joined):
    said, record = joined("workers", WINDOW)
    assert said["seen_in_worker"] == 0 and said["differ"] == {}
    assert record.last(Window).num_steps == 10


def test_recording_is_ended_when_the_agent_has_to_leave_meanwhile(joined):
    said, record = joined("recording", WINDOW, LONG_TRACE)
    assert said["differ"] == {} and not said["profiles"]
    assert record.last(TraceRecorded) is None and record.last(AgentLeft) is not None


def test_recording_is_given_up_when_the_program_makes_no_step_any_more(joined):
    said, record = joined("evaluation", SHORT_TRACE)
    assert said["differ"] == {} and not said["profiles"]
    assert "no step ended" in record.last(GivenUp).reason
    assert record.last(AgentError) is None and record.last(AgentLeft).stay == []


@pytest.mark.parametrize("is_killed", [True, False])
def test_folder_is_removed_at_the_programs_end_when_its_dynotune_was_killed(tmp_path, monkeypatch, is_killed):
    folder, handlers, seen = tmp_path / "run", [], []
    folder.mkdir()
    descriptor = os.open(folder / "held.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    def end():
        if is_killed:
            os.close(descriptor)
        handlers[0]()
        seen.append(folder.exists())

    monkeypatch.setattr(late_start.atexit, "register", handlers.append)
    monkeypatch.setattr(late_start.atexit, "unregister", handlers.remove)
    monkeypatch.setattr(late_start, "Forks", lambda _: None)
    monkeypatch.setattr(late_start.replaced, "is_kept", False)
    monkeypatch.setattr(late_start, "import_in_pieces", end)
    monkeypatch.setattr(late_start.Holder, "is_there", lambda _: False)
    monkeypatch.setattr(late_start, "forget_modules", lambda: None)
    monkeypatch.setattr(late_start, "remove_after", lambda *_, **__: None)
    late_start.stay_while_held(str(folder), str(folder / "held.lock"), os.getpid())
    assert seen == [not is_killed] and handlers == []
    if not is_killed:
        os.close(descriptor)


def test_agent_leaves_when_the_program_makes_no_step_any_more(joined):
    said, record = joined("no step", WINDOW)
    assert said["differ"] == {}
    assert record.last(AgentLeft) is not None


@pytest.mark.parametrize("sees_pids", [True, False])
def test_scripts_of_living_processes_stay_when_the_folder_of_a_killed_dynotune_is_removed(
    tmp_path, sees_pids
):
    living, ended = f"begin-{os.getpid()}.py", f"begin-{2**22 + 1}.py"
    for name in ("plan.json", living, ended):
        (tmp_path / name).touch()
    (tmp_path / "dynotune").mkdir()
    late_start.remove_after(str(tmp_path), str(tmp_path / "held.lock"), sees_pids=sees_pids)
    assert {path.name for path in tmp_path.iterdir()} == ({living} if sees_pids else {living, ended})


def test_folder_stays_when_a_dynotune_that_lives_will_remove_it(tmp_path, monkeypatch):
    lock, slept = tmp_path / "held.lock", []
    monkeypatch.setattr(late_start, "monotonic", lambda: float(len(slept)))
    monkeypatch.setattr(late_start, "sleep", slept.append)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        assert not late_start.Holder(str(lock)).is_there(), "it has let go of the agent"
        late_start.remove_after(str(tmp_path), str(lock), sees_pids=True)
    finally:
        os.close(descriptor)
    assert lock.exists() and len(slept) == late_start.MOST_REMOVING_S
    late_start.remove_after(str(tmp_path), str(lock), sees_pids=True)
    assert not tmp_path.exists()


@pytest.fixture
def locked(tmp_path):
    lock = tmp_path / "held.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield lock
    os.close(descriptor)


def test_holder_is_there_when_the_lock_is_locked_alone(tmp_path, monkeypatch):
    lock = tmp_path / "held.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    holder = late_start.Holder(str(lock))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert holder.is_there()
    finally:
        os.close(descriptor)
    assert not holder.is_there()

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not holder.is_there()


def test_holder_is_gone_when_it_touches_the_lock_no_more(locked, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(late_start, "monotonic", lambda: now_s)
    holder = late_start.Holder(str(locked))
    assert holder.is_there()
    now_s += late_start.SILENT_S - 1
    assert holder.is_there()
    now_s += 2
    assert not holder.is_there(), "dynotune is stopped"


@pytest.mark.parametrize("by_s", [-1e9, -3600.0, 3600.0, 1e9])
def test_holder_is_there_when_the_clock_of_the_day_is_set(locked, monkeypatch, by_s):
    now_s = 1000.0
    monkeypatch.setattr(late_start, "monotonic", lambda: now_s)
    holder, touched_s = late_start.Holder(str(locked)), locked.stat().st_mtime
    for beat in range(10):
        assert holder.is_there()
        now_s += late_start.SILENT_S / 2
        stamp_s = touched_s + beat + (by_s if beat > 4 else 0.0)
        os.utime(locked, times=(stamp_s, stamp_s))


def test_agent_leaves_a_child_when_the_program_forks_in_either_way(monkeypatch):
    left = []
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(os, "forkpty", lambda: (0, 5))
    Forks(lambda: left.append(1))
    assert os.fork() == 0 and os.forkpty() == (0, 5)
    assert len(left) == 2


def test_workers_loop_stays_when_a_start_may_be_under_way():
    workers = pytest.importorskip("torch.utils.data._utils.worker")
    before = workers._worker_loop
    joining.JoinedAgent._cover_workers(SimpleNamespace(), None)
    assert workers._worker_loop is before


def test_fetch_of_a_fetchers_own_is_called_as_the_program_would_when_it_is_timed():
    class Fetcher:
        def fetch(self, index):
            return -index

    fetcher = Fetcher()
    fetcher.fetch = lambda index: 2 * index
    counted = []
    fetching = Fetching(lambda fields: None, lambda where, error: counted.append(error))
    counts = SimpleNamespace(clock=float, num=0, num_faults=0, system_s=0.0, facts={})
    fetching._fetched = lambda *_: counted.append("fetch")
    assert fetching._timed_fetch(None, fetcher, counts)(3) == 6
    del fetcher.fetch
    assert fetching._timed_fetch(None, fetcher, counts)(3) == -3
    assert counted == ["fetch", "fetch"]
