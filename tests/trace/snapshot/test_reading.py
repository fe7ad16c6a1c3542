"""Snapshots of the caching allocator. No GPU is at hand: all here are synthetic, see snapshot_made.py.

A real one is read in tests/gpu/test_memory_snapshot_on_gpu.py.
"""

import pickle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema import document
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_snapshot import MemorySnapshot
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


def test_the_sizes_of_a_device_are_those_of_torchs_statistics(read):
    (device,) = read(fragmented()).devices
    block = 5 * MIB // 2
    assert device.reserved_bytes == 10 * SEGMENT
    assert device.num_segments == 10
    assert device.active_bytes == 40 * block
    assert device.allocated_bytes == 39 * block
    assert device.requested_bytes == 40 * (block - 100)
    assert device.inactive_split_bytes == 40 * block
    assert device.fragmentation == 0.5
    assert device.largest_free_bytes == block
    assert device.expandable is False


def test_a_free_segment_is_not_fragmentation_and_neither_is_an_expandable_one(read):
    made = SnapshotMade()
    made.free(made.alloc(SEGMENT, STEP))
    (device,) = read(made).devices
    assert (device.inactive_split_bytes, device.largest_free_bytes) == (0, SEGMENT)
    made = SnapshotMade(is_expandable=True)
    made.alloc(MIB)
    (device,) = read(made).devices
    assert (device.inactive_split_bytes, device.expandable) == (0, True)
    assert device.largest_free_bytes == SEGMENT - MIB


def test_the_peak_is_found_with_its_time_and_its_holders(read):
    made = SnapshotMade()
    weights = made.alloc(3 * MIB, LOAD)
    activations = [made.alloc(MIB, STEP) for _ in range(4)]
    for address in activations:
        made.free(address)
    (device,) = read(made).devices
    peak = device.history.peak
    assert peak.requested_bytes == 7 * MIB
    # segment_alloc, then five allocations, a second apart from the first on.
    assert (peak.event, peak.at_s, peak.start_bytes) == (6, 5.0, 0)
    assert [(holder.where.function, holder.requested_bytes, holder.num_blocks) for holder in peak.holders] == [
        ("/project/model.py(20): forward", 4 * MIB, 4),
        ("/project/train.py(12): load", 3 * MIB, 1),
    ]
    assert [holder.where.function for holder in device.holders] == ["/project/train.py(12): load"]
    assert device.history.peak_reserved_bytes == SEGMENT
    assert device.history.num_segment_allocs == 1
    assert device.history.duration_s == len(made.events) - 1
    assert made._at(weights).state == "active_allocated"


def test_what_is_older_than_the_history_counts_and_its_place_is_known_only_while_it_lives(read):
    made = SnapshotMade()
    made.alloc(3 * MIB, LOAD)
    gone = made.alloc(2 * MIB, STEP)
    made.keep_last(0)
    late = made.alloc(MIB, STEP)
    made.free(gone)
    made.free(late)
    (device,) = read(made).devices
    peak = device.history.peak
    assert (peak.start_bytes, peak.requested_bytes, peak.event) == (5 * MIB, 6 * MIB, 1)
    assert [(holder.where.function, holder.requested_bytes) for holder in peak.holders] == [
        ("/project/train.py(12): load", 3 * MIB),
        ("", 2 * MIB),
        ("/project/model.py(20): forward", MIB),
    ]


def test_a_peak_before_the_first_event_is_at_event_0(read):
    made = SnapshotMade()
    addresses = [made.alloc(MIB, STEP) for _ in range(3)]
    made.keep_last(0)
    for address in addresses:
        made.free(address)
    (device,) = read(made).devices
    assert (device.history.peak.event, device.history.peak.at_s) == (0, 0.0)
    assert device.history.peak.requested_bytes == 3 * MIB


actions = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 30 * MIB), st.integers(0, 2)), min_size=2, max_size=60)
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
    (device,) = reading.load_snapshot(path, limit_bytes=LIMIT).devices
    peak = device.history.peak
    if isinstance(peak, Unknown):
        assert not {event["action"] for event in made.events} & {"alloc", "free_completed"}
        return
    assert peak.requested_bytes == max(made.levels)
    assert peak.event == made.levels.index(max(made.levels))
    assert peak.start_bytes == made.levels[0]
    assert device.requested_bytes == made.levels[-1] == made.active_bytes()
    assert sum(holder.requested_bytes for holder in peak.holders) == peak.requested_bytes
    assert sum(holder.requested_bytes for holder in device.holders) == device.requested_bytes
    assert 0 <= device.inactive_split_bytes <= device.reserved_bytes - device.active_bytes
    assert device.history.peak_reserved_bytes >= device.reserved_bytes


