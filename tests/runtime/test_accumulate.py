"""Accumulated gradients are those of the large batch, also in a last window that is cut short."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynotune.runtime import InputError, Prefetcher
from dynotune.runtime.train import accumulate


def model_of(*layers, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Tanh(), nn.Linear(4, 1)).double()


def rows(num):
    generator = torch.Generator().manual_seed(num)
    x = torch.rand(num, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True)


def mean_loss(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def large_steps(batches, make=model_of, lr=0.5):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()
    return model


def joined(batches):
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def assert_same(a, b):
    for left, right in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=9), num_steps=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_weighted_micro_batches_step_as_the_large_batch(sizes, num_steps):
    batches = [rows(size) for size in sizes]
    windows = [batches[first : first + num_steps] for first in range(0, len(batches), num_steps)]
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    steps = list(
        accumulate(model, optimizer, batches, num_steps, loss=mean_loss, weight=lambda batch: len(batch[0]))
    )
    assert [(step.num_micro_batches, step.weight) for step in steps] == [
        (len(window), sum(len(batch[0]) for batch in window)) for window in windows
    ]
    assert_same(model, large_steps(map(joined, windows)))


def test_without_weights_equal_micro_batches_and_a_short_last_window_step_as_the_large_batch():
    batches = [rows(4) for _ in range(10)]
    model = model_of(nn.LayerNorm(4))
    steps = list(accumulate(model, torch.optim.SGD(model.parameters(), 0.5), batches, 4, loss=mean_loss))
    assert [step.num_micro_batches for step in steps] == [4, 4, 2]
    windows = [joined(batches[:4]), joined(batches[4:8]), joined(batches[8:])]
    assert_same(model, large_steps(windows, lambda: model_of(nn.LayerNorm(4))))


def test_batch_norm_is_where_it_is_not_the_large_batch():
    batches = [rows(4), rows(5)]
    model = model_of(nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    list(accumulate(model, optimizer, batches, 2, loss=mean_loss, weight=lambda batch: len(batch[0])))
    with pytest.raises(AssertionError):
        assert_same(model, large_steps([joined(batches)], lambda: model_of(nn.BatchNorm1d(4))))


def test_the_loss_that_is_told_is_that_of_the_large_batch():
    batches = [rows(2), rows(6)]
    model = model_of()
    expected = mean_loss(model, joined(batches)).item()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    (step,) = accumulate(model, optimizer, batches, 2, loss=mean_loss, weight=lambda batch: len(batch[0]))
    assert step.loss.item() == pytest.approx(expected)
    assert step.loss.dtype == torch.float32 and not step.loss.requires_grad and step.loss.shape == ()


def test_gradients_left_from_before_do_not_count():
    batch = rows(4)
    model = model_of()
    mean_loss(model, batch).backward()
    list(accumulate(model, torch.optim.SGD(model.parameters(), 0.5), [batch], 1, loss=mean_loss))
    assert_same(model, large_steps([batch]))


def test_the_scaler_steps_and_updates_once_a_window():
    batches = [rows(4) for _ in range(5)]
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    calls = []

    class Scaler(torch.amp.GradScaler):
        def step(self, *arguments, **options):
            calls.append("step")
            return super().step(*arguments, **options)

        def update(self, *arguments):
            calls.append("update")
            super().update(*arguments)

    scaler = Scaler("cpu", init_scale=1024.0)
    list(accumulate(model, optimizer, batches, 2, loss=mean_loss, scaler=scaler))
    assert calls == ["step", "update"] * 3
    assert_same(model, large_steps([joined(batches[:2]), joined(batches[2:4]), batches[4]]))


@pytest.mark.parametrize("scaled", [False, True])
def test_before_step_sees_whole_unscaled_gradients(scaled):
    batches = [rows(4), rows(4)]
    model, whole, seen = model_of(), model_of(), []
    mean_loss(whole, joined(batches)).backward()
    list(
        accumulate(
            model,
            torch.optim.SGD(model.parameters(), 0.5),
            batches,
            2,
            loss=mean_loss,
            scaler=torch.amp.GradScaler("cpu", init_scale=64.0) if scaled else None,
            before_step=lambda: seen.extend(parameter.grad.clone() for parameter in model.parameters()),
        )
    )
    for grad, parameter in zip(seen, whole.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad)


def test_a_step_that_overflows_is_skipped_and_the_next_one_is_not():
    batches = [rows(4)] * 2
    model = model_of()
    before = [parameter.clone() for parameter in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    factors = iter([float("inf"), 1.0])
    steps = accumulate(
        model,
        torch.optim.SGD(model.parameters(), 0.5),
        batches,
        1,
        loss=lambda model, batch: mean_loss(model, batch) * next(factors),
        scaler=scaler,
    )
    next(steps)
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert scaler.get_scale() == 1.0
    list(steps)
    assert_same(model, large_steps([batches[0]]))


@pytest.fixture
def one_rank():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without torch.distributed")
def test_ddp_reduces_once_a_window_also_after_an_error(one_rank):
    model = model_of()
    distributed = nn.parallel.DistributedDataParallel(model)
    reduced = []

    def hook(state, bucket):
        reduced.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    distributed.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(distributed.parameters(), 0.5)
    batches = [rows(4) for _ in range(5)]

    def broken(model, batch):
        mean_loss(model, batch)
        raise OSError("no loss")

    with pytest.raises(OSError, match="no loss"):
        next(accumulate(distributed, optimizer, batches, 2, loss=broken))
    assert distributed.require_backward_grad_sync
    assert reduced == []
    list(accumulate(distributed, optimizer, batches, 2, loss=mean_loss))
    assert reduced == [0, 0, 0]
    assert_same(model, large_steps([joined(batches[:2]), joined(batches[2:4]), batches[4]]))


def test_fully_sharded_modules_are_told_when_to_reduce():
    model, told = model_of(), []
    model.set_requires_gradient_sync = told.append
    optimizer = torch.optim.SGD(model.parameters(), 0.5)

    def loss(model, batch):
        told.append("forward")
        return mean_loss(model, batch)

    list(accumulate(model, optimizer, [rows(2)] * 3, 2, loss=loss))
    assert told == [False, "forward", True, "forward", "forward"]


def test_accumulate_takes_a_prefetcher():
    batches = [rows(4) for _ in range(5)]
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    list(accumulate(model, optimizer, Prefetcher(batches, "cpu"), 2, loss=mean_loss))
    assert_same(model, large_steps([joined(batches[:2]), joined(batches[2:4]), batches[4]]))


def test_micro_batches_are_drawn_one_by_one_a_window_ahead():
    told = []

    def loader():
        for index in range(5):
            told.append(f"draw {index}")
            yield index, rows(4)

    def loss(model, batch):
        told.append(f"loss {batch[0]}")
        return mean_loss(model, batch[1])

    model = model_of()
    steps = accumulate(model, torch.optim.SGD(model.parameters(), 0.5), loader(), 2, loss=loss)
    next(steps)
    assert told == ["draw 0", "draw 1", "loss 0", "draw 2", "loss 1", "draw 3"]
    next(steps)
    assert told[6:] == ["loss 2", "draw 4", "loss 3"]


def test_an_error_of_the_loader_comes_after_the_windows_before_it_and_no_part_of_its_own():
    def loader():
        yield from [rows(4)] * 5
        raise OSError("disk gone")

    model, steps = model_of(), []
    with pytest.raises(OSError, match="disk gone"):
        steps.extend(accumulate(model, torch.optim.SGD(model.parameters(), 0.5), loader(), 2, loss=mean_loss))
    assert [step.num_micro_batches for step in steps] == [2, 2]
    assert_same(model, large_steps([rows(4)] * 2))


def test_no_micro_batches_make_no_steps():
    model = model_of()
    assert list(accumulate(model, torch.optim.SGD(model.parameters(), 0.5), [], 2, loss=mean_loss)) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_steps": 0}, "num_steps is 0"),
        ({"loss": lambda model, batch: model(batch[0])}, r"shape \(4, 1\)"),
        ({"loss": lambda model, batch: 1.0}, "float"),
        ({"loss": lambda model, batch: mean_loss(model, batch).detach()}, "without a gradient"),
        ({"weight": lambda batch: 0}, "weighs 0"),
        ({"weight": lambda batch: float("nan")}, "weighs nan"),
    ],
)
def test_accumulate_refuses_bad_options_before_the_optimizer_steps(options, says):
    model = model_of()
    before = [parameter.clone() for parameter in model.parameters()]
    arguments = {"num_steps": 2, "loss": mean_loss, **options}
    with pytest.raises(InputError, match=says):
        list(accumulate(model, torch.optim.SGD(model.parameters(), 0.5), [rows(4)] * 2, **arguments))
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
