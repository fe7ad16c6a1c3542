"""Snapshots of the caching allocator. No GPU is at hand: all here are synthetic, see snapshot_made.py.

A real one is read in tests/gpu/test_memory_snapshot_on_gpu.py.
"""

import pickle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune import memory
from dynotune.schema import document
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.errors import UsageError
from dynotune.trace.snapshot import reading

from ..snapshot_made import SEGMENT, SnapshotMade, stack

MIB = 1 << 20
LIMIT = 64 * MIB
TORCH = "/env/lib/python3.11/site-packages/torch/nn/functional.py(12): relu"
STEP = stack(TORCH, "/project/model.py(20): forward", "/project/train.py(31): step")
LOAD = stack("/project/train.py(12): load", "/project/train.py(40): main")


@pytest.fixture
def read(tmp_path):
    """Writes what was made, or any data as a pickle, and reads it."""

    def write_and_read(made):
        path = tmp_path / "memory.pickle"
        if isinstance(made, SnapshotMade):
            made.write(path)
        else:
            path.write_bytes(pickle.dumps(made))
        return reading.load_snapshot(path, limit_bytes=LIMIT)

    return write_and_read


def fragmented():
    """Ten segments of seven blocks of 2.5 MiB; every second block is released, and one release is pending."""
    made = SnapshotMade()
    addresses = [made.alloc(5 * MIB // 2 - 100, STEP) for _ in range(80)]
    for address in addresses[::2]:
        made.free(address)
    made.request_free(addresses[1])
    return made


def told(lives):
    """What a device's blocks add up to, by line, at the peak and at the end."""
    return memory.of_snapshot(lives)


def lines(moment):
    (term,) = [term for term in moment.terms if term.name == "blocks"]
    return term.lines


def test_the_terms_of_a_device_add_up_to_what_torchs_statistics_say(read):
    (device,) = map(told, read(fragmented()).values())
    block, now = 5 * MIB // 2, device.steady
    assert now.reserved_bytes == now.total_bytes == 10 * SEGMENT
    assert now.requested_bytes == now.of("blocks") == 40 * (block - 100)
    assert now.of("rounding") == 40 * 100
    assert now.of("fragmentation") == 40 * block


def test_a_free_segment_is_cache_and_no_fragmentation(read):
    made = SnapshotMade()
    made.free(made.alloc(SEGMENT, STEP))
    (device,) = map(told, read(made).values())
    assert (device.steady.of("fragmentation"), device.steady.of("cache")) == (0, SEGMENT)


def test_the_peak_is_found_with_its_holders(read):
    made = SnapshotMade()
    made.alloc(3 * MIB, LOAD)
    for address in [made.alloc(MIB, STEP) for _ in range(4)]:
        made.free(address)
    (device,) = map(told, read(made).values())
    assert device.peak.requested_bytes == 7 * MIB
    assert list(lines(device.peak).items()) == [
        ("/project/model.py(20): forward", 4 * MIB),
        ("/project/train.py(12): load", 3 * MIB),
    ]
    assert list(lines(device.steady)) == ["/project/train.py(12): load"]
    assert device.peak.reserved_bytes == SEGMENT
    assert device.notes == []


def test_snapshot_counts_memory_older_than_its_history_and_places_it_only_while_it_lives(read):
    made = SnapshotMade()
    made.alloc(3 * MIB, LOAD)
    gone = made.alloc(2 * MIB, STEP)
    made.keep_last(0)
    late = made.alloc(MIB, STEP)
    made.free(gone)
    made.free(late)
    (lives,) = read(made).values()
    peak = told(lives).peak
    assert (sum(life.size for life in lives.alive(0)), peak.requested_bytes, lives.peak()) == (
        5 * MIB,
        6 * MIB,
        1,
    )
    assert lines(peak) == {"/project/train.py(12): load": 3 * MIB, "/project/model.py(20): forward": MIB}


def test_a_peak_before_the_first_event_is_at_event_0(read):
    made = SnapshotMade()
    addresses = [made.alloc(MIB, STEP) for _ in range(3)]
    made.keep_last(0)
    for address in addresses:
        made.free(address)
    (lives,) = read(made).values()
    assert lives.peak() == 0
    assert told(lives).peak.requested_bytes == 3 * MIB


actions = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 30 * MIB), st.integers(0, 2)), min_size=2, max_size=60
)
PLACES = [stack(f"/project/place.py({line}): hold") for line in range(3)]


