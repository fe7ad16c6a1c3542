"""What is known of the program's data loaders, and what they cost: arithmetic that rules share."""

from __future__ import annotations

import math

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.machine import known_number
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Loader, Loading
from dynotune.schema.setting import Setting


def main_loader(seen: Seen) -> Loader | None:
    """The first of those that the steps draw from; None where the program draws from none of torch's."""
    return seen.loaders[0] if seen.loaders else None


def loading_of(loader: Loader) -> Loading:
    """
    Raises:
        Missing: making its batches was not timed.
    """
    if isinstance(loader.loading, Unknown):
        raise Missing("what making batches takes", loader.loading.reason)
    return loader.loading


def steady_wait(seen: Seen, loader: Loader | None) -> float:
    """Share of a step that waits for the loader, the starts of epochs by new workers aside."""
    wait = seen.attribution.shares.input
    if loader is None or not loader.num_workers or loader.persistent_workers or wait < policy.LEAST_SHARE:
        return wait
    try:
        return max(0.0, wait - epoch_starts(seen))
    except Missing:
        return wait


def starts_workers_each_epoch(seen: Seen, loader: Loader) -> bool:
    """Whether each epoch begins with new workers. A loader of somebody's own may keep an iterator that never ends."""
    if not loader.num_workers or loader.persistent_workers:
        return False
    drawn_per_s, timing = _batches_per_s(seen, loader), seen.timing
    if not loader.num_batches or drawn_per_s is None:
        return True
    # Between so many begins, and before and behind them, lie no more batches than these.
    return drawn_per_s * timing.window_s / num_ranks(seen) <= loader.num_batches * (timing.num_epochs + 1)


def _batches_per_s(seen: Seen, loader: Loader) -> float | None:
    """Of all ranks; None where it is not known."""
    samples_per_s = seen.timing.samples_per_s
    return samples_per_s / loader.batch_size if samples_per_s is not None and loader.batch_size else None


def epoch_starts(seen: Seen, needed_s: float = 0.0) -> float:
    """Share of the window that steps at the begin of an epoch take beyond others and what they need at least.

    At most what a device waits: it goes on with what is queued.
    """
    timing = seen.timing
    if not timing.num_epochs or timing.epoch_begin_s is None:
        return 0.0
    usual_s = timing.median_step_s if timing.typical_step_s is None else timing.typical_step_s
    extra_s = timing.epoch_begin_s - usual_s - needed_s
    return unless_waited(seen, min(1.0, max(0.0, timing.num_epochs * extra_s / timing.window_s)))


def first_batch_s(loader: Loader) -> float:
    """What an epoch's first batch takes, whoever makes it: nothing is made ahead of it."""
    return 0.0 if isinstance(loader.loading, Unknown) else loader.loading.fetch_s


def are_behind(loader: Loader) -> bool:
    """Whether more workers may make more batches; so too where what they do was not timed."""
    return isinstance(loader.loading, Unknown) or (loader.loading.busy_share or 0.0) >= policy.WORKERS_BEHIND


def more_workers(seen: Seen, loader: Loader) -> list[Setting]:
    """So many workers that batches come as fast as they are used, and twice that, within the cores of a rank.

    None for a data set that gives each worker all of its data.
    """
    if gives_all_to_each(loader):
        return []
    cores = max(1, int(seen.number("host.num_cores")) // num_ranks(seen))
    wait = min(seen.attribution.shares.input, 0.99)
    makers = max(1, loader.num_workers)
    needed = math.ceil(makers / (1.0 - wait)) if loader.num_workers else math.ceil(wait / (1.0 - wait)) + 1
    most = {min(needed, cores), min(2 * needed, cores)}
    return [Setting("loader.num_workers", num) for num in sorted(most) if num > loader.num_workers]


def gives_all_to_each(loader: Loader) -> bool:
    """An IterableDataset that does not ask which worker it is in, or is not known to."""
    return loader.is_iterable and (isinstance(loader.loading, Unknown) or not loader.loading.splits_by_worker)


def num_ranks(seen: Seen) -> int:
    """Processes of this machine that have a loader with workers of their own."""
    return max(1, len(seen.processes))


def taken_by_workers(seen: Seen, loader: Loader | None) -> float:
    """Share of a step in which operators on the CPU wait for cores that the loader's workers use, at most.

    No more than the workers compute, and no more than threads that are ready to run wait for a core: an operator ends
    with its last thread. 0 where that is too little to tell, or not known: then only the wait for batches is judged.
    """
    if loader is None or not loader.num_workers or seen.uses_cuda or isinstance(loader.loading, Unknown):
        return 0.0
    names = ("window.tree_cpu_s_per_s", "host.num_cores", "live.core_wait_s_per_s")
    used, cores, waited = (known_number(seen, name) for name in names)
    made_per_s = _batches_per_s(seen, loader)
    if used is None or cores is None or waited is None or made_per_s is None or used < policy.USED_UP * cores:
        return 0.0
    taken = min(seen.attribution.shares.device, loader.loading.cpu_s * made_per_s, waited)
    return taken if taken >= policy.CROWDED else 0.0
