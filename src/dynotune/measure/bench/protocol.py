"""Run a comparison from start to end: pilots, pairs in random order, verdict, and storage on disk."""

from pathlib import Path

from dynotune import probe
from dynotune.launch import new_run_folder
from dynotune.launch.process import origin, variants
from dynotune.measure.bench import equal_arms, in_process
from dynotune.measure.bench.bench import Bench
from dynotune.measure.bench.journal import Journal
from dynotune.measure.bench.refusals import preflight
from dynotune.measure.bench.settle import settle
from dynotune.measure.comparison import objective
from dynotune.measure.comparison.stats import SequentialResult, judge, judge_comparison
from dynotune.measure.live.machine import facts_of, refuse_another_machine
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.measure.live.turns import Live
from dynotune.schema import document, resumption
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.run import RunSpec

FILE = "comparison.json"


class Interrupted(KeyboardInterrupt):
    """Interruption of a comparison by the user: child processes have ended, and finished results are in
    `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder


def compare(request: CompareRequest, watcher: Watcher, *, live: Live | None = None) -> Comparison:
    """Compare the baseline and the candidate of `request`. Write every finished pair to disk before the next
    begins.

    `live`: live run of the baseline for several comparisons; it is ended before fresh processes start.

    Raises:
        UsageError, CannotRunHere: a setting, a pilot or a run was impossible; no file of the user's is
            changed.
        Interrupted: the user interrupted the comparison; `resume` continues.
    """
    judge(
        [], margin=request.margin, max_pairs=request.max_pairs
    )  # raises UsageError for a number out of range
    run = request.run
    variants.refuse_missing(request.candidate, run.settings)
    equal_arms.refuse_equal(run, request.candidate)
    facts = facts_of(run, request.candidate)
    wary = preflight(run, request.arms, facts)
    reason = in_process.why_not(request)
    if request.in_process == "only" and reason:
        raise UsageError(
            f"Baseline and candidate cannot be compared within one run: {reason}.",
            hint="Leave --in-process out: fresh processes compare them.",
        )
    folder = new_run_folder(run.base)
    for caution in wary:
        watcher.warn(caution)
    comparison = Comparison(
        id=folder.name,
        run=run.recorded,
        candidate_settings=request.candidate,
        margin=request.margin,
        max_pairs=request.max_pairs,
        precision=request.precision,
        against=request.against,
        confidence=request.confidence,
        seen=request.seen,
        within=request.in_process != "never" and not reason,
        only_within=request.in_process == "only",
        warnings=wary,
        facts={**facts, **probe.environment.facts(run.env)},
    )
    origin.mark(folder, comparison)
    document.write(folder / FILE, comparison)
    watcher.begun(folder)
    return _sit(request, folder, watcher, live)


def resume(folder: Path, now: RunSpec, watcher: Watcher, *, budget_s: float | None = None) -> Comparison:
    """Continue the comparison in `folder` after its last finished pair; a finished comparison is only read.

    Args:
        now: request whose `env`, `base` and `lock` replace the recorded fields. Command and settings of `now`
            are used if the folder lacks its own or comes from elsewhere. All else stays as recorded.
        budget_s: seconds for the rest of the comparison.

    Raises:
        RecordError: `folder` has no readable comparison.
        UsageError: a secret is missing (records never contain secrets), or the folder comes from elsewhere.
        CannotRunHere: the comparison was begun on another machine, or the command's folder does not exist.
        Interrupted: as for `compare`.
    """
    comparison = document.read(folder / FILE, Comparison)
    if _is_over(comparison):
        return comparison
    origin.refuse_foreign(folder, comparison, now)
    comparison = resumption.completed(comparison, now, *comparison.candidate_settings)
    request = CompareRequest(
        run=comparison.run.resumed(now),
        candidate=comparison.candidate_settings,
        max_pairs=comparison.max_pairs,
        margin=comparison.margin,
        budget_s=budget_s,
        precision=comparison.precision,
        against=comparison.against,
        confidence=comparison.confidence,
        seen=comparison.seen,
        in_process="only" if comparison.only_within else "auto" if comparison.within else "never",
    )
    objective.refuse_impossible(request.run)
    refuse_another_machine("comparison", comparison.facts, facts_of(request.run))
    watcher.begun(folder)
    return _sit(request, folder, watcher)


def so_far(folder: Path) -> SequentialResult:
    """Report what the pairs or blocks of an interrupted comparison show so far.

    Raises RecordError: `folder` contains no comparison.
    """
    return judge_comparison(document.read(folder / FILE, Comparison))


def _is_over(comparison: Comparison) -> bool:
    return comparison.verdict is not None or comparison.failed is not None


def _sit(request: CompareRequest, folder: Path, watcher: Watcher, live: Live | None = None) -> Comparison:
    try:
        with machine_lock(request.run, watcher):
            # Read it only after waiting for the lock: another dynotune may have continued it meanwhile.
            journal = Journal(document.read(folder / FILE, Comparison), folder / FILE)
            if _is_over(journal.document):
                return journal.document
            try:
                return settle(Bench(request, folder, journal, watcher, live))
            except DynotuneError as error:
                if journal.document.pairs:
                    error.hint += f" The finished pairs are kept; dynotune compare --resume {folder} goes on."
                raise
    except KeyboardInterrupt as stopped:
        raise Interrupted(folder) from stopped
