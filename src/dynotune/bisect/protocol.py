"""Run a bisection from start to end: show the difference, halve it, confirm the first bad step; resume."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path

import msgspec

from dynotune.bisect import halving
from dynotune.bisect.ends import line_of
from dynotune.bisect.line import Line, NotMade
from dynotune.launch import new_run_folder
from dynotune.launch.process import origin
from dynotune.measure.bench import Interrupted, Journal, protocol
from dynotune.measure.live import CompareRequest, Watcher
from dynotune.schema import document, resumption
from dynotune.schema.bisection import Bisection, BisectionStep, Side
from dynotune.schema.comparison import Comparison, Spread
from dynotune.schema.errors import (
    CommandFailed,
    DynotuneError,
    NoStep,
    RecordError,
    TooFewSteps,
    TooLong,
    UsageError,
)
from dynotune.schema.run import RunSpec
from dynotune.text import words

FILE = "bisection.json"
MAX_PAIRS = 24
MARGIN = 0.02
_OF_THE_POINT = (NotMade, CommandFailed, NoStep, TooFewSteps, TooLong)
"""Errors by which a point is skipped. Others, such as a machine in use, say nothing of the point."""
_AT_ONCE = 1000.0
"""Precision, relative to the difference, that a verdict always has: no pair follows it."""
_SHOWN_PRECISION = 1.0
"""Largest width of the interval of the ends' difference, relative to the difference: half of it is a
limit for all other points."""


class BisectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A bisection to run.

    Args:
        good, bad: ends, as `ends.line_of` takes them.
        max_pairs: most pairs of each comparison.
        margin: smallest relative difference of the ends that is worth a search.
        budget_s: seconds after which no further comparison begins; None for no limit.
    """

    run: RunSpec
    good: str
    bad: str
    max_pairs: int = MAX_PAIRS
    margin: float = MARGIN
    budget_s: float | None = None


def bisect(request: BisectRequest, watcher: Watcher) -> Bisection:
    """Find the first bad step between the ends of `request`; keep each comparison before the next begins.

    Raises:
        UsageError, CannotRunHere: the ends have no line, or the command cannot be measured at one of them.
        CommandFailed: the command failed at an end.
        Interrupted: the user interrupted it; `resume` continues.
    """
    if taken := {setting.knob for setting in request.run.settings} & {"git.ref", "python"}:
        raise UsageError(f"The ends of a bisection decide {min(taken)}.", hint="Leave it out.")
    folder = new_run_folder(request.run.base)
    line = line_of(request.good, request.bad, request.run, folder / "environments")
    for caution in line.cautions:
        watcher.warn(caution)
    bisection = Bisection(
        id=folder.name,
        run=request.run.recorded,
        good=request.good,
        bad=request.bad,
        kind=line.kind,
        points=list(line.points),
        not_switched=list(line.not_switched),
        max_pairs=request.max_pairs,
        margin=request.margin,
        error=halving.ERROR,
    )
    origin.mark(folder, bisection)
    document.write(folder / FILE, bisection)
    return search(request.run, line, folder, watcher, request.budget_s)


def resume(folder: Path, now: RunSpec, watcher: Watcher, *, budget_s: float | None = None) -> Bisection:
    """Continue the bisection in `folder`, within the comparison that was interrupted; a finished one is only
    read.

    Args:
        now: request whose `env`, `base` and `lock` replace the recorded ones.

    Raises:
        RecordError: `folder` holds no readable bisection, or its line is another one today.
        UsageError: a secret is missing, or the folder comes from elsewhere.
    """
    bisection = document.read(folder / FILE, Bisection)
    if bisection.ending is not None:
        return bisection
    origin.refuse_foreign(folder, bisection, now)
    bisection = resumption.completed(bisection, now)
    run = bisection.run.resumed(now)
    line = line_of(bisection.good, bisection.bad, run, folder / "environments")
    if list(line.points) != bisection.points:
        raise RecordError(
            f"The line from {bisection.good} to {bisection.bad} is another one than when {folder} was begun.",
            hint="Begin a new bisection.",
        )
    return search(run, line, folder, watcher, budget_s)


def search(run: RunSpec, line: Line, folder: Path, watcher: Watcher, budget_s: float | None) -> Bisection:
    """Search, or go on searching, the line of the bisection in `folder`. Raises: as `bisect`."""
    try:
        return _Search(run, line, folder, watcher, budget_s).run()
    except KeyboardInterrupt as stopped:
        raise Interrupted(folder) from stopped


