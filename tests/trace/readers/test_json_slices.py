from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynotune.schema.errors import UsageError
from dynotune.trace.readers.json_slices import Slices, chunks, default_limit

LIST = msgspec.json.Decoder(list[dict[str, Any]])
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)

# Characters that make a string look like the end of an event.
NASTY = (
    st.text(st.sampled_from('{}[],:"\\ \n\u00e9ph'), max_size=12)
    | st.just('},{"ph":')
    | st.just('"}, {"name": ')
)
VALUES = st.recursive(
    NASTY | st.integers(-9, 9) | st.floats(-9, 9) | st.none() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NASTY | st.sampled_from(["ph", "name"]), inner, max_size=3)
    ),
    max_leaves=8,
)
EVENTS = st.lists(
    st.dictionaries(st.sampled_from(["ph", "name", "id", "x", "args"]) | NASTY, VALUES, min_size=1)
)


def decode(text: memoryview) -> list[dict[str, Any]]:
    return LIST.decode(text)


def read(path: Path, **how: Any) -> tuple[list[dict[str, Any]], Slices[dict[str, Any]]]:
    slices = Slices(path, decode, **how)
    return [event for piece in slices for event in piece.events], slices


def ends(text: str) -> list[int]:
    """Where each event of a written trace ends, in bytes, as the standard library's reader finds it."""
    scan, found = json.JSONDecoder(), []
    at = text.index("[", text.index('"traceEvents"') if text.lstrip().startswith("{") else 0) + 1
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" \n,"))
        if text[at] == "]":
            return found
        at = scan.raw_decode(text, at)[1]
        found.append(len(text[:at].encode()))


@pytest.mark.long
@REUSED
@given(
    events=EVENTS,
    behind=st.dictionaries(NASTY, VALUES, max_size=2),
    slice_bytes=st.integers(1, 200),
    is_bare=st.booleans(),
    indent=st.sampled_from([None, 1]),
    ascii=st.booleans(),
)
def test_slices_of_any_size_hold_all_events_in_order(
    tmp_path: Path,
    events: list[dict[str, Any]],
    behind: dict[str, Any],
    slice_bytes: int,
    is_bare: bool,
    indent: int | None,
    ascii: bool,
) -> None:
    document = (
        events if is_bare else {"a": [{"id": 1}, {"id": 2}], "traceEvents": events, **behind, "z": [{}, {}]}
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document, indent=indent, ensure_ascii=ascii))

    found, slices = read(path, slice_bytes=slice_bytes)

    assert found == events
    assert not slices.is_cut
    assert slices.num_events == len(events)
    assert slices.num_bytes == path.stat().st_size
    if isinstance(document, dict):
        others = {
            key: msgspec.json.decode(value) for key, value in slices.document.items() if key != "traceEvents"
        }
        assert others == {key: value for key, value in document.items() if key != "traceEvents"}


@pytest.mark.long
@REUSED
@given(events=EVENTS, cut=st.floats(0, 1), slice_bytes=st.integers(1, 200), is_bare=st.booleans())
def test_a_file_cut_anywhere_gives_every_event_before_the_cut(
    tmp_path: Path, events: list[dict[str, Any]], cut: float, slice_bytes: int, is_bare: bool
) -> None:
    text = json.dumps(events if is_bare else {"traceEvents": events, "name": "x", "list": [1, {"a": 2}]})
    first = text.index("[") + 1
    size = min(first + int(cut * (len(text) - first)), len(text) - 1)
    path = tmp_path / "trace.json"
    path.write_text(text[:size])

    found, slices = read(path, slice_bytes=slice_bytes)

    assert found == events[: sum(end <= size for end in ends(text))]
    assert slices.is_cut
    assert slices.num_bytes == size