@settings(max_examples=80, deadline=None)
@given(actions=actions, kept=st.integers(2, 80), is_expandable=st.booleans())
def test_the_replayed_peak_is_the_one_reckoned_forward(tmp_path_factory, actions, kept, is_expandable):
    made = SnapshotMade(is_expandable=is_expandable)
    alive = []
    for what, size, place in actions:
        if what <= 3 or not alive:
            alive.append(made.alloc(size, PLACES[place]))
        elif what <= 5:
            made.free(alive.pop(size % len(alive)))
        else:
            made.empty_cache()
    made.keep_last(kept)
    path = made.write(tmp_path_factory.mktemp("snapshots") / "memory.pickle")
    (lives,) = reading.load_snapshot(path, limit_bytes=LIMIT).values()
    device = told(lives)
    assert device.steady.requested_bytes == made.levels[-1] == made.active_bytes()
    assert sum(lines(device.steady).values() if alive else []) == made.active_bytes()
    assert 0 <= device.steady.of("fragmentation") <= device.steady.reserved_bytes - made.active_bytes()
    if lives.unknown:
        assert not {event["action"] for event in made.events} & {"alloc", "free_completed"}
        return
    assert device.peak.requested_bytes == max(made.levels)
    highest = made.levels.index(max(made.levels))
    before = [event["action"] in ("alloc", "free_completed") for event in made.events[:highest]]
    assert lives.peak() == sum(before)
    assert sum(life.size for life in lives.alive(0)) == made.levels[0]


@pytest.mark.parametrize("action", ["alloc", "free_completed"])
def test_a_history_with_events_left_out_is_not_followed_and_says_why(read, action):
    made = SnapshotMade()
    for _ in range(3):
        made.free(made.alloc(MIB, STEP))
    made.events = [event for event in made.events if event["action"] != action]
    assert "skip_actions" in read(made)[0].unknown


@pytest.mark.parametrize("change", ["lost", "appeared", "grown"])
def test_a_state_that_does_not_follow_from_the_history_stands_alone(read, change):
    made = SnapshotMade()
    first, _ = made.alloc(MIB, STEP), made.alloc(MIB, STEP)
    made.free(first)
    data = made.data()
    blocks = data["segments"][0]["blocks"]
    if change == "lost":
        blocks[1] |= {"state": "inactive", "requested_size": 0}
    elif change == "appeared":
        blocks[0] |= {"state": "active_allocated", "requested_size": 10}
    else:
        # A block that no event names covers one that was allocated meanwhile.
        blocks[2] |= {"address": first - 512, "state": "active_allocated", "requested_size": 10}
    lives = read(data)[0]
    assert "disagree" in lives.unknown
    assert any("disagree" in note for note in told(lives).notes)
    held = sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")
    assert told(lives).peak.requested_bytes == held


@pytest.mark.parametrize(
    "events", [[], [{"action": "snapshot", "size": 0}] * 3, [{"action": "alloc", "addr": 1}]]
)
def test_a_snapshot_without_a_history_says_so_and_still_tells_what_is_held(read, events):
    lives = read(fragmented().data() | {"device_traces": [events]})[0]
    assert "_record_memory_history" in lives.unknown
    assert next(iter(lines(told(lives).peak))) == "/project/model.py(20): forward"


def test_a_snapshot_older_than_torch_2_1_has_no_requested_sizes(read):
    data = fragmented().data()
    for segment in data["segments"]:
        del segment["is_expandable"]
        for block in segment["blocks"]:
            del block["requested_size"], block["address"]
    lives = read(data)[0]
    assert "torch older than 2.1" in lives.unknown
    assert told(lives).steady.of("blocks") == 100 * MIB


def test_a_list_of_segments_alone_is_read(read):
    lives = read(fragmented().data()["segments"])[0]
    assert told(lives).steady.reserved_bytes == 10 * SEGMENT
    assert lives.unknown


def test_devices_are_told_apart(read):
    data = fragmented().data()
    other = SnapshotMade(device=1)
    other.alloc(MIB, LOAD)
    data["segments"] += other.data()["segments"]
    data["device_traces"] = [data["device_traces"][0], other.events]
    first, second = map(told, read(data).values())
    assert (first.device, second.device) == (0, 1)
    assert second.peak.requested_bytes == MIB


# Places


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (stack(TORCH, "/project/train.py(31): step"), "/project/train.py(31): step"),
        (stack("??(0): at::empty", TORCH, "train.py(31): step"), "train.py(31): step"),
        (
            stack("/usr/lib/python3.11/threading.py(982): run", TORCH),
            "/usr/lib/python3.11/threading.py(982): run",
        ),
        (stack("<frozen runpy>(88): _run_code", "<stdin>(1): <module>"), "<stdin>(1): <module>"),
        (
            stack("/tmp/torchinductor_me/ab/cab.py(5): call", "/home/me/m.py(2): forward"),
            "/home/me/m.py(2): forward",
        ),
        (stack("torch/nn/modules/module.py(1): _call_impl"), "torch/nn/modules/module.py(1): _call_impl"),
        (stack("/src/kernel.cu(3): launch"), ""),
        ([], ""),
    ],
)
def test_a_place_is_the_users_innermost_function_else_the_innermost_of_python(read, frames, place):
    made = SnapshotMade()
    made.alloc(MIB, frames)
    made.alloc(MIB, frames)
    assert {life.where.function for life in read(made)[0].lives} == {place}