class _Search:
    """A bisection while it runs. All that outlives an attempt is in the journal."""

    def __init__(
        self, run: RunSpec, line: Line, folder: Path, watcher: Watcher, budget_s: float | None
    ) -> None:
        self._run, self._line, self.folder, self._watcher = run, line, folder, watcher
        self._ends_s = math.inf if budget_s is None else time.monotonic() + budget_s
        self._journal = Journal(document.read(folder / FILE, Bisection), folder / FILE)
        self._spreads: list[Spread] = []

    @property
    def _now(self) -> Bisection:
        return self._journal.document

    def run(self) -> Bisection:
        """Search until the ending is known or the time is up; return the bisection."""
        self._say_plan()
        for step in [self._now.shown, *self._now.steps]:
            if step is not None and step.comparison:
                self._learn(document.read(Path(step.comparison) / protocol.FILE, Comparison))
        if self._now.shown is None and self._is_time_up():
            return self._now
        shown = self._now.shown or self._show()
        if shown.side != "bad":
            return self._not_reproducible(shown)
        while self._now.ending is None:
            low, high = halving.known_ends(len(self._now.points), self._now.steps)
            skipped = {step.candidate for step in self._now.steps if step.side == "skipped"}
            point = halving.next_point(low, high, skipped)
            if self._is_time_up():
                return self._now
            if point is None:
                return self._end(low, high)
            self._halve(point)
        return self._now

    def _say_plan(self) -> None:
        """Say what is compared, and how sure the answer will be."""
        num = len(self._now.points) - 1
        noun = {"revisions": "commit", "versions": "version", "differences": "difference"}[self._now.kind]
        steps = f"{num} {noun}{'s' if num > 1 else ''} from {self._now.good} to {self._now.bad}"
        planned = halving.num_planned(num + 1)
        if not planned:
            self._watcher.say(f"{steps}: the ends are compared.")
            return
        halves = f"at most {planned} comparisons halve it" if planned > 1 else "one comparison halves it"
        self._watcher.say(
            f"{steps}: first the ends are compared; if there is a difference, {halves}, and a last one "
            f"states the step. At most {self._now.error:.0%} of such searches end at a wrong step, if one "
            "step made the difference."
        )

    def _is_time_up(self) -> bool:
        is_up = time.monotonic() >= self._ends_s
        if is_up:
            self._journal.update(reason="The budget is used up; --resume goes on.")
        return is_up

    # Comparisons

    def _show(self) -> BisectionStep:
        """Compare the ends. Raises what makes one of them impossible."""
        last = len(self._now.points) - 1
        self._watcher.say(f"Comparing {self._name(0)} with {self._name(last)}.")
        comparison, place = self._compared(
            "ends", 0, last, precision=_SHOWN_PRECISION, margin=self._now.margin
        )
        self._refuse_failed(comparison, 0, last)
        is_bad = comparison.verdict == "slower"
        shown = _step(0, last, "bad" if is_bad else "good", comparison, place)
        against = 1.0
        if is_bad and comparison.speedup is not None:
            against = halving.against(comparison.speedup)
        self._journal.update(shown=shown, against=against, reason="")
        return shown

    def _halve(self, point: int) -> None:
        planned = halving.num_planned(len(self._now.points))
        number = sum(step.side != "skipped" for step in self._now.steps)
        error = halving.error_of(number, planned, self._now.error)
        self._watcher.say(f"Step {number + 1} of about {planned}: {self._name(point)}.")
        try:
            comparison, place = self._compared(
                f"step-{point}",
                0,
                point,
                precision=_AT_ONCE,
                margin=0.0,
                against=self._now.against,
                confidence=1 - error,
            )
        except _OF_THE_POINT as error_:
            self._skip(point, error_.message)
            return
        except DynotuneError as error_:
            # No fault of the point: the machine is in use, a tool is missing, the network is down.
            error_.hint += (
                f" {self._name(point)} was not measured: dynotune bisect --resume {self.folder} goes on."
            )
            raise
        if comparison.failed is not None:
            if comparison.failed.arm == "baseline":
                self._refuse_failed(comparison, 0, point)
            said = next(iter(reversed(comparison.failed.last_lines)), "")
            self._skip(point, f"the command failed: {said}".rstrip(": "), place)
            return
        if comparison.speedup is None:
            self._skip(point, comparison.reason, place)
            return
        # Undecided: the estimate is taken, and the ending says that a step was not sure.
        side: Side = "bad" if comparison.speedup < self._now.against else "good"
        is_sure = comparison.verdict in ("slower", "faster")
        step = _step(0, point, side, comparison, place, is_sure=is_sure, error=error)
        self._journal.update(steps=[*self._now.steps, step])
        low, high = halving.known_ends(len(self._now.points), self._now.steps)
        sure = "" if is_sure else " (not sure)"
        self._watcher.say(f"{self._name(point)} is {side}{sure}; {high - low} left.")

    def _skip(self, point: int, reason: str, place: str = "") -> None:
        self._watcher.warn(f"{self._name(point)} is skipped: {reason}")
        step = BisectionStep(
            baseline=0, candidate=point, side="skipped", is_sure=False, reason=reason, comparison=place
        )
        self._journal.update(steps=[*self._now.steps, step])

    def _compared(self, name: str, baseline: int, candidate: int, **more: object) -> tuple[Comparison, str]:
        """Compare two points, or go on with an interrupted comparison; return it with its folder."""
        base = self.folder / name
        run = msgspec.structs.replace(
            self._run, base=base, settings=[*self._run.settings, *self._line.settings(baseline)]
        )
        request = CompareRequest(
            run=run,
            candidate=[*self._run.settings, *self._line.settings(candidate)],
            max_pairs=self._now.max_pairs,
            seen=halving.pooled(self._spreads),
            **more,  # type: ignore[arg-type]
        )
        begun = sorted(base.glob(f"*/{protocol.FILE}"))
        if begun:
            comparison = protocol.resume(begun[-1].parent, run, self._watcher)
        else:
            comparison = protocol.compare(request, self._watcher)
        self._learn(comparison)
        return comparison, str(base / comparison.id)

    def _learn(self, comparison: Comparison) -> None:
        """Keep the spread of the pairs, which later comparisons begin with."""
        logs = [math.log(pair.baseline_s / pair.candidate_s) for pair in comparison.pairs]
        if len(logs) > 1:
            self._spreads.append(Spread(statistics.variance(logs), len(logs) - 1))

    def _refuse_failed(self, comparison: Comparison, baseline: int, candidate: int) -> None:
        failed = comparison.failed
        if failed is None:
            return
        point = baseline if failed.arm == "baseline" else candidate
        raise CommandFailed(
            f"The command failed at {self._name(point)}.",
            hint=f"All that it printed is in {failed.run}.",
            command_exit_code=failed.exit_code,
            last_lines=tuple(failed.last_lines),
        )

    # Endings

    def _not_reproducible(self, shown: BisectionStep) -> Bisection:
        found = words.with_interval(shown.speedup, shown.ci)
        reason = f"Not reproducible here: the bad end ran at {found} of the good end's speed. {shown.reason}"
        if shown.ci is not None and shown.ci[0] > 1:
            reason = f"The bad end is faster here: {found}. Exchange --good and --bad to search for the gain."
        return self._journal.update(ending="not-reproducible", reason=reason.rstrip())

    def _end(self, low: int, high: int) -> Bisection:
        changed = self._line.changed(low, high)
        self._journal.update(last_good=low, first_bad=high, changed=changed)
        if high - low > 1:
            num = high - low - 1
            reason = f"{num} points between could not be measured: the first bad one is one of {high - low}."
            return self._journal.update(ending="range", reason=reason)
        confirmed = self._now.confirmed or self._confirmed(low, high)
        total = self._now.shown.speedup if self._now.shown is not None else None
        reason = _doubt(confirmed, self._now)
        if not reason and total is not None and confirmed.speedup is not None:
            share = math.log(confirmed.speedup) / math.log(total)
            if share < 0.75:
                warning = f"This step makes {share:.0%} of the difference, and other steps make the rest."
                self._journal.update(warnings=[warning])
        return self._journal.update(
            confirmed=confirmed,
            ending="unsure" if reason else "found",
            reason=reason,
            next_command=self._line.next_command(high),
        )

    def _confirmed(self, low: int, high: int) -> BisectionStep:
        """Compare the last good point with the first bad one, for the size of the step."""
        shown = self._now.shown
        if shown is not None and (low, high) == (0, len(self._now.points) - 1):
            return shown
        self._watcher.say(f"Comparing {self._name(low)} with {self._name(high)}, for the size of the step.")
        comparison, place = self._compared("confirmed", low, high, margin=self._now.margin)
        self._refuse_failed(comparison, low, high)
        side: Side = "bad" if comparison.verdict == "slower" else "good"
        return _step(low, high, side, comparison, place)

    def _name(self, point: int) -> str:
        given = self._now.points[point]
        if self._now.kind == "revisions":
            return f"{given.name[:12]} ({given.title})"
        return given.title or given.name