def test_a_gzipped_file_cut_anywhere_gives_events_from_the_start(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": f"operator {number * 7919}", "ts": number} for number in range(300)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    path = tmp_path / "trace.json.gz"
    nums = []
    for size in range(100, len(packed) - 8, 17):
        path.write_bytes(packed[:size])
        found, slices = read(path, slice_bytes=500)
        assert found == events[: len(found)]
        assert slices.is_cut
        nums.append(len(found))
    assert nums == sorted(nums)
    assert nums[-1] > 290


@pytest.mark.parametrize("chunk_bytes", [pytest.param(7, marks=pytest.mark.long), 100, 1 << 20])
def test_a_gzipped_file_cut_short_gives_all_text_that_is_in_it(tmp_path: Path, chunk_bytes: int) -> None:
    packed = gzip.compress(b"".join(b'{"ts": %d},' % (number // 9) for number in range(4000)))
    path = tmp_path / "trace.json.gz"
    for size in range(20, len(packed), 3):
        path.write_bytes(packed[:size])
        text = b"".join(chunk for _, chunk in chunks(path, chunk_bytes))
        unlimited = zlib.decompressobj(31)
        assert text == unlimited.decompress(packed[:size]) + unlimited.flush()


def test_slices_stay_short_where_events_hold_lists_of_what_looks_like_events(tmp_path: Path) -> None:
    events = [{"ph": "X", "args": {"list": [{"ph": "X"}] * 200}, "ts": number} for number in range(300)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    sizes = [len(piece.text) for piece in Slices(path, decode, slice_bytes=5000)]
    assert max(sizes) < 30_000


def test_gzip_members_that_follow_one_another_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(
        gzip.compress(b'{"traceEvents": [{"ts": 1}, {"t') + gzip.compress(b's": 2}]}') + b"\0" * 512
    )
    assert read(path)[0] == [{"ts": 1}, {"ts": 2}]


def test_damaged_compression_is_refused_with_its_byte(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps([{"ts": number} for number in range(5000)]).encode()))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    with pytest.raises(UsageError, match=r"trace\.json\.gz is damaged: .* beyond byte \d"):
        read(path)


def test_a_bomb_is_stopped_at_the_limit_and_the_option_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    path.write_bytes(squeeze.compress(b"[" + b'{"ts": 1},' * 1_000_000) + squeeze.flush())
    with pytest.raises(UsageError, match="unpacks to more than 1,000,000 bytes") as caught:
        read(path, limit_bytes=1_000_000)
    assert "--max-size" in caught.value.hint
    assert len(read(path)[0]) == 1_000_000


def test_the_limit_leaves_room_for_traces_and_none_for_bombs() -> None:
    assert default_limit(2_000) == 1 << 30
    assert default_limit(1 << 30) == 100 << 30


@pytest.mark.long
def test_a_text_in_which_no_event_ends_is_not_kept_in_memory_whole(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    path.write_bytes(squeeze.compress(b'[{"name": "' + b"}" * (20 << 20)) + squeeze.flush())
    with pytest.raises(UsageError, match="16 MiB follow in which no event ends"):
        read(path)


def test_a_list_behind_the_events_that_is_longer_than_a_slice_is_not_taken_for_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    devices = [{"name": f"device {number}", "ts": number} for number in range(200)]
    path.write_text(
        json.dumps({"traceEvents": [{"ts": 1}, {"ts": 2}], "deviceProperties": devices, "last": 3})
    )
    for slice_bytes in (40, 64, 1000, 1 << 20):
        found, slices = read(path, slice_bytes=slice_bytes)
        assert found == [{"ts": 1}, {"ts": 2}]
        assert msgspec.json.decode(slices.document["last"]) == 3


def test_values_that_are_not_finite_do_not_end_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [f'{{"name": "k: inf, {number}", "bandwidth": {value}, "ts": {number}}}' for number, value in
              enumerate(["inf", "-inf", "nan", "-nan", "NaN", "Infinity", "-Infinity"] * 20)]  # fmt: skip
    path.write_text(f'{{"traceEvents": [{", ".join(events)}], "a": inf, "b": nan, "c": 1}}')
    for slice_bytes in (1, 300, 1 << 20):
        found, slices = read(path, slice_bytes=slice_bytes)
        assert [event["ts"] for event in found] == list(range(140))
        assert found[3]["name"] == "k: inf, 3"
        assert msgspec.json.decode(slices.document["c"]) == 1


@pytest.mark.parametrize("slice_bytes", [7, 40, 1 << 20])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello", "byte 0: it is not JSON"),
        (b'{"traceEvents": [{"ts": 1}, {"ts": 2}, {"ts" 3}, {"ts": 4}]}', r"byte \d\d: it is not JSON"),
        (b'{"traceEvents": [{"ts": 1}, {"ts": 2}], "x": y, "z": 1}', r"byte \d\d: it is not JSON"),
        (b'[{"ts": 1}] []', r"byte 11: something follows the list"),
        (b'{"a": 1, "b": [2]}', "is JSON, but no trace: it holds `a`, `b` and no `traceEvents`"),
        (b'{"traceEvents": null}', "is JSON, but no trace: `traceEvents` is no list"),
        (b'{"a": {"traceEvents": [{"ts": 1}]}}', "is JSON, but no trace: it holds `a`"),
        (b'{"a\xd0": 1, "b": [2]}', "is JSON, but no trace: it holds `a\\?`, `b`"),
        (b'{"a": "\\"traceEvents\\": [", "b": 1}', "is JSON, but no trace: it holds `a`, `b`"),
        (b'{"schemaVersion": 1, "trace', "is cut short before its first event"),
        (b'[{"x": ' + b"[" * 20_000, "nest deeper"),
        (b'{"a": ' + b"[" * 20_000, "not JSON"),
        (
            b'[{"ts": 1}, "event"]',
            r"`traceEvents\[1\]` is not what a trace holds: Expected `object`, got `str`",
        ),
    ],
)
def test_json_slices_refuse_text_that_is_no_trace_with_the_place(
    tmp_path: Path, text: bytes, says: str, slice_bytes: int
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=says) as caught:
        read(path, slice_bytes=slice_bytes)
    assert "trace.json" in caught.value.message
    assert caught.value.hint


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'\xef\xbb\xbf\n {"traceEvents" :\n[{"ts": 1}]}')
    assert read(path)[0] == [{"ts": 1}]


def test_progress_is_told_in_bytes_of_the_file(tmp_path: Path) -> None:
    text = json.dumps([{"ts": number} for number in range(1000)]).encode()
    for name, content in (("plain.json", text), ("packed.json.gz", gzip.compress(text))):
        told: list[tuple[int, int | None]] = []
        (tmp_path / name).write_bytes(content)
        read(tmp_path / name, slice_bytes=1000, progress=lambda *at, told=told: told.append(at))
        assert told[-1] == (len(content), len(content))
        assert told == sorted(told)
        assert len(told) > 5
