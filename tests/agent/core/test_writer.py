"""What the agent writes: one mapped file a process, begun late, never in the program's way."""

import json
import math
import os
import struct
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from dynotune.agent.core import writer as writers
from dynotune.agent.core.writer import Writer
from dynotune.launch.records.reader import Reader
from dynotune.launch.records.record import Record
from dynotune.schema import document
from dynotune.schema.run import Plan
from dynotune.watch.follower import Follower


@pytest.fixture
def written(tmp_path):
    """Reads back the one record in the folder."""

    def read():
        (path,) = tmp_path.glob("*.rec")
        return raw_record(path)

    return read


class RawRecord(Record):
    """A record whose events are plain data, of any kind."""

    def take(self, raw):
        event = document.parse(raw)
        self.events.setdefault(event["event"], []).append(event)


def raw_record(path):
    reader = Reader(path)
    reader.record = RawRecord(path=path, pid=0, start_s=0.0)
    return reader.update()


def test_begins_no_file_before_there_is_something_to_say(tmp_path):
    Writer(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_begins_a_file_that_only_its_owner_may_read(tmp_path):
    Writer(str(tmp_path)).event(event="a")
    (path,) = tmp_path.iterdir()
    assert path.name == f"process-{os.getpid()}-0.rec"
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_records_of_one_process_id_do_not_collide(tmp_path):
    for _ in range(2):
        Writer(str(tmp_path)).event(event="a")
    assert {path.name[-6:] for path in tmp_path.iterdir()} == {"-0.rec", "-1.rec"}


def test_holds_no_descriptor_open(tmp_path):
    writer = Writer(str(tmp_path))
    writer.event(event="a", filler="x" * 300_000)
    opened = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert opened
    assert not [path for path in opened if path.suffix == ".rec"]


def test_grows_beyond_the_first_mapping(tmp_path, written):
    writer = Writer(str(tmp_path))
    for number in range(5000):
        writer.step(float(number + 1), 0.5, number, 0)
    writer.event(event="big", text="x" * 400_000)
    writer.event(event="last")
    record = written()
    assert [step.num_samples for step in record.steps] == list(range(5000))
    assert len(record.events["big"][-1]["text"]) == 400_000
    assert record.events["last"] == [{"event": "last"}]


def test_writer_writes_text_when_json_cannot_hold_a_value_and_bytes_come_back(tmp_path, written):
    Writer(str(tmp_path)).event(event="odd", what={1}, name=os.fsdecode(b"caf\xe9") + "é")
    assert written().events["odd"] == [{"event": "odd", "what": "{1}", "name": os.fsdecode(b"caf\xe9") + "é"}]


def test_a_folder_that_is_gone_silences_it(tmp_path):
    writer = Writer(str(tmp_path / "nowhere"))
    writer.event(event="a")
    writer.step(1.0, 0.0, 1, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_is_full_stands_as_it_is(tmp_path, written, monkeypatch):
    monkeypatch.setattr(writers, "_LAST_BYTES", writers._FIRST_BYTES)
    writer = Writer(str(tmp_path))
    for number in range(5000):
        writer.step(float(number + 1), 0.0, number, 0)
    steps = written().steps
    assert 1000 < len(steps) < 5000
    assert [step.num_samples for step in steps] == list(range(len(steps)))


def test_a_full_record_of_a_watched_run_goes_on_in_further_files_of_which_the_newest_are_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(writers, "_LAST_BYTES", writers._FIRST_BYTES)
    writer = writers.Writer(str(tmp_path), {"watched": True})
    rank = Follower(tmp_path)
    writer.event(event="cycle", begin_s=0.5)
    for number in range(1, 10_001):
        writer.step(number / 2, 0.1, 4, 0)
        if number % 1000 == 0:
            rank.update(math.inf)
    rank.close()
    steps = rank.store.of("step", "0").ever
    assert steps.num == 10_000
    assert (steps.total, steps.most) == (pytest.approx(4999.5), 0.5)
    assert len(list(tmp_path.glob("process-*.more"))) == 2
    late = Follower(tmp_path)
    late.update(math.inf)
    late.close()
    assert 0 < late.store.of("step", "0").ever.num < 10_000
    assert late.store.of("step", "0").ever.most == 0.5


def test_a_forked_child_begins_a_record_of_its_own(tmp_path):
    writer = Writer(str(tmp_path))
    writer.event(event="parent")
    child = os.fork()
    if child == 0:
        writer.reset_after_fork()
        writer.event(event="child")
        os._exit(0)
    os.waitpid(child, 0)
    writer.event(event="parent")
    records = {raw_record(path).pid: raw_record(path) for path in tmp_path.iterdir()}
    assert {pid: {name: len(e) for name, e in record.events.items()} for pid, record in records.items()} == {
        os.getpid(): {"parent": 2},
        child: {"child": 1},
    }


def test_several_threads_write_whole_records(tmp_path, written):
    writer = Writer(str(tmp_path))
    begin = threading.Barrier(4)

    def write(thread):
        begin.wait()
        for number in range(500):
            writer.event(event=f"thread{thread}", number=number)
            writer.step(1.0, 0.0, thread, 0)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = written()
    assert len(record.steps) == 2000
    for thread in range(4):
        assert [event["number"] for event in record.events[f"thread{thread}"]] == list(range(500))


def test_the_layout_is_what_it_says(tmp_path):
    writer = Writer(str(tmp_path))
    writer.event(event="a")
    writer.step(2.5, 0.25, -1, 4)
    (path,) = tmp_path.iterdir()
    raw = path.read_bytes()
    assert struct.unpack_from("<8sHHI", raw) == (b"DYNOREC\0", 1, 32, os.getpid())
    size, kind, zero = struct.unpack_from("<IHH", raw, 32)
    assert (json.loads(raw[40 : 40 + size]), kind, zero) == ({"event": "a"}, 2, 0)
    after = 40 + (size + 7 & ~7)
    assert struct.unpack_from("<IHHdqQd", raw, after) == (32, 1, 0, 0.25, -1, 4, 2.5)
    assert raw[after + 40 : after + 48] == bytes(8)


@pytest.mark.parametrize("where", ["_room", "_write"])
def test_an_interrupt_in_the_middle_of_writing_loses_one_entry_at_most(where, tmp_path, written, monkeypatch):
    """Ctrl-C may come between any two lines of ours; many programs catch it and go on."""
    writer = Writer(str(tmp_path))
    code = getattr(Writer, where).__code__
    num_interrupts = 0
    for line in sorted({line for *_, line in code.co_lines() if line}):

        def interrupt(frame, event, arg, line=line):
            if frame.f_code is code and frame.f_lineno == line:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        writer.event(event="before", line=line)
        sys.settrace(interrupt)
        try:
            writer.event(event="interrupted", filler="x" * 200)
        except KeyboardInterrupt:
            num_interrupts += 1
        finally:
            sys.settrace(None)
        writer.event(event="after", line=line)
    events = written().events
    assert num_interrupts > 3
    assert [e["line"] for e in events["before"]] == [e["line"] for e in events["after"]]
    assert len(events["before"]) == len({line for *_, line in code.co_lines() if line})


def test_writer_writes_a_signal_handlers_event_when_it_comes_in_the_middle_of_writing(
    tmp_path, written, monkeypatch
):
    writer = Writer(str(tmp_path))
    write = writer._write

    def write_and_be_interrupted(kind, payload):
        monkeypatch.setattr(writer, "_write", write)
        writer.event(event="handler")
        write(kind, payload)

    monkeypatch.setattr(writer, "_write", write_and_be_interrupted)
    writer.event(event="program")
    assert list(written().events) == ["program", "handler"]


def test_an_event_is_written_as_the_plan_says_that_it_may_be_kept(tmp_path, written):
    plan = msgspec.to_builtins(Plan())
    argv = ["python", "\udcff.py", "--token", "abc", "--lr", "0.1"]
    Writer(str(tmp_path), plan).event(event="said", argv=argv, url="https://me:abc@example.org")
    (event,) = written().events["said"]
    assert event["argv"] == ["python", "\udcff.py", "--token", "@redacted", "--lr", "0.1"]
    assert event["url"] == "https://@redacted@example.org"
    assert all(b"abc" not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_fork_that_was_not_seen_writes_nothing_when_the_program_was_joined(tmp_path, written, monkeypatch):
    writer = Writer(str(tmp_path), pid=os.getpid())
    writer.event(event="before")
    writer.step(1.0, 0.0, 1, 0)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    writer.step(2.0, 0.0, 1, 0)
    writer.event(event="after")
    record = written()
    assert len(record.steps) == 1 and list(record.events) == ["before"]
