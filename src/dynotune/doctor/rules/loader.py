"""Input: the program's waits for its next batch."""

from dynotune.doctor import loaders, policy
from dynotune.doctor.bounds import delay_of_device
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.hot_lines import known, of_loader, place, told
from dynotune.doctor.observation_view import ObservationView, evidence_of, or_else
from dynotune.doctor.periodic_work import sampling
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

SPLIT_FIRST = "Let the data set give each worker its own part (torch.utils.data.get_worker_info)"


@rule(family="loader")
def loader_bound(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    share = loaders.steady_wait(view, loader)
    if loader is not None and (taken := loaders.taken_by_workers(view, loader)) > share:
        yield _crowded(view, loader, taken)
        return
    if share < policy.LEAST_SHARE:
        return
    # Without the late batch, the host's work after it would already be queued.
    late = delay_of_device(view, "loader-bound") * share / max(share, view.attribution.shares.input)
    losses = view.losses("loader-bound")
    lines = known(of_loader, view)
    evidence = [*told(lines), *evidence_of(losses)]
    candidates: list[Setting] = []
    remedy = "Make batches cheaper to load, or load them ahead."
    if loader is not None:
        evidence += [_in_words(loader), *_making(loader)]
        loading = loader.loading
        if loader.num_workers and loaders.are_behind(view, loader):
            candidates = loaders.more_workers(view, loader)
            remedy = "Give it more workers, or make each batch cheaper to load."
            if loaders.gives_all_to_each(loader):
                remedy = f"{SPLIT_FIRST}, then give it more workers; or make each batch cheaper to load."
        elif loader.num_workers:
            remedy = "The workers have time left: look at how they hand batches over (size, pinning)."
            if not isinstance(loading, Unknown) and loading.fetch_s < share * view.timing.step_s:
                candidates = [Setting("loader.num_workers", 0)]
                remedy = (
                    "Handing batches over takes longer than making them: use larger batches, or no workers."
                )
    brief = share * view.timing.step_s < policy.HANDOVER_S
    used_up = not view.uses_cuda and _uses_up_processors(view)
    spared = min(share, _avoidable(view, loader)) + late
    then = f", and {late:.0%} until work is queued after late batches" if late >= policy.LEAST_SHARE else ""
    yield Judgement(
        severity="low" if brief or used_up else policy.severity(spared),
        claim=f"A step waits {share:.0%} of its time for the data loader{then}.",
        share=min(1.0, share + late),
        evidence=evidence,
        where=place(lines, losses[0].where if losses else loader.place if loader is not None else Place()),
        candidates=candidates,
        remedy=remedy,
    )


def _crowded(view: ObservationView, loader: Loader, taken: float) -> Judgement:
    cores = int(view.number("host.num_cores"))
    return Judgement(
        claim=f"Operators wait for cores that workers use, for at most {taken:.0%} of a step.",
        share=taken,
        evidence=[
            _in_words(loader),
            *_making(loader),
            (
                f"threads that are ready to run wait {view.number('live.core_wait_s_per_s'):.2g} s per "
                "second "
                "for a core"
            ),
        ],
        where=loader.place,
        remedy=(
            "Make batches cheaper to load, or make them beforehand: operators and workers share "
            f"{cores} cores."
        ),
    )


def _avoidable(view: ObservationView, loader: Loader | None) -> float:
    """Return the share of a step by which the wait can be shortened.

    Batches that are always ready cannot be made sooner. Without workers there is no handover, but then the
    process makes the batches itself. If a thread pins batches, pinning may be the slow part.
    """
    if loader is None or isinstance(loader.loading, Unknown) or loader.loading.pin_s is not None:
        return 1.0
    if not _always_ready(view, loader, loader.loading):
        return 1.0
    return max(0.0, view.attribution.shares.input - loader.loading.fetch_s / view.timing.step_s)


def _uses_up_processors(view: ObservationView, part: float = policy.USED_UP, otherwise: bool = False) -> bool:
    """Tell whether the command uses more than `part` of the processors; `otherwise` if that is not known."""
    return or_else(
        lambda: view.number("window.tree_cpu_s_per_s") >= part * view.number("host.num_cores"), otherwise
    )


@rule(family="loader")
def num_workers_zero(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    if loader is None or loader.num_workers:
        return
    wait = loaders.steady_wait(view, loader)
    if wait < policy.LEAST_SHARE:
        return
    share = min(wait, _hidden_by_workers(view, loader, wait))
    losses, lines = view.losses("loader-bound"), known(of_loader, view)
    remedy = "Let workers make batches beside the training process."
    if loaders.gives_all_to_each(loader):
        remedy = f"{SPLIT_FIRST}, then use workers."
    yield Judgement(
        claim=f"Batches are made in the training process, which waits {wait:.0%} of a step for them.",
        share=share,
        evidence=[*told(lines), *evidence_of(losses), _in_words(loader), *_making(loader)],
        where=place(lines, losses[0].where if losses else loader.place),
        candidates=loaders.more_workers(view, loader),
        remedy=remedy,
    )


@rule(family="loader")
def num_workers_too_many(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    if loader is None or not loader.num_workers:
        return
    ranks, cores = loaders.num_ranks(view), int(view.number("host.num_cores"))
    if loader.num_workers * ranks <= cores:
        return
    loading = loader.loading
    waits = not isinstance(loading, Unknown) and loading.cpu_s < policy.LARGE_PART * loading.fetch_s
    if waits and not _uses_up_processors(view, policy.WORKERS_BUSY, True):
        return  # workers wait for something else, and cores are free
    taken = loaders.taken_by_workers(view, loader)
    if not taken and _leave_a_core(loader, ranks, cores):
        return
    wait = max(loaders.steady_wait(view, loader), taken)
    lost = wait >= policy.LEAST_SHARE
    fewer = max(1, cores // ranks)
    fewest = [0] if not isinstance(loading, Unknown) and loading.fetch_s < wait * view.timing.step_s else []
    yield Judgement(
        severity=policy.severity(wait) if lost else "low",
        claim=f"{loader.num_workers * ranks} workers share {cores} {'core' if cores == 1 else 'cores'}.",
        share=wait if lost else Unknown("only a comparison shows what crowded cores cost"),
        evidence=[_in_words(loader), *_making(loader), view.mentions("window.tree_cpu_s_per_s")],
        where=loader.place,
        candidates=[
            Setting("loader.num_workers", num) for num in dict.fromkeys((*fewest, fewer, max(1, fewer // 2)))
        ],
    )


def _leave_a_core(loader: Loader, ranks: int, cores: int) -> bool:
    """Tell whether so few workers are at work at a time that each rank has a core for itself.

    Idle workers take no core, however many there are. What is waited for is then the handing over of batches.
    """
    loading = loader.loading
    if isinstance(loading, Unknown) or loading.busy_share is None:
        return False
    return ranks * (loading.busy_share * loader.num_workers + 1) <= cores


@rule(family="loader")
def persistent_workers(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    if loader is None or not loaders.starts_workers_each_epoch(view, loader) or sampling(view):
        return
    share = loaders.epoch_starts(view, loaders.first_batch_s(loader))
    yield Judgement(
        claim=f"Starting {loader.num_workers} workers for each epoch takes {share:.0%} of the time.",
        share=share,
        evidence=[*_epochs_in_words(view), _in_words(loader)],
        where=loader.place,
    )


@rule(family="loader")
def mp_context(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    if loader is None or not loaders.starts_workers_each_epoch(view, loader) or sampling(view):
        return
    if loader.context not in ("spawn", "forkserver"):
        return
    share = loaders.epoch_starts(view, max(loaders.first_batch_s(loader), policy.FORK_S * loader.num_workers))
    yield Judgement(
        claim=f"Workers start by {loader.context}: each imports the program again, once an epoch.",
        share=share,
        evidence=[*_epochs_in_words(view), _in_words(loader)],
        where=loader.place,
    )


@rule(family="loader")
def prefetch_factor(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    share = loaders.steady_wait(view, loader)
    if loader is None or not loader.num_workers or share < policy.LEAST_SHARE:
        return
    loading = loaders.loading_of(loader)
    if (
        loading.busy_share or 0.0
    ) >= policy.WORKERS_BUSY or loading.longest_s < policy.UNEVEN * loading.fetch_s:
        return
    uneven = loading.fetch_s / view.timing.step_s
    if uneven < share / 2 or _always_ready(view, loader, loading):
        return  # most of the wait is for something else
    if not view.uses_cuda and _uses_up_processors(view):
        return  # a worker that makes a batch ahead takes a core from the current batch
    share = min(share, uneven)
    ahead = loader.prefetch_factor or 2
    yield Judgement(
        severity=policy.severity(share),
        claim=f"A batch can take {loading.longest_s / loading.fetch_s:.0f} times the mean, and each worker "
        "makes "
        f"{ahead} ahead.",
        share=share,
        evidence=[_in_words(loader), *_making(loader)],
        where=loader.place,
        candidates=[Setting("loader.prefetch_factor", num) for num in (2 * ahead, 4 * ahead)],
    )


@rule(family="loader")
def iterable_duplicated(view: ObservationView) -> Judgements:
    loader = loaders.main_loader(view)
    if loader is None or loader.num_workers < 2 or loader.splits_by_worker is not False:
        return
    yield Judgement(
        severity="high",
        claim=(
            f"Each of {loader.num_workers} workers yields all samples of {loader.dataset.rpartition('.')[2]}."
        ),
        share=Unknown("it makes epochs longer, not steps"),
        evidence=[_in_words(loader), f"{loader.dataset} does not ask torch.utils.data.get_worker_info()"],
        where=loader.place,
        remedy=f"{SPLIT_FIRST}: yield every num_workers-th sample, from worker.id on.",
    )


def _always_ready(view: ObservationView, loader: Loader, loading: Loading) -> bool:
    """Tell whether workers would keep up even if every batch took as long as the longest.

    They make batches during usual steps. A window with long steps leaves them more time than most steps do.
    """
    timing = view.timing
    at_work_s = min(timing.typical_step_s or timing.median_step_s, timing.step_s) - (timing.wait_s or 0.0)
    if not loader.num_workers or loading.busy_share is None or not loading.fetch_s or at_work_s <= 0:
        return False
    busy = loading.busy_share * timing.step_s / at_work_s
    return busy * loading.longest_s <= loading.fetch_s


def _hidden_by_workers(view: ObservationView, loader: Loader, wait: float) -> float:
    """Return the share of a step that workers can hide: all but the handover and the processor time of
    loading."""
    step_s = view.timing.step_s
    rest = 1.0 - wait + policy.HANDOVER_S / step_s
    loading = loader.loading
    if isinstance(loading, Unknown) or not loading.fetch_s:
        return 1.0 - rest
    cores = max(1, int(view.number("host.num_cores")) // loaders.num_ranks(view))
    busy = wait * min(1.0, loading.cpu_s / loading.fetch_s)
    return 1.0 - max(rest, (1.0 - wait + busy) / cores)


def _in_words(loader: Loader) -> str:
    """Return the loader's important arguments, for evidence."""
    words = [f"num_workers={loader.num_workers}"]
    if loader.batch_size is not None:
        words.insert(0, f"batch_size={loader.batch_size}")
    if loader.num_workers:
        words += [
            f"prefetch_factor={loader.prefetch_factor}",
            f"persistent_workers={loader.persistent_workers}",
        ]
        words += [f"multiprocessing_context={loader.context}"] if loader.context else []
    return f"{loader.name.rpartition('.')[2]}({', '.join(words)})"


def _making(loader: Loader) -> list[str]:
    """Return evidence of the time to make a batch, if that was timed."""
    loading = loader.loading
    if isinstance(loading, Unknown):
        return []
    parts = [
        f"{loading.cpu_s * 1e3:.3g} ms of it processor time",
        f"{loading.collate_s * 1e3:.3g} ms collating",
    ]
    if loading.decoders:
        parts.append(f"{loading.decode_s * 1e3:.3g} ms in {', '.join(loading.decoders)}")
    busy = (
        [] if loading.busy_share is None else [f"workers make batches {loading.busy_share:.0%} of their time"]
    )
    lines = [f"a batch takes {loading.fetch_s * 1e3:.3g} ms to make: {', '.join(parts)}", *busy]
    lines += _parts(loading)
    return [*lines, f"items are made in {loading.items.function}"] if loading.items.function else lines


def _parts(loading: Loading) -> list[str]:
    """Return evidence of the time to make a sample by kind of work, and of where the sample's bytes come
    from."""
    shares: dict[str, float] = {}
    total_s = sum(part.wall_s for part in loading.parts) or 1.0
    for part in loading.parts:
        name = f"{part.part} ({part.what})" if part.what else part.part
        shares[name] = shares.get(name, 0.0) + part.wall_s / total_s
    most = [
        f"{share:.0%} {name}"
        for name, share in sorted(shares.items(), key=lambda row: -row[1])[:5]
        if share >= 0.01
    ]
    found = [f"the time of a sample: {', '.join(most)}"] if most else []
    if loading.read_bytes and loading.storage_bytes is not None:
        share = loading.storage_bytes / loading.read_bytes
        found.append(f"a batch reads {loading.read_bytes / 1e6:.3g} MB, {share:.0%} of it from storage")
    return found


def _epochs_in_words(view: ObservationView) -> list[str]:
    timing = view.timing
    usual_s = timing.median_step_s if timing.typical_step_s is None else timing.typical_step_s
    first_s = timing.epoch_begin_s or 0.0
    return [
        f"epochs begun in the window: {timing.num_epochs}",
        f"their first step takes {first_s * 1e3:.3g} ms, others {usual_s * 1e3:.3g} ms",
    ]