@pytest.mark.parametrize("action", ["alloc", "free_completed"])
def test_a_history_with_events_left_out_has_no_peak_and_says_why(read, action):
    made = SnapshotMade()
    for _ in range(3):
        made.free(made.alloc(MIB, STEP))
    made.events = [event for event in made.events if event["action"] != action]
    history = read(made).devices[0].history
    assert isinstance(history.peak, Unknown)
    assert "skip_actions" in history.peak.reason
    assert history.num_segment_allocs == 1


@pytest.mark.parametrize("change", ["lost", "appeared", "grown"])
def test_a_state_that_does_not_follow_from_the_history_has_no_peak(read, change):
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
    assert isinstance(read(data).devices[0].history.peak, Unknown)


@pytest.mark.parametrize("events", [[], [{"action": "snapshot", "size": 0}] * 3, [{"action": "alloc", "addr": 1}]])
def test_a_snapshot_without_a_history_says_so_and_still_tells_what_is_held(read, events):
    data = fragmented().data() | {"device_traces": [events]}
    (device,) = read(data).devices
    assert isinstance(device.history, Unknown)
    assert "_record_memory_history" in device.history.reason
    assert device.holders[0].where.function == "/project/model.py(20): forward"


def test_a_history_without_times_has_no_durations(read):
    made = fragmented()
    for event in made.events:
        del event["time_us"]
    history = read(made).devices[0].history
    assert history.duration_s is history.peak.at_s is None
    assert history.num_late_segment_allocs == 0


def test_a_snapshot_older_than_torch_2_1_has_no_requested_sizes(read):
    data = fragmented().data()
    for segment in data["segments"]:
        del segment["is_expandable"]
        for block in segment["blocks"]:
            del block["requested_size"], block["address"]
    (device,) = read(data).devices
    assert device.requested_bytes is device.expandable is None
    assert "torch older than 2.1" in device.history.peak.reason
    assert device.active_bytes == 100 * MIB


def test_a_list_of_segments_alone_is_read(read):
    (device,) = read(fragmented().data()["segments"]).devices
    assert device.reserved_bytes == 10 * SEGMENT
    assert isinstance(device.history, Unknown)


def test_devices_are_told_apart(read):
    data = fragmented().data()
    other = SnapshotMade(device=1)
    other.alloc(MIB, LOAD)
    data["segments"] += other.data()["segments"]
    data["device_traces"] = [data["device_traces"][0], other.events]
    first, second = read(data).devices
    assert (first.device, second.device) == (0, 1)
    assert second.history.peak.requested_bytes == MIB


# Places


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (stack(TORCH, "/project/train.py(31): step"), "/project/train.py(31): step"),
        (stack("??(0): at::empty", TORCH, "train.py(31): step"), "train.py(31): step"),
        (stack("/usr/lib/python3.11/threading.py(982): run", TORCH), "/usr/lib/python3.11/threading.py(982): run"),
        (stack("<frozen runpy>(88): _run_code", "<stdin>(1): <module>"), "<stdin>(1): <module>"),
        (stack("/tmp/torchinductor_me/ab/cab.py(5): call", "/home/me/m.py(2): forward"), "/home/me/m.py(2): forward"),
        (stack("torch/nn/modules/module.py(1): _call_impl"), "torch/nn/modules/module.py(1): _call_impl"),
        (stack("/src/kernel.cu(3): launch"), ""),
        ([], ""),
    ],
)
def test_a_place_is_the_users_innermost_function_else_the_innermost_of_python(read, frames, place):
    made = SnapshotMade()
    made.alloc(MIB, frames)
    made.alloc(MIB, frames)
    assert [holder.where.function for holder in read(made).devices[0].holders] == [place]


def test_strings_of_strangers_are_data_and_fit_json(read):
    made = SnapshotMade()
    made.alloc(MIB, [{"filename": "\ud800\x1b[2J'; --.py", "line": 1, "name": "%s{0}"}])
    found = read(made)
    assert found.devices[0].holders[0].where.function == "?\x1b[2J'; --.py(1): %s{0}"
    assert msgspec.json.decode(msgspec.json.encode(found), type=MemorySnapshot) == found


def test_the_record_can_be_written_and_read(read, tmp_path):
    found = read(fragmented())
    document.write(tmp_path / "memory.json", found)
    assert document.read(tmp_path / "memory.json", MemorySnapshot) == found
    assert found.schema == "dynotune.memory_snapshot/1"
    assert found.settings["expandable_segments"] == "False"
    assert found.settings["roundup_power2_divisions.2"] == "0"
    assert found.notes == []


