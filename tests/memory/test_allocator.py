"""The model of torch's allocator: its arithmetic, what must hold for any sequence, and what torch itself
recorded."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.memory.allocator import MIB, AllocatorSettings, CachingAllocator, OutOfMemory

from .recorded_histories import FOLDER, replays

SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(MIB, 60 * MIB))
STEPS = st.lists(st.tuples(SIZES, st.integers(0, 9), st.integers(0, 1)), max_size=80)
SETTINGS = st.builds(AllocatorSettings, expandable_segments=st.booleans())


@pytest.mark.parametrize(
    ("num_bytes", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_a_first_allocation_takes_a_segment_of_the_size_that_torch_takes(num_bytes, reserved):
    model = CachingAllocator()
    model.allocate(0, num_bytes)
    assert model.reserved_bytes == reserved


def test_a_released_block_is_taken_again_and_its_rest_is_split_off():
    model = CachingAllocator()
    model.allocate(0, 20 * MIB)
    model.release(0)
    for name in (1, 2):
        model.allocate(name, 10 * MIB)
    assert (model.reserved_bytes, allocated(model)) == (20 * MIB, 20 * MIB)


def test_of_a_large_block_a_rest_of_up_to_one_mebibyte_stays_with_it():
    model = CachingAllocator()
    model.allocate(0, 20 * MIB)
    model.release(0)
    model.allocate(1, 19 * MIB)
    assert allocated(model) == 20 * MIB


def test_blocks_of_another_stream_are_not_taken():
    model = CachingAllocator()
    model.allocate(0, 4 * MIB, stream=1)
    model.release(0)
    model.allocate(1, 4 * MIB, stream=2)
    assert model.reserved_bytes == 40 * MIB


def test_expandable_segments_grow_where_others_would_be_added():
    plain, growing = CachingAllocator(), CachingAllocator(AllocatorSettings.parse("expandable_segments:True"))
    for model in (plain, growing):
        for name, size in enumerate([30 * MIB, 50 * MIB, 70 * MIB]):
            model.allocate(name, size)
            model.release(name)
    assert (plain.reserved_bytes, growing.reserved_bytes) == (150 * MIB, 80 * MIB)


def test_the_cache_is_given_back_before_an_allocation_fails():
    model = CachingAllocator(limit_bytes=100 * MIB)
    model.allocate(0, 60 * MIB)
    model.release(0)
    model.allocate(1, 80 * MIB)
    assert model.reserved_bytes == 80 * MIB
    with pytest.raises(OutOfMemory):
        model.allocate(2, 40 * MIB)


def test_settings_are_read_and_those_that_are_not_modelled_are_named():
    assert AllocatorSettings.parse("expandable_segments:True") == (True, "")
    assert AllocatorSettings.parse("") == AllocatorSettings.parse("backend:native") == (False, "")
    for text in (
        "backend:cudaMallocAsync",
        "max_split_size_mb:512",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
    ):
        assert AllocatorSettings.parse(text).unmodelled == text


def allocated(model):
    return sum(block.size for block in model.live.values())


@given(STEPS, SETTINGS)
def test_allocators_sums_agree_and_all_can_be_given_back(steps, settings):
    model = CachingAllocator(settings)
    live = {}
    for number, (size, choice, stream) in enumerate(steps):
        if choice < 4 and live:
            name = sorted(live)[choice % len(live)]
            model.release(name)
            del live[name]
        else:
            model.allocate(number, size, stream)
            live[number] = size
        assert sum(size for _, size in model.segments()) == model.reserved_bytes
        assert sum(live.values()) <= allocated(model) <= model.reserved_bytes
        blocks = sorted((block.address, block.size) for block in model.live.values())
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(blocks))
    for name in live:
        model.release(name)
    model.empty_cache()
    assert (model.reserved_bytes, model.segments()) == (0, [])


@given(STEPS, SETTINGS, st.integers(30, 200))
def test_a_limit_is_never_passed(steps, settings, limit):
    model = CachingAllocator(settings, limit_bytes=limit * MIB)
    for number, (size, _, stream) in enumerate(steps):
        try:
            model.allocate(number, size, stream)
        except OutOfMemory:
            continue
        assert model.peak_reserved_bytes <= limit * MIB


def test_histories_that_gpus_recorded_are_replayed_to_the_byte():
    found = dict(replays())
    if not found:
        pytest.skip(f"{FOLDER} holds no snapshots")
    for name, replay in found.items():
        assert replay.taken == replay.model_taken, name
        assert replay.segments == replay.model_segments, name
        assert replay.peak_bytes == replay.model_peak_bytes, name
        assert replay.num_placed == replay.num_allocations, name
