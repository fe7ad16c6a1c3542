"""The program's data loaders and their cost: arithmetic that several rules share."""

import math

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.observation_view import ObservationView, or_else, required
from dynotune.doctor.periodic_work import sampling
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading
from dynotune.schema.setting import Setting

MOST_WORKERS_A_CORE = 4
MOST_WORKERS = 256


def main_loader(view: ObservationView) -> Loader | None:
    """Return the first loader that the steps draw from; None if the program uses none of torch's."""
    return view.loaders[0] if view.loaders else None


def loading_of(loader: Loader) -> Loading:
    """Return the cost of making the loader's batches. Raises Missing: batches were not timed."""
    return required(loader.loading, "what making batches takes")


def steady_wait(view: ObservationView, loader: Loader | None) -> float:
    """Return the share of a step that waits for the loader, except at an epoch's start for new workers or a
    sampler."""
    wait = view.attribution.shares.input
    if loader is None or wait < policy.LEAST_SHARE:
        return wait
    if (not loader.num_workers or loader.persistent_workers) and not sampling(view):
        return wait
    return or_else(lambda: max(0.0, wait - epoch_starts(view)), wait)


def starts_workers_each_epoch(view: ObservationView, loader: Loader) -> bool:
    """Tell whether each epoch begins with new workers. A custom loader may keep an iterator that never
    ends."""
    if not loader.num_workers or loader.persistent_workers:
        return False
    drawn_per_s, timing = _batches_per_s(view, loader), view.timing
    if not loader.num_batches or drawn_per_s is None:
        return True
    # With this many epoch starts, the batches between them cannot exceed the loader's length.
    return drawn_per_s * timing.window_s / num_ranks(view) <= loader.num_batches * (timing.num_epochs + 1)


def _batches_per_s(view: ObservationView, loader: Loader) -> float | None:
    """Return the batches of all ranks per second; None if that is not known."""
    samples_per_s = view.timing.samples_per_s
    return samples_per_s / loader.batch_size if samples_per_s is not None and loader.batch_size else None


def epoch_starts(view: ObservationView, needed_s: float = 0.0) -> float:
    """Return the share of the window by which first steps of epochs exceed other steps and `needed_s`
    seconds.

    With a device, the share is at most the device's wait, because the device goes on with queued work.
    """
    timing = view.timing
    if not timing.num_epochs or timing.epoch_begin_s is None:
        return 0.0
    usual_s = timing.median_step_s if timing.typical_step_s is None else timing.typical_step_s
    extra_s = timing.epoch_begin_s - usual_s - needed_s
    return unless_waited(view, min(1.0, max(0.0, timing.num_epochs * extra_s / timing.window_s)))


def first_batch_s(loader: Loader) -> float:
    """Return the seconds of an epoch's first batch, which no worker can make ahead."""
    return 0.0 if isinstance(loader.loading, Unknown) else loader.loading.fetch_s


def are_behind(view: ObservationView, loader: Loader) -> bool:
    """Tell whether more workers may make more batches; true if the workers were not timed.

    Workers that rest while the program saves or begins an epoch may still be too slow for the steps between.
    """
    if isinstance(loader.loading, Unknown) or (loader.loading.busy_share or 0.0) >= policy.WORKERS_BEHIND:
        return True
    usual_s = view.timing.typical_step_s or view.timing.median_step_s
    return loader.loading.fetch_s / max(1, loader.num_workers) > usual_s


def more_workers(view: ObservationView, loader: Loader) -> list[Setting]:
    """Return settings with enough workers to make batches as fast as they are used, and with twice as many.

    Return no setting for a data set that gives each worker all of its data.
    """
    if gives_all_to_each(loader):
        return []
    cores = max(1, int(view.number("host.num_cores")) // num_ranks(view))
    room = min(_kept_busy_by(view, loader, cores), _fitting_in_shared_memory(view, loader))
    wait = min(view.attribution.shares.input, 0.99)
    makers = max(1, loader.num_workers)
    needed = math.ceil(makers / (1.0 - wait)) if loader.num_workers else math.ceil(wait / (1.0 - wait)) + 1
    most = {min(needed, room), min(2 * needed, room)}
    return [Setting("loader.num_workers", num) for num in sorted(most) if num > loader.num_workers]


def _kept_busy_by(view: ObservationView, loader: Loader, cores: int) -> int:
    """Return how many workers keep `cores` busy: more than cores, if making a batch mostly waits (for
    storage, say).

    If the cores are busy, a batch waits for them, and more workers make it wait longer.
    """
    used = view.number_or_none("window.tree_cpu_s_per_s")
    if isinstance(loader.loading, Unknown) or used is None or used > cores / 2 or loader.loading.cpu_s <= 0:
        return cores
    waits = loader.loading.fetch_s / loader.loading.cpu_s
    return max(cores, min(MOST_WORKERS_A_CORE * cores, int(cores * waits)))


def _fitting_in_shared_memory(view: ObservationView, loader: Loader) -> int:
    """Return how many workers can keep their batches in half of the free shared memory."""
    free = view.number_or_none("host.shm_free_bytes")
    held = sum(tensor.num_bytes for tensor in loader.batch or ()) * (loader.prefetch_factor or 2)
    if free is None or not held:
        return MOST_WORKERS
    return max(1, loader.num_workers, int(free / 2 / held))


def gives_all_to_each(loader: Loader) -> bool:
    """Tell whether an IterableDataset does not ask for its worker's number, or may not."""
    return loader.is_iterable and not loader.splits_by_worker


def num_ranks(view: ObservationView) -> int:
    """Return the number of processes on this machine that have a loader with its own workers."""
    return max(1, len(view.processes))


def taken_by_workers(view: ObservationView, loader: Loader | None) -> float:
    """Return a bound of the share of a step in which CPU operators wait for cores that workers use.

    It is at most the workers' computing time, and at most the time that ready threads wait for a core: an
    operator ends with its last thread. 0 if the time is unknown or too small to tell; rules then judge only
    the wait for batches.
    """
    if loader is None or not loader.num_workers or view.uses_cuda or isinstance(loader.loading, Unknown):
        return 0.0
    names = ("window.tree_cpu_s_per_s", "host.num_cores", "live.core_wait_s_per_s")
    used, cores, waited = (view.number_or_none(name) for name in names)
    made_per_s = _batches_per_s(view, loader)
    if used is None or cores is None or waited is None or made_per_s is None or used < policy.USED_UP * cores:
        return 0.0
    taken = min(view.attribution.shares.device, loader.loading.cpu_s * made_per_s, waited)
    return taken if taken >= policy.CROWDED else 0.0
