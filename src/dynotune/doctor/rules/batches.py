"""What is in a batch, and what making it takes."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.loaders import are_behind, loading_of, main_loader, more_workers, steady_wait, taken_by_workers
from dynotune.doctor.observation_view import Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Loader, Loading
from dynotune.schema.setting import Setting


@rule("program", explains=["loader-bound", "loader-jitter", "epoch-jitter"])
def collate_heavy(seen: Seen) -> Iterator[Finding]:
    """Putting samples together takes much of the loading.

    Sees: the program waits for its loader, or operators for cores that workers use, and a large part of the time that a
    batch takes to make lies in the collate function.

    Costs: at most that wait, in the proportion of that part.

    Wrong when: samples are lazy, and collating is what reads or decodes them.
    """
    loader = main_loader(seen)
    if loader is None or _lost(seen, loader) < policy.LEAST_SHARE:
        return
    loading = loading_of(loader)
    share = _saved(seen, loader, loading.collate_s)
    if loading.collate_s < policy.LARGE_PART * loading.fetch_s or share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="collate-heavy",
        severity=policy.severity(share),
        claim=f"{loading.collate_s / loading.fetch_s:.0%} of making a batch goes into collating it.",
        share=share,
        evidence=[_part(loading, loading.collate_s, "in the collate function"), f"collate_fn: {loader.collate}"],
        where=loading.collate if loading.collate.function else loader.place,
        candidates=_workers(seen, loader),
        remedy=(
            "Write samples into one tensor that is allocated once a batch, or let the data set give whole batches "
            "(__getitems__)."
        ),
    )


@rule("program", explains=["loader-bound", "loader-jitter", "epoch-jitter"])
def decode_bound(seen: Seen) -> Iterator[Finding]:
    """Decoding images or sound takes most of the loading.

    Sees: the program waits for its loader, or operators for cores that workers use, and a large part of the time that a
    batch takes to make lies in a decoder that is known (Pillow, OpenCV, torchvision, TurboJPEG, soundfile and others),
    or in converting and resizing what it gave (Pillow, OpenCV).

    Costs: at most that wait, in the proportion of that part.

    Wrong when: the decoder waits for the file's bytes rather than decodes them, or the size is drawn anew each time.
    """
    loader = main_loader(seen)
    if loader is None or _lost(seen, loader) < policy.LEAST_SHARE:
        return
    loading = loading_of(loader)
    share = _saved(seen, loader, loading.decode_s)
    if loading.decode_s < policy.LARGE_PART * loading.fetch_s or share < policy.LEAST_SHARE:
        return
    resizing = " and resizing" if any(name.endswith(("resize", "thumbnail")) for name in loading.decoders) else ""
    yield Finding(
        id="decode-bound",
        severity=policy.severity(share),
        claim=f"{loading.decode_s / loading.fetch_s:.0%} of making a batch goes into decoding{resizing}.",
        share=share,
        evidence=[_part(loading, loading.decode_s, f"in {', '.join(loading.decoders)}")],
        where=loading.items if loading.items.function else loader.place,
        candidates=_workers(seen, loader),
        remedy="Store the data decoded and at the size that is used, or decode with a faster library or on the GPU.",
    )


@rule("program")
def cow_growth(seen: Seen) -> Iterator[Finding]:
    """Forked workers copy the data set's Python objects as they touch them.

    Sees: the data set holds many Python objects in lists or dicts, and memory that the forked workers share with
    nobody grew within the window.

    Costs: memory: in the end each worker has its own copy. Reading an object counts its references, which writes to
    its page. Time only once the machine swaps.

    Wrong when: workers fill a cache of their own on purpose.
    """
    loader = main_loader(seen)
    if loader is None or not loader.num_workers or loader.context not in (None, "fork"):
        return
    loading = loading_of(loader)
    if (loading.num_objects or 0) < policy.MANY_OBJECTS:
        return
    if loading.private_growth_bytes is None or not loading.private_over_s:
        yield from _may_grow(loader, loading)
        return
    grown, over_s = loading.private_growth_bytes, loading.private_over_s
    if grown < policy.COPIED_BYTES:
        return
    yield Finding(
        id="cow-growth",
        severity="medium" if grown * 60 / over_s >= policy.COPIED_MUCH_BYTES else "low",
        kind="memory",
        claim=f"The workers' own memory grew by {grown / 1e6:,.0f} MB in {over_s:.1f} s as they read the data set.",
        share=Unknown("it costs memory"),
        evidence=[f"the data set holds some {loading.num_objects:,} Python objects", f"{loader.num_workers} workers"],
        where=loader.place,
        remedy="Hold the data in numpy arrays, torch tensors or Arrow tables: one object each, however many entries.",
    )


def _may_grow(loader: Loader, loading: Loading) -> Iterator[Finding]:
    yield Finding(
        id="cow-growth",
        severity="low",
        kind="memory",
        claim=f"Each of {loader.num_workers} forked workers copies the data set's Python objects as it reads them.",
        share=Unknown("it costs memory"),
        evidence=[f"the data set holds some {loading.num_objects:,} Python objects", "their growth was not followed"],
        where=loader.place,
        remedy="Hold the data in numpy arrays, torch tensors or Arrow tables: one object each, however many entries.",
    )


@rule("program")
def last_batch_shape(seen: Seen) -> Iterator[Finding]:
    """The last batch of each epoch is smaller than the others.

    Sees: the loader keeps an incomplete last batch, and the program compiles or times convolutions for each shape.

    Costs: compiling within the window, if that is what it was for; else the first such batch alone.

    Wrong when: shapes vary anyway.
    """
    loader = main_loader(seen)
    if loader is None or loader.drop_last is not False or not loader.num_items or not loader.batch_size:
        return
    rest = loader.num_items % loader.batch_size
    if not rest or loader.num_items < loader.batch_size:
        return
    compiled = [] if isinstance(seen.process.compilation, Unknown) else seen.compilation.recompilations
    recompiled = [reason for reason in compiled if "size" in reason or "shape" in reason]
    tunes = seen.process.live.get("live.cudnn_benchmark") is True and any(
        model.num_modules.get("convolution") for model in seen.models
    )
    if not recompiled and not (tunes and seen.uses_cuda):
        return
    yield Finding(
        id="last-batch-shape",
        severity="low",
        kind="jitter",
        claim=f"The last batch of an epoch holds {rest} samples, not {loader.batch_size}: a shape of its own.",
        share=Unknown("it costs once a shape"),
        evidence=[*recompiled[:2], *([seen.mentions("live.cudnn_benchmark")] if tunes else [])],
        where=loader.place,
        remedy="Drop the last batch (drop_last=True), or fill it up.",
    )


def _lost(seen: Seen, loader: Loader) -> float:
    return max(steady_wait(seen, loader), taken_by_workers(seen, loader))


def _saved(seen: Seen, loader: Loader, part_s: float) -> float:
    """Share of a step without that part of making batches.

    In the process itself the wait shrinks in proportion; workers, if busy, make batches that much faster. Workers that
    rest are ahead: then batches are waited for because they are handed over, or take turns with the program at a core;
    but what they compute may take cores from operators.
    """
    loading, waited = loading_of(loader), steady_wait(seen, loader)
    part = min(1.0, part_s / loading.fetch_s) if loading.fetch_s else 0.0
    if loading.busy_share is None:
        return waited * part
    sooner = 0.0 if loading.busy_share < policy.WORKERS_REST else min(waited, loading.busy_share * part)
    return max(sooner, taken_by_workers(seen, loader) * part)


def _workers(seen: Seen, loader: Loader) -> list[Setting]:
    """A setting makes no batch cheaper, and more workers make more of them; of none at all another rule speaks."""
    return more_workers(seen, loader) if loader.num_workers and are_behind(loader) else []


def _part(loading: Loading, part_s: float, where: str) -> str:
    return f"{part_s * 1e3:.3g} of the {loading.fetch_s * 1e3:.3g} ms that a batch takes to make are {where}"
