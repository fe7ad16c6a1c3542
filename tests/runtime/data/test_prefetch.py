"""Prefetching: the same batches in the same order, in the same containers, early, and a clean end."""

import collections
import dataclasses
import gc
import types
import weakref

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from dynotune.runtime import DeviceError, InputError, Prefetcher
from dynotune.runtime.transfer.pinned import PinnedRing

Pair = collections.namedtuple("Pair", "images labels")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    meta: dict
    kind: str = dataclasses.field(init=False, default="train")


@dataclasses.dataclass(slots=True)
class Slotted:
    image: torch.Tensor


class Graph:
    """A batch that moves itself, as graph libraries' do."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.moved_to = None

    def to(self, device, non_blocking=False):
        moved = Graph(self.nodes.clone())
        moved.moved_to = (device, non_blocking)
        return moved


class Plain:
    """A `to` that knows no non_blocking, and tensors that nobody sees."""

    def __init__(self):
        self.read = lambda: torch.ones(1)

    def to(self, device):
        return self


def numbers(num, size=4):
    return [torch.full((size,), float(index)) for index in range(num)]


def test_batches_come_in_order_with_their_values():
    for depth in range(4):
        got = [batch.tolist() for batch in Prefetcher(numbers(5), "cpu", depth)]
        assert got == [[float(index)] * 4 for index in range(5)]


def test_prefetcher_can_be_iterated_again_and_twice_at_once():
    prefetcher = Prefetcher(numbers(3), "cpu")
    assert [[int(batch[0]) for batch in prefetcher] for _ in range(2)] == [[0, 1, 2]] * 2
    assert [(int(a[0]), int(b[0])) for a, b in zip(prefetcher, prefetcher, strict=True)] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]


def test_prefetcher_has_the_loaders_length_or_none():
    assert len(Prefetcher(numbers(3), "cpu")) == 3
    with pytest.raises(TypeError, match="no length"):
        len(Prefetcher(iter(numbers(3)), "cpu"))


def test_an_empty_loader_gives_nothing():
    assert list(Prefetcher([], "cpu")) == []


def test_a_dataloader_with_shuffling_gives_what_it_gives_alone():
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3, shuffle=True)
    torch.manual_seed(3)
    alone = [batch[0].tolist() for batch in loader]
    torch.manual_seed(3)
    assert [batch[0].tolist() for batch in Prefetcher(loader, "cpu")] == alone


@pytest.mark.parametrize("staged", [False, True], ids=["cpu", "staged"])
def test_containers_keep_their_types(staged, request):
    world = request.getfixturevalue("world") if staged else None
    one = torch.ones(2)
    batch = {
        "pair": Pair(one, [one, (one, None)]),
        "ordered": collections.OrderedDict(a=one),
        "default": collections.defaultdict(list, b=[one]),
        "sample": Sample(one, {"id": 7, "where": torch.Size([2])}),
        "slotted": Slotted(one),
        "text": ["a", b"b", 3, 2.5],
        "array": np.ones(2),
        "packed": pack_sequence([torch.ones(3), torch.ones(1)]),
        "graph": Graph(one),
    }
    kept = one.clone()
    (got,) = Prefetcher([batch], "cpu")
    if world is not None:
        world.run_all()
    assert (
        torch.equal(got["pair"].images, kept)
        and type(got["pair"]) is Pair
        and got["pair"].labels[1][1] is None
    )
    assert type(got["ordered"]) is collections.OrderedDict and torch.equal(got["ordered"]["a"], kept)
    assert type(got["default"]) is collections.defaultdict and got["default"].default_factory is list
    assert torch.equal(got["default"]["b"][0], kept)
    assert (
        type(got["sample"]) is Sample
        and torch.equal(got["sample"].image, kept)
        and got["sample"].kind == "train"
    )
    assert got["sample"].meta == {"id": 7, "where": torch.Size([2])}
    assert torch.equal(got["slotted"].image, kept)
    assert got["text"] == ["a", b"b", 3, 2.5] and got["array"] is batch["array"]
    assert got["packed"].batch_sizes.tolist() == [2, 1, 1]
    assert got["graph"].moved_to == (torch.device("cpu"), True)
    assert batch["sample"].image is one and batch["graph"].moved_to is None


def test_a_to_without_non_blocking_is_called_without():
    (got,) = Prefetcher([Plain()], "cpu")
    assert got.read().item() == 1


def test_an_object_that_shows_no_tensors_is_moved_on_the_callers_stream_and_that_is_said(world, caplog):
    moved_on = []
    batch = Plain()
    batch.to = lambda device: moved_on.append(world.current()) or batch
    list(Prefetcher([batch, batch], "cpu"))
    assert moved_on == [world.main, world.main]
    assert caplog.text.count("Plain shows no tensors") == 1


def test_a_mapping_that_cannot_be_rebuilt_is_refused():
    with pytest.raises(InputError, match="mappingproxy"):
        list(Prefetcher([types.MappingProxyType({"a": torch.ones(1)})], "cpu"))


def test_floats_are_converted_and_integers_stay():
    batch = {
        "x": torch.ones(2),
        "half": torch.ones(2).half(),
        "label": torch.tensor([1]),
        "raw": torch.ones(2).byte(),
    }
    (got,) = Prefetcher([batch], "cpu", dtype=torch.bfloat16)
    assert {name: value.dtype for name, value in got.items()} == {
        "x": torch.bfloat16,
        "half": torch.bfloat16,
        "label": torch.int64,
        "raw": torch.uint8,
    }


def test_images_become_channels_last_and_nothing_else_does():
    batch = (
        torch.rand(2, 3, 4, 5),
        torch.ones(2, 3, 4, 5).byte(),
        torch.ones(2, 3, 4, 5).long(),
        torch.rand(2, 3, 4),
    )
    got = next(iter(Prefetcher([batch], "cpu", channels_last=True)))
    channels_last = [
        leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last) for leaf in got
    ]
    assert channels_last == [True, True, False, False]
    assert all(torch.equal(new, old) for new, old in zip(got, batch, strict=True))


def test_the_transforms_result_is_handed_out():
    got = list(Prefetcher(numbers(3), "cpu", transform=lambda batch: {"double": batch * 2}))
    assert [int(batch["double"][0]) for batch in got] == [0, 2, 4]


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("where", ["loader", "transform"])
def test_an_error_is_raised_in_its_place_and_the_next_iteration_works(depth, where):
    fails = [True]

    class Loader:
        def __iter__(self):
            for index in range(5):
                if where == "loader" and index == 3 and fails:
                    raise OSError("disk gone")
                yield torch.tensor(index)

    def transform(batch):
        if where == "transform" and batch == 3 and fails:
            raise OSError("disk gone")
        return int(batch)

    prefetcher, got = Prefetcher(Loader(), "cpu", depth, transform=transform), []
    with pytest.raises(OSError, match="disk gone"):
        got.extend(iter(prefetcher))
    assert got == [0, 1, 2]
    fails.clear()
    assert list(prefetcher) == [0, 1, 2, 3, 4]


def test_an_interrupt_is_not_put_off():
    def loader():
        yield torch.ones(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(iter(Prefetcher(loader(), "cpu", depth=2)))


def test_leaving_the_loop_early_lets_go_of_loader_and_batches():
    ended = []

    def loader():
        try:
            for index in range(100):
                yield torch.full((4,), index)
        finally:
            ended.append(True)

    for batch in Prefetcher(loader(), "cpu", depth=3):
        last = weakref.ref(batch)
        break
    del batch
    gc.collect()
    assert ended == [True]
    assert last() is None


def test_a_batch_is_not_held_once_the_caller_lets_go(world):
    batches = iter(Prefetcher([{"x": torch.ones(3)} for _ in range(4)], "cuda"))
    batch = next(batches)
    last = weakref.ref(batch["x"])
    world._on_device.clear()
    world.kept.clear()
    world.run_all()
    del batch
    assert last() is None


def test_leaving_early_waits_for_uploads_that_read_memory_that_is_about_to_go(world):
    for _ in Prefetcher(numbers(9), "cuda", depth=3):
        side = world.all[-1]
        break
    gc.collect()
    assert not side.work


def test_prefetcher_refuses_arguments_that_make_no_sense():
    with pytest.raises(InputError, match="depth is -1"):
        Prefetcher([], "cpu", -1)
    with pytest.raises(InputError, match="floating-point"):
        Prefetcher([], "cpu", dtype=torch.int32)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            Prefetcher([], "cuda")


def test_use_in_a_forked_child_is_refused(in_forked_child):
    prefetcher = Prefetcher(numbers(3), "cpu")
    assert in_forked_child(lambda: next(iter(prefetcher))) == "ForkedError"


def check_batches(world, num=8, depth=2, lag=0):
    """The device lags behind; each batch that the computing stream reads is the right one."""
    seen = []

    def loader():
        # One buffer, written anew for each batch, as some loaders do.
        buffer = torch.empty(6)
        for index in range(num):
            yield {"x": buffer.fill_(index), "y": torch.full((2, 3), index).t()}

    for index, batch in enumerate(Prefetcher(loader(), "cuda", depth)):
        world.enqueue(
            world.main,
            lambda index=index, batch=batch: seen.append((index, batch["x"].tolist(), batch["y"].tolist())),
        )
        for _ in range(lag):
            world.step(world.main)
    world.run_all()
    assert seen == [(index, [float(index)] * 6, [[index] * 2] * 3) for index in range(num)]


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("lag", [0, 1, 5])
def test_the_computing_stream_reads_the_right_batch_however_late_uploads_are(world, depth, lag):
    check_batches(world, depth=depth, lag=lag)


def test_prefetcher_check_fails_when_pinned_buffers_are_reused_early(world, monkeypatch):
    monkeypatch.setattr(PinnedRing, "_wait_for", lambda ring, slot: None)
    monkeypatch.setattr(Prefetcher, "_throttle", lambda prefetcher, used: None)
    with pytest.raises(AssertionError):
        check_batches(world)


def test_prefetcher_check_fails_when_the_computing_stream_does_not_wait(world, monkeypatch):
    wait = world.wait
    monkeypatch.setattr(
        world, "wait", lambda stream, event: None if stream is world.main else wait(stream, event)
    )
    monkeypatch.setattr(Prefetcher, "_throttle", lambda prefetcher, used: None)
    with pytest.raises(AssertionError):
        check_batches(world)


def test_the_allocator_is_told_who_reads_each_tensor(world):
    batch = {"x": torch.ones(3), "graph": Graph(torch.ones(2))}
    (got,) = Prefetcher([batch], "cuda")
    assert {id(kept) for kept, stream in world.kept if stream is world.main} >= {id(got["x"])}


def test_strides_of_images_survive_staging(world):
    (got,) = Prefetcher([torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)], "cuda")
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_pinned_memory_is_taken_once_for_batches_that_vary_a_little(world):
    sizes = [100, 90, 127, 60, 100, 128, 3, 111]
    prefetcher = Prefetcher([torch.ones(size) for size in sizes], "cuda")
    for _ in range(3):
        list(prefetcher)
    assert world.num_pinned == 3
    assert prefetcher.stats().pinned_bytes == 3 * 512


def test_the_host_is_held_at_depth_batches_ahead_of_the_device(world):
    done = []
    for index, _ in enumerate(Prefetcher(numbers(10), "cuda", depth=2)):
        world.enqueue(world.main, lambda index=index: done.append(index))
        assert len(done) >= index - 2
    assert len(done) < 10


def test_prefetcher_counts_its_batches():
    prefetcher = Prefetcher([torch.ones(4)] * 3, "cpu")
    list(prefetcher)
    assert (prefetcher.stats().num_batches, prefetcher.stats().uploaded_bytes) == (3, 0)


def test_prefetcher_counts_staged_bytes(world):
    prefetcher = Prefetcher([torch.ones(64)] * 3, "cuda")
    list(prefetcher)
    stats = prefetcher.stats()
    assert (stats.num_batches, stats.uploaded_bytes, stats.staged_bytes) == (3, 768, 768)
