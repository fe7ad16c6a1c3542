"""Reading the records that processes write, whole, growing, cut short or not theirs."""

import struct
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.agent.core.writer import Writer
from dynotune.launch.records import reader
from dynotune.launch.records.reader import Reader, Records
from dynotune.launch.records.record import Step
from dynotune.schema import events
from dynotune.schema.errors import CannotRunHere, RecordError
from dynotune.schema.reasons import Reason

TEXT = st.text(max_size=300)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
TIMES = st.floats(0, 1e9)
# Never 0: what the end is before it is written.
STEPS = st.builds(Step, st.floats(1e-6, 1e9), TIMES, st.none() | st.integers(0, 2**62), st.integers(0, 7))
KINDS = {"process": events.ProcessBegun, "torch": events.TorchImported, "cycle": events.CycleFound}
NUMBERS = st.integers(0, 1 << 62)
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from(list(KINDS)),
        "executable": TEXT,
        "version": TEXT,
        "num_parts": NUMBERS,
        "what": JSON,
    }
)


def write(folder, entries):
    writer = Writer(str(folder))
    for entry in entries:
        if isinstance(entry, Step):
            num_samples = -1 if entry.num_samples is None else entry.num_samples
            writer.step(entry.end_s, entry.wait_s, num_samples, entry.flags)
        else:
            writer.event(**entry)


@pytest.fixture
def recorded(tmp_path) -> Path:
    """A record of five steps between two events."""
    write(
        tmp_path,
        [
            {"event": "process", "argv": ["a.py"]},
            *[Step(k + 1, 0.5, 8, 0) for k in range(5)],
            {"event": "exit"},
        ],
    )
    return next(tmp_path.glob("*.rec"))


@settings(deadline=None)
@given(st.lists(STEPS | EVENTS, max_size=40))
def test_records_hold_all_entries_that_were_written(entries):
    with TemporaryDirectory() as folder:
        write(folder, entries)
        found = Records(Path(folder)).update()
    assert [step for record in found for step in record.steps] == [e for e in entries if isinstance(e, Step)]
    for name, field in (("process", "executable"), ("torch", "version"), ("cycle", "num_parts")):
        expected = [e[field] for e in entries if not isinstance(e, Step) and e["event"] == name]
        assert [getattr(event, field) for record in found for event in record.all(KINDS[name])] == expected
        assert not any(record.dropped for record in found)


@settings(deadline=None)
@given(st.lists(st.lists(STEPS, max_size=30), max_size=6), st.integers(40, 400))
def test_a_record_is_followed_while_it_grows(parts, piece_bytes):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_PIECE_BYTES", piece_bytes)
        writer, records, seen = Writer(folder), Records(Path(folder)), []
        for part in parts:
            for step in part:
                writer.step(
                    step.end_s, step.wait_s, -1 if step.num_samples is None else step.num_samples, step.flags
                )
            seen += part
            assert [step for record in records.update() for step in record.steps] == seen


def test_a_record_cut_anywhere_is_read_up_to_the_cut(recorded, tmp_path):
    raw = recorded.read_bytes().rstrip(b"\0") + bytes(8)
    whole = Reader(recorded).update()
    cut = tmp_path / "cut.rec"
    before = (0, 0)
    for size in range(len(raw) + 1):
        cut.write_bytes(raw[:size])
        record = Reader(cut).update()
        assert record.steps == whole.steps[: len(record.steps)]
        assert all(whole.events[name] == events for name, events in record.events.items())
        now = (len(record.steps), len(record.events))
        assert now >= before
        before = now
    assert before == (5, 2)


@pytest.mark.parametrize("num_there", range(8 + 32))
def test_a_step_of_which_only_so_many_bytes_are_there_yet_is_read_when_it_is_whole(
    recorded, tmp_path, num_there
):
    """The writer stores a step's fields one after another, and somebody may look in between."""
    raw = recorded.read_bytes().rstrip(b"\0")
    raw += bytes(-len(raw) % 8)
    step = struct.pack("<IHHdqQd", 32, 1, 0, 0.25, 8, 1, 7.5)
    path = tmp_path / "growing.rec"
    reader = Reader(path)
    path.write_bytes(raw + step[:num_there] + bytes(len(step) - num_there) + bytes(64))
    assert len(reader.update().steps) == 5
    path.write_bytes(raw + step + bytes(64))
    assert reader.update().steps[5:] == [Step(7.5, 0.25, 8, 1)]


@pytest.mark.parametrize("num_there", [0, *range(8, 32)])
def test_a_record_whose_head_is_being_written_has_not_begun_yet(recorded, tmp_path, num_there):
    raw = recorded.read_bytes()
    (tmp_path / "growing.rec").write_bytes(raw[:num_there] + bytes(256 - num_there))
    reader = Reader(tmp_path / "growing.rec")
    assert reader.update().steps == []
    (tmp_path / "growing.rec").write_bytes(raw)
    assert reader.update().steps == Reader(recorded).update().steps


def test_a_cut_that_is_mended_is_read_on(recorded, tmp_path):
    raw = recorded.read_bytes()
    path = tmp_path / "growing.rec"
    path.write_bytes(raw[:100])
    reader = Reader(path)
    reader.update()
    path.write_bytes(raw)
    assert reader.update().steps == Reader(recorded).update().steps


