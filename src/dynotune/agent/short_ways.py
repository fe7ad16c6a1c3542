"""The usual events by the shortest way, for they are paid in every step: noted now, worked off later, many at a time.

Code that comes between steps of other code finds the caches cold and costs ten times what it costs in a loop of its
own. So each of these looks at little, appends to one list, and leaves what is unusual to the general way.
"""

from __future__ import annotations

from time import perf_counter

from . import samples

TYPE_CHECKING = False
if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable
    from typing import Any

    from .names import Key
    from .steps import Steps


def stepped(steps: Steps, anchor: weakref.ref[Any], general: Callable[[Any], None]) -> Callable[[Any], None]:
    """Steps end with what one optimizer, `anchor`, has done."""
    pending, due, work_off = steps.pending, steps.due, steps.work_off

    def stepped(optimizer: Any) -> None:
        if anchor() is not optimizer:
            general(optimizer)
            return
        steps.inside_optimizer = 0
        now = perf_counter()
        pending.append(now)
        if now >= due[1] or len(pending) >= due[0]:
            work_off()

    return stepped


def called(
    steps: Steps, anchor: weakref.ref[Any], with_grad: bool, counts: bool, general: Callable[[Any, Any, Any], None]
) -> Callable[[Any, Any, Any], None]:
    """Steps end with the call of one module, `anchor`, `with_grad` or without; its inputs are counted if asked."""
    pending, due, work_off = steps.pending, steps.due, steps.work_off
    grad_enabled, cycle = steps.grad_enabled, steps.cycle

    def called(module: Any, args: Any, kwargs: Any) -> None:
        usual = anchor() is module and steps.cycle is cycle and not steps.inside_optimizer
        if not usual or grad_enabled() is not with_grad:
            general(module, args, kwargs)
            return
        now = perf_counter()
        if counts:
            try:
                size = args[0].size(0)
            except Exception:  # no tensor
                size = samples.in_call(args, kwargs)
            # At once: calls may come from several threads.
            pending.extend(((0.0, size), now))
        else:
            pending.append(now)
        if now >= due[1] or len(pending) >= due[0]:
            work_off()

    return called


def drawn(
    steps: Steps, key: Key, batch: Any, begun: set[Key], general: Callable[[Any, Any, float, float, Any], None]
) -> Callable[[Any, Any, float, float, Any], None]:
    """One loader gives batches like `batch`: lists or tuples of so many fields, the first a tensor of all samples."""
    pending, cycle, kind, num_fields = steps.pending, steps.cycle, type(batch), len(batch)

    def drawn(of: Key, batch_size: int | None, begin_s: float, end_s: float, batch: Any) -> None:
        # Where a loader has begun anew, an epoch begins.
        usual = of is key and not begun and steps.cycle is cycle and type(batch) is kind
        if usual and len(batch) == num_fields:
            try:
                size = batch[0].size(0)
            except Exception:  # no tensor for once
                size = -1
            if 0 < size <= (batch_size or size):
                steps.inside_optimizer = 0
                pending.append((end_s - begin_s, size))
                return
        general(of, batch_size, begin_s, end_s, batch)

    return drawn
