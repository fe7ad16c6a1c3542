"""Input: what the program waits for before it has a batch."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import beyond
from dynotune.doctor.loaders import (
    are_behind,
    epoch_starts,
    first_batch_s,
    gives_all_to_each,
    loading_of,
    main_loader,
    more_workers,
    num_ranks,
    starts_workers_each_epoch,
    steady_wait,
    taken_by_workers,
)
from dynotune.doctor.machine import known_number
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Loader, Loading
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

SPLIT_FIRST = "Let the data set give each worker its part (torch.utils.data.get_worker_info)"


@rule("program", explains=["loader-jitter", "epoch-jitter"])
def loader_bound(seen: Seen) -> Iterator[Finding]:
    """The program waits for its data loader.

    Sees: the share of a step in which nothing but the loader's next batch was waited for. With a device that is its
    idle time while the program is inside the loader; without one, the time inside the loader. What the starts of
    epochs cost where workers begin anew is left to `persistent-workers`.

    Costs: all of that share, if batches were always ready, and with a device what it waits for the host after each late
    batch. Where operators run on the CPU and wait for cores that
    workers use, at most the time in which workers compute.

    Wrong when: the window began with a cold page cache and later epochs read from memory. A wait as short as handing
    a batch over takes is of low severity, whatever its share; so is one without a device where the command uses up its
    processors: there the loader takes from the operators what it needs. Where even the longest batch comes in time,
    the wait is for handing over alone: its severity is that of what making batches in the process itself would spare.
    """
    loader = main_loader(seen)
    share = steady_wait(seen, loader)
    if loader is not None and (taken := taken_by_workers(seen, loader)) > share:
        yield _crowded(seen, loader, taken)
        return
    if share < policy.LEAST_SHARE:
        return
    # What the host has to queue after a late batch would be queued already.
    late = beyond(seen, "loader-bound") * share / max(share, seen.attribution.shares.input)
    losses = seen.losses("loader-bound")
    evidence = evidence_of(losses)
    candidates: list[Setting] = []
    remedy = "Make batches cheaper to load, or load them ahead."
    if loader is not None:
        evidence += [_in_words(loader), *_making(loader)]
        loading = loader.loading
        if loader.num_workers and are_behind(loader):
            candidates = more_workers(seen, loader)
            remedy = "Give it more workers, or make each batch cheaper to load."
            if gives_all_to_each(loader):
                remedy = f"{SPLIT_FIRST}, then give it more workers; or make each batch cheaper to load."
        elif loader.num_workers:
            remedy = (
                "The workers have time left: look at how batches are handed over (size, number of tensors, pinning)."
            )
            if not isinstance(loading, Unknown) and loading.fetch_s < share * seen.timing.step_s:
                candidates = [Setting("loader.num_workers", 0)]
                remedy = "Handing batches over takes longer than making them: make larger ones, or none in workers."
    brief = share * seen.timing.step_s < policy.HANDOVER_S
    used_up = not seen.uses_cuda and _uses_up_processors(seen)
    spared = min(share, _avoidable(seen, loader)) + late
    then = f", and {late:.0%} until work is queued after late batches" if late >= policy.LEAST_SHARE else ""
    yield Finding(
        id="loader-bound",
        severity="low" if brief or used_up else policy.severity(spared),
        claim=f"A step waits {share:.0%} of its time for the data loader{then}.",
        share=min(1.0, share + late),
        evidence=evidence,
        where=losses[0].where if losses else loader.place if loader is not None else Place(),
        candidates=candidates,
        remedy=remedy,
    )


def _crowded(seen: Seen, loader: Loader, taken: float) -> Finding:
    cores = int(seen.number("host.num_cores"))
    return Finding(
        id="loader-bound",
        severity=policy.severity(taken),
        claim=f"Operators wait for cores that workers use, for {taken:.0%} of a step at most.",
        share=taken,
        evidence=[
            _in_words(loader),
            *_making(loader),
            f"threads that are ready to run wait {seen.number('live.core_wait_s_per_s'):.2g} s a second for a core",
        ],
        where=loader.place,
        remedy=f"Make batches cheaper to load, or beforehand: operators and workers share {cores} cores.",
    )


def _avoidable(seen: Seen, loader: Loader | None) -> float:
    """Of a step, what of the wait is spared at most.

    Batches that are always ready cannot be made sooner: only without workers nobody hands them over, and then the
    process makes them itself. Where a thread pins them, that may be what takes long.
    """
    if loader is None or isinstance(loader.loading, Unknown) or loader.loading.pin_s is not None:
        return 1.0
    if not _always_ready(seen, loader, loader.loading):
        return 1.0
    return max(0.0, seen.attribution.shares.input - loader.loading.fetch_s / seen.timing.step_s)


def _uses_up_processors(seen: Seen) -> bool:
    used, cores = known_number(seen, "window.tree_cpu_s_per_s"), known_number(seen, "host.num_cores")
    return used is not None and cores is not None and used >= policy.USED_UP * cores


@rule("program", explains=["loader-bound", "loader-jitter"])
def num_workers_zero(seen: Seen) -> Iterator[Finding]:
    """Batches are made in the training process itself.

    Sees: the program waits for a DataLoader that has `num_workers=0`.

    Costs: the wait, less what workers cannot take away: handing a batch over, and the processor time that loading
    needs on the cores that the program may use.

    Wrong when: the data set holds open files or connections that do not survive in another process.
    """
    loader = main_loader(seen)
    if loader is None or loader.num_workers:
        return
    wait = seen.attribution.shares.input
    if wait < policy.LEAST_SHARE:
        return
    share = min(wait, _hidden_by_workers(seen, loader, wait))
    if share < policy.LEAST_SHARE:
        return
    losses = seen.losses("loader-bound")
    remedy = "Let workers make batches beside the training process."
    if gives_all_to_each(loader):
        remedy = f"{SPLIT_FIRST}, then use workers."
    yield Finding(
        id="num-workers-zero",
        severity=policy.severity(share),
        claim=f"Batches are made in the training process, which waits {wait:.0%} of a step for them.",
        share=share,
        evidence=[*evidence_of(losses), _in_words(loader), *_making(loader)],
        where=losses[0].where if losses else loader.place,
        candidates=more_workers(seen, loader),
        remedy=remedy,
    )


@rule("program", explains=["loader-bound", "loader-jitter", "prefetch-factor"])
def num_workers_too_many(seen: Seen) -> Iterator[Finding]:
    """More workers than cores.

    Sees: the loader's workers, times the ranks on this machine, outnumber the cores that affinity and quota allow.

    Costs: at most the wait for the loader but for the starts of epochs, or of operators on the CPU for cores that
    workers use; what crowded cores cost beside it only a comparison tells. Each worker also takes memory and time to
    start.

    Wrong when: workers wait for disk or network rather than compute.
    """
    loader = main_loader(seen)
    if loader is None or not loader.num_workers:
        return
    ranks, cores = num_ranks(seen), int(seen.number("host.num_cores"))
    if loader.num_workers * ranks <= cores:
        return
    loading = loader.loading
    if not isinstance(loading, Unknown) and loading.cpu_s < policy.LARGE_PART * loading.fetch_s and _cores_left(seen):
        return  # they wait for something else, and nobody is in their way
    wait = max(steady_wait(seen, loader), taken_by_workers(seen, loader))
    lost = wait >= policy.LEAST_SHARE
    fewer = max(1, cores // ranks)
    yield Finding(
        id="num-workers-too-many",
        severity=policy.severity(wait) if lost else "low",
        claim=f"{loader.num_workers * ranks} workers share {cores} {'core' if cores == 1 else 'cores'}.",
        share=wait if lost else Unknown("what crowded cores cost only a comparison tells"),
        evidence=[_in_words(loader), *_making(loader), seen.mentions("window.tree_cpu_s_per_s")],
        where=loader.place,
        candidates=[Setting("loader.num_workers", num) for num in dict.fromkeys((fewer, max(1, fewer // 2)))],
        remedy="Use no more workers than the cores that each rank may use.",
    )


@rule("program", explains=["epoch-jitter"])
def persistent_workers(seen: Seen) -> Iterator[Finding]:
    """Workers are started anew for each epoch.

    Sees: steps that begin an epoch take longer than others, by more than the first batch takes to make, and the
    loader has workers that do not persist. Silent where an iterator goes on across epochs, as that of Ultralytics.

    Costs: that excess, once an epoch.

    Wrong when: the data set is changed between epochs: workers that persist do not see it.
    """
    loader = main_loader(seen)
    if loader is None or not starts_workers_each_epoch(seen, loader):
        return
    share = epoch_starts(seen, first_batch_s(loader))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="persistent-workers",
        severity=policy.severity(share),
        claim=f"Starting {loader.num_workers} workers for each epoch takes {share:.0%} of the time.",
        share=share,
        evidence=[*_epochs_in_words(seen), _in_words(loader)],
        where=loader.place,
        candidates=[Setting("loader.persistent_workers", True)],
        remedy="Keep the workers from one epoch to the next.",
    )


@rule("program", explains=["epoch-jitter"])
def mp_context(seen: Seen) -> Iterator[Finding]:
    """Workers begin in a fresh interpreter.

    Sees: the loader starts its workers by spawn or forkserver, anew for each epoch, and the first steps of epochs
    take longer than forked workers would need.

    Costs: that excess, once an epoch.

    Wrong when: the program cannot fork safely: threads hold locks, or workers use CUDA.
    """
    loader = main_loader(seen)
    if loader is None or not starts_workers_each_epoch(seen, loader):
        return
    if loader.context not in ("spawn", "forkserver"):
        return
    share = epoch_starts(seen, max(first_batch_s(loader), policy.FORK_S * loader.num_workers))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="mp-context",
        severity=policy.severity(share),
        claim=f"Workers begin by {loader.context}: each imports the program again, once an epoch.",
        share=share,
        evidence=[*_epochs_in_words(seen), _in_words(loader)],
        where=loader.place,
        candidates=[Setting("loader.multiprocessing_context", "fork")],
        remedy="Keep the workers, or fork them where that is safe.",
    )


@rule("program", explains=["loader-bound", "loader-jitter"])
def prefetch_factor(seen: Seen) -> Iterator[Finding]:
    """Batches take unevenly long to make, and too few are made ahead.

    Sees: the program waits although the workers have time left, and the longest batch took several times the mean, so
    long that workers would not keep up if each batch did. Of a model on the CPU only where cores are left.

    Costs: the wait, if enough batches were ready, and at most what a batch takes to make on average: all slow ones
    together take no longer.

    Wrong when: a batch that takes long is needed at once, at the start of an epoch; or memory for more is missing.
    """
    loader = main_loader(seen)
    share = steady_wait(seen, loader)
    if loader is None or not loader.num_workers or share < policy.LEAST_SHARE:
        return
    loading = loading_of(loader)
    if (loading.busy_share or 0.0) >= policy.WORKERS_BUSY or loading.longest_s < policy.UNEVEN * loading.fetch_s:
        return
    uneven = loading.fetch_s / seen.timing.step_s
    if uneven < share / 2 or _always_ready(seen, loader, loading):
        return  # most of the wait is for something else
    if not seen.uses_cuda and _uses_up_processors(seen):
        return  # what is made ahead takes a core from what is made now
    share = min(share, uneven)
    ahead = loader.prefetch_factor or 2
    yield Finding(
        id="prefetch-factor",
        severity=policy.severity(share),
        claim=f"A batch can take {loading.longest_s / loading.fetch_s:.0f} times the mean, {ahead} a worker are ahead.",
        share=share,
        evidence=[_in_words(loader), *_making(loader)],
        where=loader.place,
        candidates=[Setting("loader.prefetch_factor", num) for num in (2 * ahead, 4 * ahead)],
        remedy="Let workers make more batches ahead; where order is no matter, in_order=False passes slow ones by.",
    )


# What the rules share


def _always_ready(seen: Seen, loader: Loader, loading: Loading) -> bool:
    """Whether workers would keep up even if every batch took as long as the longest.

    They make a batch while a usual step is at work: a window with long steps in it leaves them more time than most
    steps do.
    """
    timing = seen.timing
    at_work_s = min(timing.typical_step_s or timing.median_step_s, timing.step_s) - (timing.wait_s or 0.0)
    if not loader.num_workers or loading.busy_share is None or not loading.fetch_s or at_work_s <= 0:
        return False
    busy = loading.busy_share * timing.step_s / at_work_s
    return busy * loading.longest_s <= loading.fetch_s


def _cores_left(seen: Seen) -> bool:
    try:
        return seen.number("window.tree_cpu_s_per_s") < policy.WORKERS_BUSY * seen.number("host.num_cores")
    except Missing:
        return False


def _hidden_by_workers(seen: Seen, loader: Loader, wait: float) -> float:
    """Share of a step that workers can hide at most: what stays is handing over, and loading's own processor time."""
    step_s = seen.timing.step_s
    rest = 1.0 - wait + policy.HANDOVER_S / step_s
    loading = loader.loading
    if isinstance(loading, Unknown) or not loading.fetch_s:
        return 1.0 - rest
    cores = max(1, int(seen.number("host.num_cores")) // num_ranks(seen))
    busy = wait * min(1.0, loading.cpu_s / loading.fetch_s)
    return 1.0 - max(rest, (1.0 - wait + busy) / cores)


def _in_words(loader: Loader) -> str:
    """The arguments that matter."""
    words = [f"num_workers={loader.num_workers}"]
    if loader.batch_size is not None:
        words.insert(0, f"batch_size={loader.batch_size}")
    if loader.num_workers:
        words += [f"prefetch_factor={loader.prefetch_factor}", f"persistent_workers={loader.persistent_workers}"]
        words += [f"multiprocessing_context={loader.context}"] if loader.context else []
    return f"{loader.name.rpartition('.')[2]}({', '.join(words)})"


def _making(loader: Loader) -> list[str]:
    """What a batch takes to make, where that was timed."""
    loading = loader.loading
    if isinstance(loading, Unknown):
        return []
    parts = [f"{loading.cpu_s * 1e3:.3g} ms of it processor time", f"{loading.collate_s * 1e3:.3g} ms collating"]
    if loading.decoders:
        parts.append(f"{loading.decode_s * 1e3:.3g} ms in {', '.join(loading.decoders)}")
    busy = [] if loading.busy_share is None else [f"workers make batches {loading.busy_share:.0%} of their time"]
    lines = [f"a batch takes {loading.fetch_s * 1e3:.3g} ms to make: {', '.join(parts)}", *busy]
    return [*lines, f"items are made in {loading.items.function}"] if loading.items.function else lines


def _epochs_in_words(seen: Seen) -> list[str]:
    timing = seen.timing
    usual_s = timing.median_step_s if timing.typical_step_s is None else timing.typical_step_s
    first_s = timing.epoch_begin_s or 0.0
    return [
        f"epochs begun in the window: {timing.num_epochs}",
        f"their first step takes {first_s * 1e3:.3g} ms, others {usual_s * 1e3:.3g} ms",
    ]
