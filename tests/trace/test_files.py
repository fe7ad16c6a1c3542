from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dynotune.schema.errors import UsageError
from dynotune.trace.files import arrange, files_of
from dynotune.trace.timeline import Timeline

from .made import Made

TRACE = b'{"schemaVersion": 1, "traceEvents": []}'


def of(source: str, rank: int | None = None, world_size: int | None = None) -> Timeline:
    return replace(Made(rank=rank, source=source).timeline(), world_size=world_size)


def sources(traces) -> list[list[str]]:
    return [[timeline.source for timeline in trace] for trace in traces]


def test_one_file_is_one_trace_without_a_word():
    arrangement = arrange([[of("a", 0)]], None)
    assert sources(arrangement.traces) == [["a"]]
    assert arrangement.why == ""


def test_processes_of_one_file_are_one_trace():
    assert sources(arrange([[of("a"), of("a")]], None).traces) == [["a", "a"]]


def test_files_of_different_ranks_are_one_trace_and_it_says_so():
    arrangement = arrange([[of("a", 1)], [of("b", 0)]], None)
    assert sources(arrangement.traces) == [["a", "b"]]
    assert "these are ranks 0, 1 of one job" in arrangement.why


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (of("a", 0), of("b", 0), "both are of rank 0."),
        (of("a"), of("b"), "neither says its rank."),
        (of("a", 0), of("b"), "one does not say its rank."),
        (of("a", 0, 2), of("b", 1, 4), "they are of jobs of different size."),
    ],
)
def test_two_files_that_are_not_two_ranks_of_one_job_are_compared_and_it_says_why(first, second, why):
    arrangement = arrange([[first], [second]], None)
    assert sources(arrangement.traces) == [["a"], ["b"]]
    assert arrangement.why.startswith("Compared, a before and b after:")
    assert why in arrangement.why


def test_two_folders_with_the_same_ranks_are_compared():
    arrangement = arrange([[of("a0", 0), of("a1", 1)], [of("b0", 0), of("b1", 1)]], None)
    assert sources(arrangement.traces) == [["a0", "a1"], ["b0", "b1"]]
    assert "a0 and 1 more before and b0 and 1 more after" in arrangement.why
    assert "they hold the same ranks" in arrangement.why


def test_three_files_of_one_rank_are_refused_with_the_two_that_clash():
    with pytest.raises(UsageError, match="a and c are both of rank 0") as error:
        arrange([[of("a", 0)], [of("b", 1)], [of("c", 0)]], None)
    assert "--ranks" in error.value.hint


def test_three_files_of_which_one_has_no_rank_are_refused():
    with pytest.raises(UsageError, match="b does not say its rank"):
        arrange([[of("a", 0)], [of("b")], [of("c", 2)]], None)


def test_ranks_that_were_asked_for_are_numbered_where_the_files_do_not_tell_them():
    arrangement = arrange([[of("a")], [of("b")]], "ranks")
    assert [timeline.rank for timeline in arrangement.traces[0]] == [0, 1]
    assert "numbered from 0 in the order given" in arrangement.why


def test_ranks_that_were_asked_for_keep_their_numbers():
    arrangement = arrange([[of("a", 3)], [of("b", 1)]], "ranks")
    assert [timeline.rank for timeline in arrangement.traces[0]] == [3, 1]
    assert arrangement.why == ""


def test_a_comparison_that_was_asked_for_takes_files_of_different_ranks():
    arrangement = arrange([[of("a", 0)], [of("b", 1)]], "compare")
    assert sources(arrangement.traces) == [["a"], ["b"]]
    assert arrangement.why == ""


def test_a_folder_of_two_traces_can_be_compared():
    assert sources(arrange([[of("a", 0), of("b", 0)]], "compare").traces) == [["a"], ["b"]]


@pytest.mark.parametrize("num", [1, 3])
def test_a_comparison_of_another_number_than_two_is_refused(num):
    with pytest.raises(UsageError, match="A comparison needs two traces"):
        arrange([[of(f"file{n}", n)] for n in range(num)], "compare")


def test_a_side_of_a_comparison_that_is_no_job_is_refused():
    with pytest.raises(UsageError, match="a and b are both of rank 0"):
        arrange([[of("a", 0), of("b", 0)], [of("c", 0)]], "compare")


def test_a_folder_stands_for_its_traces_in_natural_order_and_other_files_are_left_alone(tmp_path: Path):
    for name in ("rank-10.json", "rank-2.json"):
        (tmp_path / name).write_bytes(TRACE)
    (tmp_path / "rank-1.json.gz").write_bytes(gzip.compress(TRACE))
    (tmp_path / "report.sqlite").write_bytes(b"SQLite format 3\0")
    (tmp_path / "run.json").write_text('{"schema": "dynotune.run/1"}')
    (tmp_path / "notes.txt").write_bytes(TRACE)
    (tmp_path / "inside").mkdir()
    (found,) = files_of([tmp_path])
    assert [path.name for path in found] == ["rank-1.json.gz", "rank-2.json", "rank-10.json", "report.sqlite"]


def test_a_damaged_file_of_a_folder_is_kept_for_its_reader_to_refuse(tmp_path: Path):
    (tmp_path / "a.json.gz").write_bytes(b"\x1f\x8b\x08 damaged")
    assert files_of([tmp_path]) == [[tmp_path / "a.json.gz"]]


def test_a_folder_without_a_trace_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="no trace in the folder"):
        files_of([tmp_path])


def test_a_missing_file_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match=r"There is no file .*nothing\.json"):
        files_of([tmp_path / "nothing.json"])


def test_a_file_that_was_named_twice_is_a_usage_error(tmp_path: Path):
    (tmp_path / "a.json").write_bytes(TRACE)
    with pytest.raises(UsageError, match="given twice"):
        files_of([tmp_path / "a.json", tmp_path / ".." / tmp_path.name / "a.json"])


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="not an ordinary file") as raised:
        files_of([path])
    assert "Write it to a file first" in raised.value.hint


def test_a_name_that_the_system_refuses_is_refused_with_its_reason(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        files_of([tmp_path / ("x" * 300)])


def test_a_file_in_a_folder_without_rights_is_refused_with_its_reason(tmp_path, monkeypatch):
    def refuses(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuses)
    with pytest.raises(UsageError, match=r"closed/trace\.json cannot be read: Permission denied"):
        files_of([tmp_path / "closed" / "trace.json"])