def _doubt(confirmed: BisectionStep, bisection: Bisection) -> str:
    """Return why the ending is not sure; "" if it is."""
    if confirmed.side != "bad":
        found = words.with_interval(confirmed.speedup, confirmed.ci)
        return (
            f"Compared with the point before it, the step was not shown to be slower: {found}. The "
            "difference may have several steps, or the machine changed meanwhile."
        )
    unsure = [step for step in bisection.steps if step.side != "skipped" and not step.is_sure]
    # A step that was shown directly, and makes most of the difference, needs no other proof.
    total = bisection.shown.speedup if bisection.shown is not None else None
    if (
        unsure
        and total is not None
        and confirmed.speedup is not None
        and confirmed.speedup > bisection.against
    ):
        return (
            f"{len(unsure)} comparisons of the search were undecided, and this step explains less than half "
            "of the difference."
        )
    return ""


def _step(
    baseline: int,
    candidate: int,
    side: Side,
    comparison: Comparison,
    place: str,
    *,
    is_sure: bool = True,
    error: float = 0.0,
) -> BisectionStep:
    return BisectionStep(
        baseline=baseline,
        candidate=candidate,
        side=side,
        is_sure=is_sure,
        speedup=comparison.speedup,
        ci=comparison.ci,
        num_pairs=comparison.num_pairs,
        error=error,
        reason=comparison.reason,
        comparison=place,
    )