@given(st.binary(max_size=400))
def test_garbage_is_refused_or_taken_for_not_yet_begun(raw):
    with TemporaryDirectory() as folder:
        path = Path(folder, "process-1-0.rec")
        path.write_bytes(raw)
        if len(raw) >= 32 and raw[:8] != bytes(8):
            with pytest.raises(RecordError, match="not a record"):
                Reader(path).update()
        else:
            assert Records(Path(folder)).update() == []


@given(st.binary(max_size=400))
def test_garbage_after_a_good_head_never_raises(raw):
    with TemporaryDirectory() as folder:
        path = Path(folder, "process-1-0.rec")
        path.write_bytes(struct.pack("<8sHHIdQ", b"DYNOREC\0", 1, 32, 7, 1.5, 0) + raw)
        record = Reader(path).update()
    assert (record.pid, record.start_s) == (7, 1.5)


def test_a_damaged_event_hides_none_of_its_neighbours(recorded):
    raw = recorded.read_bytes()
    recorded.write_bytes(raw.replace(b'{"event": "process"', b'{"event": [process"', 1))
    record = Reader(recorded).update()
    assert (len(record.steps), list(record.events)) == (5, [events.ProcessExited])
    assert record.dropped == {None: 1}


@pytest.mark.parametrize("damage", [{"phase": "lunch"}, {"begin_s": "soon"}, {"begin_s": None}])
def test_record_drops_and_counts_an_event_when_a_field_has_the_wrong_type(damage, tmp_path):
    span = {"event": "span", "phase": "compile", "begin_s": 9.2, "end_s": 9.7, "name": ""}
    write(tmp_path, [span, span | damage, span])
    (record,) = Records(tmp_path).update()
    assert len(record.all(events.StartSpan)) == 2
    assert record.dropped == {events.StartSpan: 1}
    record.refuse_dropped(events.Window)
    with pytest.raises(RecordError, match="damaged"):
        record.refuse_dropped(events.Window, events.StartSpan)


@pytest.mark.parametrize("by_s", [-100_000.0, -60.0, 60.0, 100_000.0])
def test_records_are_refused_when_their_process_has_another_clock(tmp_path, monkeypatch, by_s):
    launched_s = time.perf_counter()
    with monkeypatch.context() as other_clock:
        other_clock.setattr(time, "perf_counter", lambda: launched_s + by_s)
        write(tmp_path, [{"event": "process"}])
    with pytest.raises(CannotRunHere, match=r"The clock of process .* differs by at least"):
        Records(tmp_path, launched_s=launched_s).update()
    assert len(Records(tmp_path).update()) == 1


def test_records_are_read_when_their_process_began_after_the_launch(tmp_path):
    launched_s = time.perf_counter()
    write(tmp_path, [{"event": "process"}])
    assert len(Records(tmp_path, launched_s=launched_s).update()) == 1


def test_record_ignores_an_event_when_its_kind_is_of_a_later_version(tmp_path):
    write(tmp_path, [{"event": "haircut", "begin_s": "soon"}, {"event": "exit"}])
    (record,) = Records(tmp_path).update()
    assert (list(record.events), record.dropped) == ([events.ProcessExited], {})


def test_event_is_read_when_an_older_agent_left_out_fields_that_came_later(tmp_path):
    older = [
        {"event": "cycle", "begin_s": 1.0, "num_steps": 3},
        {"event": "given_up", "task": 1, "kind": "trace", "reason": "it failed", "at_exit": False},
        {"event": "arm_given_up", "arm": 0, "reason": "it failed"},
    ]
    write(tmp_path, older)
    (record,) = Records(tmp_path).update()
    assert record.last(events.CycleFound).kinds is None
    assert (record.step, record.cycle) == ("", [])
    assert record.last(events.GivenUp).code is record.last(events.ArmGivenUp).code is Reason.OTHER
    assert record.results[1].reason == "it failed"


def test_steps_before_the_first_training_are_dropped(tmp_path):
    looks, updates = [Step(1 + k, 0.0, 8, 0) for k in range(3)], [Step(9 + k, 0.0, 4, 0) for k in range(2)]
    before = {"event": "cycle", "begin_s": 0.5}
    after = {"event": "cycle", "begin_s": 8.0, "num_superseded": 3}
    write(tmp_path, [before, *looks, *updates, after])
    (record,) = Records(tmp_path).update()
    assert record.steps == updates
    assert record.step_s == [1.0, 1.0]


def test_the_process_group_knows_the_rank_better_than_the_environment(tmp_path):
    write(tmp_path, [{"event": "process", "rank": None, "world_size": 4}, {"event": "cycle", "rank": 1}])
    (record,) = Records(tmp_path).update()
    assert (record.rank, record.world_size) == (1, 4)


def test_a_newer_version_is_refused_with_what_to_do(recorded):
    raw = bytearray(recorded.read_bytes())
    struct.pack_into("<H", raw, 8, 2)
    recorded.write_bytes(raw)
    with pytest.raises(RecordError, match="version 2; this dynotune reads 1") as refused:
        Reader(recorded).update()
    assert "wrote it" in refused.value.hint


def test_a_record_that_is_gone_says_so(tmp_path):
    with pytest.raises(RecordError, match="Cannot read"):
        Reader(tmp_path / "none.rec").update()
