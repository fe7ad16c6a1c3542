"""Prefetching where the computing stream lags, and where uploads do."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dynotune.runtime import CaptureError, Prefetcher
from dynotune.runtime.streams import CudaStreams
from dynotune.runtime.transfer.pinned import PinnedRing

from .delays import CYCLES, fresh_allocator, lag, num_allocations

pytestmark = pytest.mark.gpu

SIZE = 1 << 18


@pytest.fixture
def seen():
    """Where steps put what they read."""
    fresh_allocator()
    return torch.zeros(12, SIZE, device="cuda")


def batches(num, pinned=False):
    """Batch i is full of i + 1."""
    made = [torch.full((SIZE,), index + 1.0) for index in range(num)]
    return [{"x": batch.pin_memory() if pinned else batch} for batch in made]


def warm(prefetcher, seen):
    """Takes memory and loads kernels with batches of zeros: both can make the host wait for the device."""
    loader, prefetcher.loader = prefetcher.loader, [{"x": torch.zeros(SIZE)} for _ in range(8)]
    for _ in range(2):
        for batch in prefetcher:
            seen[0].copy_(batch["x"])
            torch.cuda._sleep(1_000_000)
    torch.cuda.synchronize()
    prefetcher.loader = loader
    return prefetcher


def values_of(seen, num):
    torch.cuda.synchronize()
    lowest, highest = seen[:num].amin(1).tolist(), seen[:num].amax(1).tolist()
    return lowest if lowest == highest else (lowest, highest)


def check_values(seen, lagging, pinned=False):
    """Each step reads its batch late, and lets go of it at once."""
    prefetcher = warm(Prefetcher(batches(10, pinned), "cuda", 2), seen)
    if lagging == "uploads":
        lag(prefetcher._side)
    for index, batch in enumerate(prefetcher):
        if lagging == "steps":
            lag(cycles=CYCLES // 4)
        seen[index].copy_(batch["x"])
        batch.clear()
    assert values_of(seen, 10) == list(range(1, 11))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("lagging", ["steps", "uploads", "nothing"])
def test_steps_read_the_right_batch(seen, lagging, pinned):
    check_values(seen, lagging, pinned)


@pytest.mark.parametrize(
    ("kind", "rule", "lagging"),
    [(CudaStreams, "keep", "steps"), (CudaStreams, "wait", "uploads"), (PinnedRing, "_wait_for", "uploads")],
    ids=["record_stream", "wait", "slots"],
)
def test_the_check_fails_without_the_rule(seen, monkeypatch, kind, rule, lagging):
    monkeypatch.setattr(kind, rule, lambda *arguments: None)
    if lagging == "uploads":
        # Else the host waits for the uploads, by waiting for steps that wait for them.
        monkeypatch.setattr(Prefetcher, "_throttle", lambda prefetcher, run: None)
    with pytest.raises(AssertionError):
        check_values(seen, lagging)
    torch.cuda.synchronize()


def test_uploads_go_on_while_a_step_computes(seen):
    prefetcher = warm(Prefetcher(batches(6), "cuda", 2), seen)
    iterator = iter(prefetcher)
    next(iterator)
    lag(cycles=5 * CYCLES)
    busy = torch.cuda.current_stream().record_event()
    next(iterator)
    prefetcher._side.synchronize()
    assert not busy.query()
    torch.cuda.synchronize()
    assert len(list(iterator)) == 4


def test_the_device_is_never_more_than_depth_batches_behind(seen):
    ends = []
    prefetcher = warm(Prefetcher(batches(8), "cuda", 2), seen)
    for index, batch in enumerate(prefetcher):
        if index >= 3:
            assert ends[index - 3].query()
        lag(cycles=CYCLES // 10)
        seen[index].copy_(batch["x"])
        ends.append(torch.cuda.current_stream().record_event())


def test_nothing_is_allocated_after_the_first_epochs(seen):
    data = [torch.full((SIZE,), float(index)) for index in range(30)]
    prefetcher = Prefetcher(data, "cuda", 2)

    def epoch(cycles):
        for batch in prefetcher:
            torch.cuda._sleep(cycles)
            batch.sum()
        torch.cuda.synchronize()

    # Slow steps first: then as many batches are under way as ever can be.
    epoch(CYCLES // 50)
    epoch(CYCLES // 50)
    before = num_allocations()
    for cycles in (0, 100_000, CYCLES // 50):
        epoch(cycles)
    assert num_allocations() == before


def test_pageable_and_pinned_batches_are_uploaded_without_a_synchronisation(seen):
    for pinned in (False, True):
        data = batches(2, pinned)  # no more than the host is let ahead of the device
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = list(Prefetcher(data, "cuda", 2))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [int(batch["x"][5]) for batch in got] == [1, 2]


def test_dtype_and_layout_are_converted_on_the_device():
    images = torch.rand(4, 3, 8, 8)
    labels = torch.arange(4)
    prefetcher = Prefetcher([(images, labels)], "cuda", dtype=torch.float16, channels_last=True)
    ((there, numbers),) = prefetcher
    assert there.device == torch.device("cuda", torch.cuda.current_device())
    assert there.dtype == torch.float16 and there.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.cpu(), images.half())
    assert torch.equal(numbers.cpu(), labels)


def test_a_transform_may_use_what_the_caller_made_on_its_stream(seen):
    mean = torch.zeros(SIZE, device="cuda")
    lag()
    mean.fill_(1)
    got = list(Prefetcher(batches(3), "cuda", transform=lambda batch: batch["x"] - mean))
    assert [int(batch[7]) for batch in got] == [0, 1, 2]


def test_tensors_that_are_on_the_device_already_are_read_in_order(seen):
    def made_late():
        for index in range(4):
            made = torch.zeros(SIZE, device="cuda")
            lag(cycles=CYCLES // 10)
            made.fill_(index)
            yield made

    got = [int(batch.float()[3]) for batch in Prefetcher(made_late(), "cuda", dtype=torch.float16)]
    assert got == [0, 1, 2, 3]


def test_objects_that_move_themselves_and_sparse_tensors_are_kept_for_their_reader(seen):
    recorded = []

    class Graph:
        def __init__(self, nodes):
            self.nodes = nodes

        def to(self, device, non_blocking=False):
            return Graph(self.nodes.to(device, non_blocking=non_blocking))

        def record_stream(self, stream):
            recorded.append(stream)
            self.nodes.record_stream(stream)

    sparse = torch.eye(3).to_sparse()
    ((graph, coo, csr),) = Prefetcher([(Graph(torch.ones(3)), sparse, torch.eye(3).to_sparse_csr())], "cuda")
    assert recorded == [torch.cuda.current_stream()]
    assert graph.nodes.sum().item() == coo.to_dense().sum().item() == csr.to_dense().sum().item() == 3


def test_batches_are_handed_to_the_stream_that_is_current(seen):
    side = torch.cuda.Stream()
    prefetcher = warm(Prefetcher(batches(4), "cuda"), seen)
    lag(prefetcher._side)
    with torch.cuda.stream(side):
        for index, batch in enumerate(prefetcher):
            seen[index].copy_(batch["x"])
    side.synchronize()
    assert values_of(seen, 4) == [1, 2, 3, 4]


def test_workers_and_pinning_threads_end_with_an_early_exit():
    loader = DataLoader(TensorDataset(torch.arange(1000.0)), batch_size=10, num_workers=2, pin_memory=True)
    for (batch,) in Prefetcher(loader, "cuda"):
        assert batch.tolist() == [float(value) for value in range(10)]
        break
    assert sum(len(batch[0]) for batch in Prefetcher(loader, "cuda")) == 1000


def test_an_error_leaves_the_device_usable(seen):
    def loader():
        yield from batches(3)
        raise OSError("disk gone")

    got = []
    with pytest.raises(OSError, match="disk gone"):
        got.extend(int(batch["x"][0]) for batch in Prefetcher(loader(), "cuda"))
    assert got == [1, 2, 3]
    check_values(seen, "nothing")


def test_a_batch_inside_a_capture_is_refused_and_the_capture_goes_on():
    prefetcher, static = Prefetcher(batches(3), "cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError):
            next(iter(prefetcher))
        static += 1
    graph.replay()
    torch.cuda.synchronize()
    assert static.tolist() == [1] * 4
    assert [int(batch["x"][0]) for batch in prefetcher] == [1, 2, 3]