# Findings


def ids(found):
    return [cause.id for cause in found.causes]


def test_fragmentation_is_found_with_its_share(read):
    (cause,) = [cause for cause in read(fragmented()).causes if cause.id == "fragmentation"]
    assert (cause.share, cause.num_bytes) == (0.5, 100 * MIB)
    assert "50%" in cause.claim
    assert "reserved 209,715,200 bytes in 10 segments" in cause.evidence


def test_a_compact_memory_and_a_small_one_have_no_fragmentation(read):
    made = SnapshotMade()
    for _ in range(80):
        made.alloc(5 * MIB // 2, STEP)
    assert "fragmentation" not in ids(read(made))
    small = SnapshotMade()
    small.alloc(MIB, STEP)
    assert "fragmentation" not in ids(read(small))


def test_an_allocation_that_flushes_the_cache_is_told_with_its_place(read):
    made = SnapshotMade()
    made.free(made.alloc(2 * SEGMENT, LOAD))
    made.free(made.alloc(SEGMENT, LOAD))
    # Each allocation has a stack of its own, and all that it does is logged with it.
    made.alloc(SEGMENT, stack("/project/train.py(31): step"), flushing=True)
    found = read(made)
    history = found.devices[0].history
    assert (history.num_flushes, history.num_empty_caches, history.num_ooms) == (1, 0, 0)
    (cause,) = found.causes
    assert (cause.id, cause.where.function) == ("alloc-retries", "/project/train.py(31): step")
    assert cause.num_bytes is cause.share is None
    assert cause.evidence[0] == "allocations that flushed the cache: 1"


def test_a_failed_allocation_is_told_with_its_place(read):
    made = SnapshotMade()
    made.alloc(MIB, LOAD)
    made.fail(1 << 40, stack("/project/train.py(9): big"))
    found = read(made)
    assert found.devices[0].history.num_ooms == 1
    (cause,) = found.causes
    assert (cause.id, cause.where.function) == ("alloc-retries", "/project/train.py(9): big")


def test_emptying_the_cache_is_no_flush(read):
    made = SnapshotMade()
    for _ in range(2):
        made.free(made.alloc(MIB, stack("/project/train.py(31): step")))
        made.empty_cache(stack("/project/train.py(33): step"))
    found = read(made)
    history = found.devices[0].history
    assert (history.num_flushes, history.num_empty_caches, history.num_segment_frees) == (0, 2, 2)
    assert ids(found) == ["empty-cache-in-loop"]


def test_segments_given_back_from_elsewhere_are_no_flush_of_the_allocation_after(read):
    made = SnapshotMade()
    made.free(made.alloc(SEGMENT, LOAD))
    made._release(stack("/project/train.py(50): tidy"))
    made.alloc(SEGMENT, stack("/project/train.py(31): step"))
    history = read(made).devices[0].history
    assert (history.num_flushes, history.num_empty_caches, history.num_segment_frees) == (0, 0, 1)


def test_without_stacks_flushes_are_unknown_and_not_none(read):
    made = SnapshotMade()
    made.free(made.alloc(SEGMENT))
    made.alloc(SEGMENT, flushing=True)
    history = read(made).devices[0].history
    assert history.num_flushes is history.num_empty_caches is None


def test_a_cache_that_still_grows_in_the_second_half_is_told(read):
    made = SnapshotMade()
    for _ in range(5):
        made.free(made.alloc(MIB, STEP))
    for number in range(3):
        made.alloc(2 * SEGMENT + number, STEP)
    found = read(made)
    assert found.devices[0].history.num_late_segment_allocs == 3
    (cause,) = found.causes
    assert cause.id == "alloc-retries"
    assert cause.evidence[0] == "cudaMalloc in its second half: 3"


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


def test_an_empty_snapshot_says_that_it_is_empty(read):
    found = read({"segments": [], "device_traces": [[], []], "allocator_settings": {"list": [1]}})
    assert found.devices == []
    assert len(found.notes) == 2


def test_a_file_that_repeats_one_list_is_refused(read):
    events = fragmented().events
    with pytest.raises(UsageError, match="repeats itself"):
        read({"segments": [], "device_traces": [events] * 100_000})
    blocks = fragmented().data()["segments"][0]["blocks"]
    segment = {"address": 0, "total_size": 5, "blocks": blocks}
    with pytest.raises(UsageError, match="repeats itself"):
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