def test_strings_of_strangers_are_data_and_fit_json(read):
    made = SnapshotMade()
    made.alloc(MIB, [{"filename": "\ud800\x1b[2J'; --.py", "line": 1, "name": "%s{0}"}])
    found = MemoryAccount(ranks=list(map(told, read(made).values())))
    assert list(lines(found.ranks[0].peak)) == ["?\x1b[2J'; --.py(1): %s{0}"]
    assert msgspec.json.decode(msgspec.json.encode(found), type=MemoryAccount) == found


def test_the_record_can_be_written_and_read(read, tmp_path):
    found = MemoryAccount(file="memory.pickle", ranks=list(map(told, read(fragmented()).values())))
    document.write(tmp_path / "memory.json", found)
    assert document.read(tmp_path / "memory.json", MemoryAccount) == found


# What went wrong


def test_a_failed_allocation_is_told_with_its_place_and_what_held_the_memory_then(read):
    made = SnapshotMade()
    made.alloc(MIB, LOAD)
    made.fail(1 << 40, stack("/project/train.py(9): big"))
    made.alloc(MIB, LOAD)
    (note,) = told(read(made)[0]).notes
    assert note.startswith(
        "1024.00 GiB was asked for by /project/train.py(9): big and not given: 1 MiB was in live"
    )
    assert "19 MiB free in pieces" in note


def test_memory_that_is_given_back_to_the_driver_is_told(read):
    made = SnapshotMade()
    for _ in range(2):
        made.free(made.alloc(MIB, stack("/project/train.py(31): step")))
        made.empty_cache(stack("/project/train.py(33): step"))
    assert "given back to the driver 2 times" in told(read(made)[0]).notes[0]


# Bad input


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"state_dict": {"weight": [1.0]}},
        [1, 2, 3],
        7,
        None,
        "segments",
        {"segments": {}},
        {"segments": [{"address": 0}]},
        {"segments": [{"address": 0, "total_size": "20 MiB", "blocks": []}]},
        {"segments": [{"address": 0, "total_size": -5, "blocks": []}]},
        {"segments": [{"address": 0, "total_size": 1 << 60, "blocks": []}]},
        {"segments": [{"address": 0, "total_size": 5, "blocks": [{"size": 5, "state": "lost"}]}]},
        {"segments": [], "device_traces": 3},
        {"segments": [], "device_traces": [3]},
        {"segments": [], "device_traces": [[{"size": 3}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "size": 1 << 61, "addr": 1}] * 2]},
        {"segments": [], "device_traces": [[{"action": "oom", "size": 1, "frames": 3}] * 2]},
        {"segments": [], "device_traces": [[{"action": "oom", "size": 1, "frames": ["deep"]}] * 2]},
        {"segments": [], "device_traces": [[{"action": "oom", "size": 1, "frames": [{"line": 1}]}] * 2]},
        {"segments": [], "allocator_settings": []},
    ],
)
def test_a_pickle_that_is_no_snapshot_is_refused(read, data, tmp_path):
    with pytest.raises(UsageError, match="no memory snapshot") as raised:
        read(data)
    assert str(tmp_path / "memory.pickle") in raised.value.message


def test_an_empty_snapshot_has_no_devices(read):
    assert read({"segments": [], "device_traces": [[], []], "allocator_settings": {"list": [1]}}) == {}


def test_a_file_that_repeats_one_list_is_refused(read):
    events = fragmented().events
    with pytest.raises(UsageError, match="more entries than a file of its size"):
        read({"segments": [], "device_traces": [events] * 100_000})
    blocks = fragmented().data()["segments"][0]["blocks"]
    segment = {"address": 0, "total_size": 5, "blocks": blocks}
    with pytest.raises(UsageError, match="more entries than a file of its size"):
        read({"segments": [segment] * 10_000})


def test_a_file_over_the_limit_an_empty_one_and_none_are_refused(tmp_path):
    path = fragmented().write(tmp_path / "memory.pickle")
    size = path.stat().st_size
    reading.load_snapshot(path, limit_bytes=size)
    with pytest.raises(UsageError, match=f"larger than the limit of {size - 1:,} bytes"):
        reading.load_snapshot(path, limit_bytes=size - 1)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        reading.load_snapshot(path, limit_bytes=LIMIT)
    for wrong in (tmp_path, tmp_path / "none.pickle"):
        with pytest.raises(UsageError, match="Cannot read"):
            reading.load_snapshot(wrong, limit_bytes=LIMIT)
