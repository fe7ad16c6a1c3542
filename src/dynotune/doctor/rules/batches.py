"""Batches: their content, and the time to make a batch."""

from dynotune.doctor import policy
from dynotune.doctor.bounds import saving
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.hot_lines import known, of_loader, place
from dynotune.doctor.loaders import (
    are_behind,
    loading_of,
    main_loader,
    more_workers,
    steady_wait,
    taken_by_workers,
)
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading, Padding
from dynotune.schema.setting import Setting

CONTEXT = "loader.multiprocessing_context"


@rule(family="batches")
def collate_heavy(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    if loader is None or _lost(view, loader) < policy.LEAST_SHARE:
        return
    loading = loading_of(loader)
    share = _saved(view, loader, loading.collate_s)
    if loading.collate_s < policy.LARGE_PART * loading.fetch_s or share < policy.LEAST_SHARE:
        return
    yield Judgement(
        claim=f"{loading.collate_s / loading.fetch_s:.0%} of making a batch goes into collating it.",
        share=share,
        evidence=[
            _part(loading, loading.collate_s, "in the collate function"),
            f"collate_fn: {loader.collate}",
        ],
        where=place(known(of_loader, view), loading.collate if loading.collate.function else loader.place),
        candidates=_workers(view, loader),
    )


@rule(family="batches")
def decode_bound(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    if loader is None or _lost(view, loader) < policy.LEAST_SHARE:
        return
    loading = loading_of(loader)
    share = _saved(view, loader, loading.decode_s)
    if loading.decode_s < policy.LARGE_PART * loading.fetch_s or share < policy.LEAST_SHARE:
        return
    resizing = (
        " and resizing" if any(name.endswith(("resize", "thumbnail")) for name in loading.decoders) else ""
    )
    yield Judgement(
        claim=f"{loading.decode_s / loading.fetch_s:.0%} of making a batch goes into decoding{resizing}.",
        share=share,
        evidence=[_part(loading, loading.decode_s, f"in {', '.join(loading.decoders)}")],
        where=place(known(of_loader, view), loading.items if loading.items.function else loader.place),
        candidates=_workers(view, loader),
    )


@rule(family="batches")
def cow_growth(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    if loader is None or not loader.num_workers or loader.context not in (None, "fork"):
        return
    loading = loading_of(loader)
    if (loading.num_objects or 0) < policy.MANY_OBJECTS:
        return
    claim = (
        f"Each of {loader.num_workers} forked workers copies the data set's Python objects as it reads them."
    )
    seen, much = "their memory was not followed", False
    grown, over_s = loading.private_growth_bytes, loading.private_over_s
    if grown is not None and over_s:
        if (
            not policy.COPIED_BYTES
            <= grown
            <= policy.OBJECT_BYTES * (loading.num_objects or 0) * loader.num_workers
        ):
            return  # then caches or batches outweigh all objects of the data set
        claim = (
            f"The workers' own memory grew by {grown / 1e6:,.0f} MB in {over_s:.1f} s as they read the "
            "data set."
        )
        seen, much = f"{loader.num_workers} workers", grown * 60 / over_s >= policy.COPIED_MUCH_BYTES
    evidence = [f"the data set holds some {loading.num_objects:,} Python objects", seen]
    copied_s = _copied_s(loader)
    share = 0.0 if copied_s is None else _saved(view, loader, copied_s)
    if copied_s is not None:
        evidence.append(_part(loading, copied_s, f"page faults that copy ({loading.num_faults:,.0f} faults)"))
    if share >= policy.LEAST_SHARE:
        yield Judgement(
            kind="speed",
            claim=f"{claim} Copying takes {share:.0%} of a step.",
            share=share,
            evidence=evidence,
            where=loader.place,
            candidates=[Setting(CONTEXT, context) for context in ("forkserver", "spawn")],
        )
        return
    yield Judgement(
        severity="medium" if much else "low",
        claim=claim,
        evidence=evidence,
        where=loader.place,
        candidates=[],
    )


def _copied_s(loader: Loader) -> float | None:
    """Return the time (s) in which the kernel copies pages for a batch, of the making of a batch.

    It is the workers' time in the kernel, by the share of their page faults that made their own memory grow.
    None if the growth or the faults are not known.
    """
    loading = loading_of(loader)
    grown, over_s, busy_share = loading.private_growth_bytes, loading.private_over_s, loading.busy_share
    if grown is None or not over_s or not loading.num_faults or loading.system_s is None or not busy_share:
        return None
    batches_per_s = loader.num_workers * busy_share / loading.fetch_s
    copies = grown / policy.PAGE_BYTES / over_s / batches_per_s
    return min(loading.system_s, loading.fetch_s) * min(1.0, copies / loading.num_faults)


@rule(family="batches")
def last_batch_shape(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    if loader is None or loader.drop_last is not False or not loader.num_items or not loader.batch_size:
        return
    rest = loader.num_items % loader.batch_size
    if not rest or loader.num_items < loader.batch_size:
        return
    compiled = [] if isinstance(view.process.compilation, Unknown) else view.compilation.recompilations
    recompiled = [reason for reason in compiled if "size" in reason or "shape" in reason]
    tunes = view.process.live.get("live.cudnn_benchmark") is True and any(
        model.num_modules.get("convolution") for model in view.models
    )
    if not recompiled and not (tunes and view.uses_cuda):
        return
    yield Judgement(
        severity="low",
        claim=(
            f"The last batch of an epoch holds {rest} samples, not {loader.batch_size}, and so has its "
            "own shape."
        ),
        share=Unknown("it costs once a shape"),
        evidence=[*recompiled[:2], *([view.mentions("live.cudnn_benchmark")] if tunes else [])],
        where=loader.place,
    )


@rule(family="batches")
def padding_waste(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    padding = None if loader is None else loader.padding
    if loader is None or padding is None or padding.share < policy.LEAST_PADDING:
        return
    shares = view.attribution.shares
    unexplained = 0.0 if view.attribution.busy_share is None else shares.other
    share = saving(view, padding.share * (shares.device + unexplained))
    remedy, by_length = _less_padding(loader, padding)
    yield Judgement(
        claim=f"{padding.share:.0%} of a batch is padding, for at most {share:.0%} of a step.",
        share=share,
        evidence=[
            f"told by {padding.by} in {padding.num_batches} batches",
            f"padded to the longest row of each batch: {padding.longest_share:.0%}",
            f"with rows of like length together: {padding.sorted_share:.0%}",
        ],
        where=loader.place,
        candidates=None if by_length and "SequentialSampler" not in loader.sampler else [],
        remedy=remedy,
    )


def _less_padding(loader: Loader, padding: Padding) -> tuple[str, bool]:
    """Return the remedy that saves most padding, and whether the setting has the same effect."""
    # Rows that are all padded to one length cannot be told apart by a sampler.
    if padding.share - padding.longest_share >= policy.LEAST_PADDING:
        return 'Pad each batch to its own longest row, not to a fixed length (padding="longest").', False
    if padding.sorted_share > padding.share / 2:
        return (
            "Pack rows one after another, with attention that keeps them apart (dynotune.runtime.data.pack).",
            False,
        )
    if loader.collate.startswith("transformers."):
        return (
            (
                "Put rows of like length together: group_by_length, or "
                'train_sampling_strategy="group_by_length".'
            ),
            True,
        )
    if loader.is_iterable:
        return (
            "Put rows of like length together: sort some hundred by length, and shuffle the batches.",
            False,
        )
    return (
        "Put rows of like length together, by a batch sampler (dynotune.runtime.data.LengthBatchSampler).",
        True,
    )


def _lost(view: ObservationView, loader: Loader) -> float:
    return max(steady_wait(view, loader), taken_by_workers(view, loader))


def _saved(view: ObservationView, loader: Loader, part_s: float) -> float:
    """Return the share of a step that is saved without this part of making batches.

    In the process itself, the wait shrinks in proportion. Busy workers make batches faster by that factor.
    Workers with time left are ahead: the program then waits for the handover or a core, but they may take
    cores from operators.
    """
    loading, waited = loading_of(loader), steady_wait(view, loader)
    part = min(1.0, part_s / loading.fetch_s) if loading.fetch_s else 0.0
    if loading.busy_share is None:
        return waited * part
    sooner = 0.0 if loading.busy_share < policy.WORKERS_REST else min(waited, loading.busy_share * part)
    return max(sooner, taken_by_workers(view, loader) * part)


def _workers(view: ObservationView, loader: Loader) -> list[Setting]:
    """Return settings with more workers, if the loader has workers and they make batches too slowly. No other
    setting is offered, because none makes a batch cheaper."""
    return more_workers(view, loader) if loader.num_workers and are_behind(view, loader) else []


def _part(loading: Loading, part_s: float, where: str) -> str:
    return f"{part_s * 1e3:.3g} of the {loading.fetch_s * 1e3:.3g} ms that a batch takes to make are {where}"
