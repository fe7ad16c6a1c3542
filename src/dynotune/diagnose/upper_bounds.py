"""Measure upper bounds: in the live run, the loader makes batches alone, and then one of its batches is
replayed."""

from collections.abc import Sequence

from dynotune.diagnose.profiled import in_words
from dynotune.diagnose.window import window_from_now, window_within
from dynotune.launch.records import Record
from dynotune.measure.live import TaskRunner, Watcher, refuse_failed
from dynotune.schema.diagnosis import UpperBound
from dynotune.schema.errors import DynotuneError
from dynotune.schema.events import LoaderDrain, LoaderIsolated, PageCacheDrop
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.task import IsolateLoader, PageCache
from dynotune.schema.timing import Timing

SETTLE_STEPS = 4
"""Steps before the replayed steps are timed: those of `agent.tasks.isolate_loader`, and one for the
draining."""
NOTABLE_RESIDENT = 0.1


def find_upper_bounds(
    runner: TaskRunner, run: RunSpec, watcher: Watcher, timing: Timing
) -> list[UpperBound] | Unknown:
    """Return the step times of the loader alone, of one replayed batch, and of the plain window (loader and
    steps).

    All three are timed in the live run, on the first rank. If the command has ended, it is run once more.
    """
    watcher.running("the loader alone, and then steps without it")
    try:
        said = _said(runner, run)
    except DynotuneError as error:
        return Unknown(in_words(error))
    if isinstance(said, Unknown):
        return said
    return (
        rows(said, timing, run.page_cache) if said.replayed is not None else Unknown("nothing was replayed")
    )


def _said(runner: TaskRunner, run: RunSpec) -> LoaderIsolated | Unknown:
    """Return the report of the first rank's agent. Raises DynotuneError: the command failed, or makes too few
    steps."""

    def place(records: Sequence[Record]) -> IsolateLoader:
        window = window_from_now(records, run)
        return IsolateLoader(at_step=window.at_step, num_steps=window.num_steps, page_cache=run.page_cache)

    def fit(record: Record) -> IsolateLoader:
        window = window_within(record, run)
        at_step = max(1, (window.at_step or 0) - SETTLE_STEPS)
        return IsolateLoader(at_step=at_step, num_steps=window.num_steps, page_cache=run.page_cache)

    answer = runner.do(place, fit, what="replayed without the loader")
    for result in answer.all(LoaderIsolated):
        return result
    assert runner.launch is not None
    refuse_failed(runner.outcome(), runner.launch, runner.limit_s)
    return Unknown(answer.reason)


def rows(said: LoaderIsolated, timing: Timing, page_cache: PageCache) -> list[UpperBound]:
    """Return the three upper bounds, from the agent's report and the plain window's timing."""
    replayed = said.replayed
    if replayed is None or not replayed.num_steps:
        return []
    window_s = replayed.end_s - replayed.begin_s
    step = UpperBound(
        part="step",
        step_s=window_s / replayed.num_steps,
        num_steps=replayed.num_steps,
        samples_per_s=replayed.num_samples / window_s if replayed.num_samples else None,
        notes=["the program changed the batch in place, so its values differed each time"]
        if said.changed_in_place
        else [],
    )
    both = UpperBound(
        part="both", step_s=timing.step_s, num_steps=timing.num_steps, samples_per_s=timing.samples_per_s
    )
    return [_loader(said, replayed.num_steps, page_cache), step, both]


def _loader(said: LoaderIsolated, num_steps: int, page_cache: PageCache) -> UpperBound:
    """Return the time of a step's batches from all loaders, drained one after another."""
    step_s = sum(row.seconds / row.num_batches * row.num_replayed / num_steps for row in said.loaders)
    duration_s = sum(row.seconds for row in said.loaders)
    only = said.loaders[0] if len(said.loaders) == 1 else None
    notes = [_in_words(row) for row in said.loaders]
    cache, cache_notes = _page_cache(said.dropped, page_cache)
    return UpperBound(
        part="loader",
        step_s=step_s,
        num_steps=max(1, round(duration_s / step_s)) if step_s else 0,
        samples_per_s=only.num_samples / only.seconds if only and only.num_samples and only.seconds else None,
        page_cache=cache,
        notes=notes + cache_notes,
    )


def _in_words(row: LoaderDrain) -> str:
    workers = (
        "without workers" if not row.num_workers else f"{row.num_workers} worker{'s' * (row.num_workers > 1)}"
    )
    which = "batches of a whole epoch, its begin included" if row.whole_epoch else "batches"
    return f"{row.num_batches:,} {which}, {workers}"


def _page_cache(dropped: PageCacheDrop | None, asked: PageCache) -> tuple[str, list[str]]:
    """Return the page cache's state, and warnings: it counts as warm unless the files' pages were seen to be
    gone."""
    if asked == "warm":
        return "warm", []
    if dropped is None:
        return "warm", ["the page cache could not be emptied"]
    if not dropped.num_files:
        return "warm", [
            "the page cache could not be emptied: no file lies in the working directory or was open"
        ]
    if dropped.resident_bytes > NOTABLE_RESIDENT * dropped.probed_bytes:
        share = dropped.resident_bytes / dropped.probed_bytes
        return "warm", [
            f"the page cache could not be emptied: {share:.0%} of the largest files is cached all the same"
        ]
    notes = [f"dropped: {dropped.num_files:,} files of the working directory, and those that were open"]
    if not dropped.complete:
        notes.append("there were too many files to drop them all")
    if dropped.num_refused:
        notes.append(f"{dropped.num_refused:,} files could not be opened")
    if not dropped.probed_bytes:
        notes.append("whether they left the cache could not be seen")
    return "cold", notes
