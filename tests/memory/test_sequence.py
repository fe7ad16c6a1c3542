"""Other batches by their allocations, against a program that runs on the model of the allocator itself."""

import pytest

from dynotune.memory.allocator import CachingAllocator
from dynotune.memory.sequence import Sequence
from dynotune.trace.snapshot import Life, Lives

MIB = 1 << 20
LAYERS = 12


def steps(batch, *, num=2, swapped=False):
    """Two steps of a training, as allocations of the program: (name, bytes) and (name, None) for releases."""
    events = []
    for step in range(num):
        for layer in range(LAYERS):
            events += [((step, "a", layer), batch * 700_000 + 3000 * layer), ((step, "t", layer), batch * 90_000)]
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


@pytest.mark.parametrize("batch", [1, 7, 24, 64, 200])
def test_another_batch_reserves_what_it_reserves_when_it_is_run(batch):
    found = Sequence.of(lives(steps(8)), lives(steps(16)), (8, 16))
    assert found is not None
    assert found.reserved_bytes(8) == reserved(steps(8))
    assert found.reserved_bytes(batch) == pytest.approx(reserved(steps(batch)), rel=0.01)


def test_older_blocks_are_matched_by_size_for_each_run_has_other_addresses():
    first, second = lives(steps(8)), lives(steps(16))
    first.lives[:2] = [Life(0, 30 * MIB, -1, first.num_events), Life(1, MIB, -1, first.num_events)]
    second.lives[:2] = [Life(0, MIB, -1, first.num_events), Life(1, 30 * MIB, -1, first.num_events)]
    found = Sequence.of(first, second, (8, 16))
    assert all(one == other for born, _, one, other in found.blocks if born < 0)


@pytest.mark.parametrize("other", [steps(16, num=3), steps(16, swapped=True)])
def test_runs_that_allocate_in_another_order_are_not_matched(other):
    assert Sequence.of(lives(steps(8)), lives(other), (8, 16)) is None
