"""What is made of a run that did not give what it was launched for."""

from __future__ import annotations

import struct

import pytest

from dynotune.launch.records.process_summary import summarise
from dynotune.launch.records.reader import Reader, Records
from dynotune.measure.live.outcome import stepping
from dynotune.schema.errors import RecordError
from dynotune.schema.events import ProcessBegun

from ...fakes import record

HEAD = struct.pack("<8sHHIdQ", b"DYNOREC\0", 1, 32, 4711, 1.5, 0)


def entry(kind: int, payload: bytes) -> bytes:
    return (struct.pack("<IHH", len(payload), kind, 0) + payload).ljust((8 + len(payload) + 7) & ~7, b"\0")


def step(end_s: float) -> bytes:
    return entry(1, struct.pack("<dqQd", 0.0, 8, 0, end_s))


@pytest.fixture
def write(tmp_path):
    def write(raw: bytes):
        path = tmp_path / "process-4711-0.rec"
        path.write_bytes(raw)
        return path

    return write


def test_a_record_cut_short_anywhere_is_read_up_to_the_cut(write):
    whole = HEAD + step(1.0) + entry(2, b'{"event": "torch", "version": "2"}') + step(2.0) + bytes(64)
    for length in range(len(whole)):
        read = Reader(write(whole[:length])).update()
        assert len(read.steps) == (length >= len(HEAD) + 40) + (length >= len(whole) - 64)


def test_a_damaged_event_says_nothing_and_those_around_it_stand(write):
    read = Reader(write(HEAD + step(1.0) + entry(2, b'{"event"') + entry(2, b"[]") + step(2.0))).update()
    assert len(read.steps) == 2
    assert read.events == {}
    assert read.dropped == {None: 2}


def test_an_event_larger_than_a_piece_hides_nothing_after_it(write):
    large = b'{"event": "process", "argv": ["' + b"x" * (3 << 20) + b'"]}'
    read = Reader(write(HEAD + step(1.0) + entry(2, large) + step(2.0))).update()
    assert len(read.steps) == 2
    assert len(read.last(ProcessBegun).argv[0]) == 3 << 20


@pytest.mark.parametrize(
    ("raw", "said"),
    [(b"GIF89a..".ljust(64), "not a record"), (HEAD.replace(b"\1\0", b"\2\0", 1), "version 2")],
)
def test_reader_refuses_a_record_that_is_none_of_ours(write, raw, said):
    with pytest.raises(RecordError, match=said):
        Reader(write(raw)).update()


def test_an_event_that_lacks_what_belongs_to_it_is_an_error_of_the_record(write, tmp_path):
    write(HEAD + entry(2, b'{"event": "window", "begin_s": "soon"}'))
    (read,) = Records(tmp_path).update()
    with pytest.raises(RecordError, match="damaged"):
        summarise(read, 0.0)


def test_of_processes_without_ranks_the_one_with_the_most_steps_counts():
    few, many = record([0.1] * 3), record([0.1] * 30)
    assert stepping([few, many, record([])]) == [many]


def test_stepping_returns_all_ranks_when_another_process_made_more_steps():
    ranks = [record([0.1] * 3, rank=0), record([0.1] * 4, rank=1)]
    assert stepping([record([0.1] * 30), *ranks]) == ranks
    assert stepping([]) == []
