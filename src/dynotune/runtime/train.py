"""Run training loops: gradient accumulation that gives the gradients of the large batch."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from dynotune.runtime.errors import InputError

__all__ = ["OptimizerStep", "accumulate"]

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Result of one optimizer step.

    `loss` is the mean over the window's micro-batches, weighted as the gradients were: a detached float32
    scalar on the loss's device, computed without waiting. `weight` is the total weight of the
    `num_micro_batches`.
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
    """Step the optimizer once for every `num_steps` micro-batches (a window), with the gradients of their
    mean loss.

    Each loss is divided by the actual size of its window, so a shorter last window is applied with the weight
    of a batch of its size. Gradients are set to None when a window begins. DistributedDataParallel and fully
    sharded modules reduce the gradients once per window. Micro-batches are drawn `num_steps` ahead, one after
    each backward pass, because the first of a window needs the window's size. The host never synchronises,
    and no work starts until you iterate over the result.

    The gradients equal those of one large batch, except if micro-batches depend on their own statistics:
    BatchNorm normalises each micro-batch separately (GroupNorm, LayerNorm and frozen BatchNorm do not).
    Losses that compare samples with each other (contrastive losses) compare fewer samples.

    Args:
        model: the model that `loss` calls, in its distributed wrapper if it has one.
        optimizer: the optimizer of the model's parameters.
        micro_batches: a loader, or a Prefetcher around a loader.
        num_steps: number of micro-batches per optimizer step.
        loss: `loss(model, micro_batch)` returns a scalar with a gradient, the mean over the micro-batch. Use
            autocast inside it.
        weight: function that returns the number of samples, tokens or pixels in a micro-batch's mean, as a
            number on the host; None weighs all micro-batches equally. Across ranks, means are averaged as DDP
            does.
        scaler: a `torch.amp.GradScaler`; it steps and updates once per window.
        before_step: function that is called when the window's gradients are complete and unscaled; clip them
            here.

    Yields:
        An `OptimizerStep` after each step of the optimizer.

    Raises:
        InputError: if `num_steps` is below 1, a loss is not a scalar with a gradient, or a weight is not
        positive. Exceptions of the loader, `loss` or `before_step`; the optimizer has then not stepped on an
        incomplete window.
    """
    if num_steps < 1:
        raise InputError(f"num_steps is {num_steps}; a step of the optimizer takes at least one micro-batch.")
    upcoming = _Upcoming(micro_batches)
    for _ in range(num_steps):
        upcoming.draw()
    while window := upcoming.window():
        weights = [1.0 if weight is None else _checked_weight(weight(batch)) for batch in window]
        total = math.fsum(weights)
        optimizer.zero_grad(set_to_none=True)
        shares = [each / total for each in weights]
        mean = _backward(model, window, shares, loss, scaler, upcoming)
        if before_step is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            before_step()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        yield OptimizerStep(mean, len(weights), total)


class _Upcoming(Generic[Batch]):
    """Micro-batches of the next window, drawn while the device computes the current window."""

    def __init__(self, micro_batches: Iterable[Batch]) -> None:
        self._source = iter(micro_batches)
        self._drawn: deque[Batch] = deque()
        self._error: Exception | None = None
        self._has_ended = False

    def draw(self) -> None:
        """Draw one more micro-batch. The loader's error is kept until its window is requested."""
        if self._has_ended:
            return
        try:
            self._drawn.append(next(self._source))
        except StopIteration:
            self._has_ended = True
        except Exception as error:
            self._has_ended, self._error = True, error

    def window(self) -> deque[Batch]:
        """Return all drawn micro-batches; empty at the end."""
        if self._error is not None:
            raise self._error
        window, self._drawn = self._drawn, deque()
        return window


def _backward(
    model: torch.nn.Module,
    window: deque[Batch],
    shares: list[float],
    loss: Callable[[Any, Batch], torch.Tensor],
    scaler: Any,
    upcoming: _Upcoming[Batch],
) -> torch.Tensor:
    """Run backward on the window's weighted mean loss; gradients are accumulated, and reduced over ranks
    once."""
    mean: torch.Tensor | None = None
    for share in shares:
        batch = window.popleft()
        # The forward pass must be inside too: there DDP decides whether the backward pass will reduce
        # gradients.
        with _unreduced(model) if window else nullcontext():
            part = _checked_loss(loss(model, batch)) * share
            (part if scaler is None else scaler.scale(part)).backward()
        del batch
        upcoming.draw()
        detached = part.detach().float().reshape(())
        mean = detached if mean is None else mean + detached
    assert mean is not None
    return mean


def _unreduced(model: Any) -> AbstractContextManager[Any]:
    """Keep the gradients of backward passes on their rank; does nothing if the model is not distributed."""
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
        what = (
            f"a tensor of shape {tuple(loss.shape)}"
            if isinstance(loss, torch.Tensor)
            else type(loss).__name__
        )
        raise InputError(f"loss() returned {what}; it is a scalar, the mean over the micro-batch.")
    if not loss.requires_grad:
        raise InputError(
            "loss() returned a tensor without a gradient.",
            hint="Is it detached, computed under no_grad, or are all parameters frozen?",
        )
    return loss
