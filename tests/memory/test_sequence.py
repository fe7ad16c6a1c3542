"""Other batches by their allocations, against a program that runs on the model of the allocator itself."""

from dataclasses import replace

import pytest

from dynotune.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from dynotune.memory.sequence import by_batch, placed
from dynotune.schema.memory import DeviceOwners
from dynotune.trace.snapshot import Life, Lives, Range

MIB = 1 << 20
LAYERS = 12


def steps(batch, *, num=2, swapped=False):
    """Two steps of a training, as allocations of the program: (name, bytes) and (name, None) for releases."""
    events = []
    for step in range(num):
        for layer in range(LAYERS):
            events += [
                ((step, "a", layer), batch * 700_000 + 3000 * layer),
                ((step, "t", layer), batch * 90_000),
            ]
            events.append(((step, "t", layer), None))
        for layer in reversed(range(LAYERS)):
            events += [((step, "g", layer), 5 * MIB), ((step, "a", layer), None)]
        events += [((step, "g", layer), None) for layer in range(LAYERS)]
    return [*events[1:2], *events[:1], *events[2:]] if swapped else events


def lives(events):
    """The history of these events; weights are older."""
    born, found = {}, [Life(at, 30 * MIB, -1, len(events)) for at in range(4)]
    for number, (name, size) in enumerate(events):
        if size is None:
            at, held = born.pop(name)
            found.append(Life(hash(name), held, at, number))
        else:
            born[name] = number, size
    return Lives(0, found, len(events), [])


def reserved(events):
    allocator = CachingAllocator()
    for at in range(4):
        allocator.allocate(-1 - at, 30 * MIB)
    names = {}
    for name, size in events:
        number = names.setdefault(name, len(names))
        if size is None:
            allocator.release(number)
        else:
            allocator.allocate(number, size)
    return allocator.peak_reserved_bytes


def matched(first, second, batches):
    return by_batch(first, second, batches, AllocatorSettings())


@pytest.mark.parametrize("batch", [1, 7, 24, 64, 200])
def test_another_batch_reserves_what_it_reserves_when_it_is_run(batch):
    found = matched(lives(steps(8)), lives(steps(16)), (8, 16))
    assert found is not None
    assert found(8) == reserved(steps(8))
    assert found(batch) == pytest.approx(reserved(steps(batch)), rel=0.01)


def test_older_blocks_are_matched_by_size_for_each_run_has_other_addresses():
    first, second = lives(steps(8)), lives(steps(16))
    first.lives[:2] = [Life(0, 30 * MIB, -1, first.num_events), Life(1, MIB, -1, first.num_events)]
    second.lives[:2] = [Life(0, MIB, -1, first.num_events), Life(1, 30 * MIB, -1, first.num_events)]
    in_order = lives(steps(16))
    in_order.lives[:2] = first.lives[:2]
    assert matched(first, second, (8, 16))(64) == matched(first, in_order, (8, 16))(64)


def with_workspaces(events):
    """The same with kernels that take a workspace before every third layer's output."""
    found = []
    for name, size in events:
        if size is not None and name[1:] in (("a", 0), ("a", 3), ("a", 6), ("a", 9)):
            found += [((*name, "w"), 2_500_000), ((*name, "w"), None)]
        found.append((name, size))
    return found


@pytest.mark.parametrize(
    "other",
    [steps(16, num=3), steps(16, swapped=True), with_workspaces(steps(16))],
    ids=["a step more", "another order", "workspaces"],
)
def test_runs_that_differ_in_more_than_sizes_are_matched_as_far_as_they_go(other):
    found = matched(lives(steps(8)), lives(other), (8, 16))
    assert found is not None
    assert found(64) == pytest.approx(reserved(steps(64)), rel=0.02)


def test_sequence_recognises_sizes_that_grow_with_the_square_of_the_argument():
    first, second = lives(steps(8)), lives(steps(32))  # as a side of 8 and of 16
    found = matched(first, second, (8, 16))
    assert found is not None
    assert found(24) == pytest.approx(reserved(steps(72)), rel=0.01)


def test_sequence_interpolates_constant_parts_and_lets_a_workspace_grow_like_the_rest():
    def run(batch):
        blocks = [
            Life(0, (512 + 10 * batch) * MIB, 0, 6),
            Life(1, 10 * batch * MIB, 1, 6),
            Life(2, 3 * MIB, 2, 6),
        ]
        return Lives(0, [*blocks, Life(3, (40 + batch) * MIB, 3, 4)], 6, [])

    found = matched(run(8), run(16), (8, 16))
    for batch in (8, 16, 64):
        workspace = 56 * batch // 16
        rounded = -(-workspace // 2) * 2
        assert found(batch) == pytest.approx((512 + 20 * batch + 20 + rounded) * MIB, abs=2 * MIB)


def test_a_history_that_is_too_long_or_empty_is_not_replayed():
    assert matched(lives(steps(8)), Lives(0, [], 0, []), (8, 16)) is None
    long = replace(lives(steps(8)), num_events=1_000_000)
    assert matched(long, long, (8, 16)) is None


def test_a_limit_is_kept_by_giving_back_the_cache_or_said_to_be_too_low():
    found = matched(lives(steps(8)), lives(steps(16)), (8, 16))
    assert found is not None
    needed = found(16)
    assert found(16, needed) == needed
    with pytest.raises(OutOfMemory):
        found(16, 150 * MIB)


def pretended(sizes, *, emptied=()):
    """A history whose blocks follow one another, and the owner of the first."""
    found = [Life(1000 * MIB * at, size, born, died) for at, (size, born, died) in enumerate(sizes)]
    history = Lives(0, found, 4, [], [(event, -1, Range(0, 0)) for event in emptied])
    owners = [("weights", found[0].address, 1), ("kept", 7, 1)]
    device = DeviceOwners(
        device=0, marks=[], owners=owners, num_events=4, reserved_bytes=0, free_bytes=0, total_bytes=80 << 30
    )
    return placed(device, history, AllocatorSettings(), limit_bytes=None)


def test_blocks_of_a_pretended_gpu_are_put_where_the_allocator_would_put_them():
    device, found = pretended([(2 * MIB, 0, 4), (3 * MIB, 1, 2), (4 * MIB, 3, 4)])
    weight, _, last = found.lives
    assert weight.address + 2 * MIB == last.address
    assert device.owners == [("weights", weight.address, 1), ("kept", 7, 1)]
    reserved, room = found.room(4)
    assert reserved == sum(one.size for one in found.segments) == 20 * MIB
    assert room["fragmentation"] == 14 * MIB


def test_a_cache_that_the_program_empties_is_reserved_no_longer():
    sizes = [(2 * MIB, 0, 4), (30 * MIB, 1, 2), (4 * MIB, 3, 4)]
    assert pretended(sizes)[1].room(4)[0] == 50 * MIB
    assert pretended(sizes, emptied=[3])[1].room(4)[0] == 20 * MIB
