"""Training loops: gradient accumulation that gives the gradients of the large batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch

from dynotune.runtime.errors import InputError

__all__ = ["OptimizerStep", "accumulate"]

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One step of the optimizer.

    `loss` is the mean over the window, weighted as the gradients were: a detached float32 scalar on the loss's
    device, which nobody has waited for. `weight` is the sum over `num_micro_batches`.
    """

    loss: torch.Tensor
    num_micro_batches: int
    weight: float


def accumulate(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Batch],
    num_steps: int,
    *,
    loss: Callable[[Any, Batch], torch.Tensor],
    weight: Callable[[Batch], float] | None = None,
    scaler: Any = None,
    before_step: Callable[[], object] | None = None,
) -> Iterator[OptimizerStep]:
    """Steps the optimizer once for every `num_steps` micro-batches, with the gradients of their mean loss.

    Each loss is divided by what its window really holds, so a shorter last window is applied and weighs as a batch of
    its size does. Gradients are set to none when a window begins. Under DistributedDataParallel, and fully sharded
    modules, they are reduced once a window. A window's micro-batches are drawn before its first forward. Nothing
    synchronises the host, and nothing happens until the result is iterated over.

    The gradients are those of one large batch except where micro-batches see each other's statistics: BatchNorm
    normalises each by its own (GroupNorm, LayerNorm and frozen BatchNorm do not). Losses that compare samples with
    each other (contrastive ones) see fewer of them.

    Args:
        model: that `loss` calls; wrapped, if it is wrapped.
        optimizer: of its parameters.
        micro_batches: a loader, or a Prefetcher around one.
        num_steps: micro-batches to one step of the optimizer.
        loss: `loss(model, micro_batch)`, a scalar with a gradient: the mean over the micro-batch. Autocast belongs
            inside it.
        weight: how many samples, tokens or pixels that mean is over, where micro-batches differ; None counts all
            the same. A number on the host. Across ranks, means are averaged as DDP does.
        scaler: a `torch.amp.GradScaler`; it steps and updates once a window.
        before_step: called when the window's gradients are complete and unscaled: the place to clip them.

    Yields:
        After each step of the optimizer, what it was made of.

    Raises:
        InputError: `num_steps` below 1, a loss that is not a scalar with a gradient, a weight that is not positive.
        Whatever the loader, `loss` or `before_step` raise; the optimizer has then not stepped on half a window.
    """
    if num_steps < 1:
        raise InputError(f"num_steps is {num_steps}; a step of the optimizer takes at least one micro-batch.")
    drawn = iter(micro_batches)
    while window := list(islice(drawn, num_steps)):
        weights = [1.0 if weight is None else _checked_weight(weight(batch)) for batch in window]
        total = math.fsum(weights)
        optimizer.zero_grad(set_to_none=True)
        shares = [each / total for each in weights]
        mean = _backward(model, window, shares, loss, scaler)
        num_micro_batches = len(window)
        window.clear()  # the next window is drawn while nobody holds this one
        if before_step is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            before_step()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        yield OptimizerStep(mean, num_micro_batches, total)


def _backward(
    model: torch.nn.Module,
    window: list[Batch],
    shares: list[float],
    loss: Callable[[Any, Batch], torch.Tensor],
    scaler: Any,
) -> torch.Tensor:
    """The weighted mean loss of the window, its gradients accumulated and reduced over ranks once."""
    mean: torch.Tensor | None = None
    for index, (batch, share) in enumerate(zip(window, shares, strict=True)):
        # The forward too: DDP decides there whether the backward will reduce.
        with nullcontext() if index == len(window) - 1 else _unreduced(model):
            part = _checked_loss(loss(model, batch)) * share
            (part if scaler is None else scaler.scale(part)).backward()
        detached = part.detach().float().reshape(())
        mean = detached if mean is None else mean + detached
    assert mean is not None
    return mean


def _unreduced(model: Any) -> AbstractContextManager[Any]:
    """Backwards in which gradients stay on their rank; nothing where the model is not distributed."""
    if callable(getattr(model, "no_sync", None)):
        return model.no_sync()  # type: ignore[no-any-return]
    if callable(getattr(model, "set_requires_gradient_sync", None)):
        return _unreduced_shards(model)
    return nullcontext()


@contextmanager
def _unreduced_shards(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _checked_weight(weight: float) -> float:
    value = float(weight)
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"A micro-batch weighs {value}; the mean of its loss is over a positive number of samples.",
            hint="Leave empty micro-batches out of the loader.",
        )
    return value


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(f"loss() returned {what}; it is a scalar, the mean over the micro-batch.")
    if not loss.requires_grad:
        raise InputError(
            "loss() returned a tensor without a gradient.",
            hint="Is it detached, computed under no_grad, or are all parameters frozen?",
        )
    return loss
