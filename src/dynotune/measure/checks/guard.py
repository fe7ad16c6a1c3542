"""Check whether a setting that changes rounding preserves the results: losses or outputs under one seed.

The runs are not timed. The candidate's errors are compared with the program's own noise. The noise comes from
two
references: the difference between the baseline and a run in float64, and the difference of a run whose
numbers are rounded as the setting promises. Guarded runs have dropout off, since other kernels draw other
random numbers.

Some programs allow no reference run, because a module draws random numbers or cannot compute in float64. For
such programs, fixed tolerances apply. A candidate beyond the tolerances is compared with the program's
difference from
itself: the baseline runs again and, if its modules draw random numbers, once more with other random numbers.
If the candidate's results drift away only later, the baseline also runs with weights moved by a rounding
error.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from dynotune import probe
from dynotune.launch.process import fresh_folder
from dynotune.measure.checks import noise
from dynotune.measure.checks.differences import Apart, LargestDifference, judge, losses_apart, outputs_apart
from dynotune.measure.checks.readings import Reading, Readings, readings
from dynotune.measure.checks.tolerance import BY_PRECISION, Tolerance, allowed, guarded
from dynotune.measure.live import lane_order, lanes
from dynotune.measure.live.arm_run import run_settings
from dynotune.measure.live.outcome import refuse_rejected
from dynotune.schema.arm import arm_key
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError
from dynotune.schema.events import ArmResults, ResultsRead
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import LIMIT_S, RunSpec
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import Guarded
from dynotune.schema.task import CheckResults

NUM_VALUES = 24
PLAIN = CheckResults(num_values=NUM_VALUES, still=True)
NOTHING_ROUNDS = "none of its settings changes how numbers are rounded, and that alone"
NOTHING_SEEN = "beside that nothing can be seen"
MOST_ALLOWED = 0.5
"""If a program's own losses differ so much that a difference of this size would pass, nothing can be
concluded."""


class _Wording(NamedTuple):
    """Words of a judgement by a reference: what the results lie apart from, and what explains such a
    distance."""

    reference: str
    explains: str


_AGAINST_BASELINE = _Wording("the baseline's", "rounding errors in its weights alone explain")
Asked = tuple[str, Sequence[Setting], dict[str, Any]]
"""A run to make: its name, its settings, and fields of `CheckResults`."""


class Own(msgspec.Struct, kw_only=True):
    """Readings of the baseline from a first run and, if needed, from a second run and a run with other random
    numbers.

    Args:
        reference: readings of a run in the type `reference_type`; Unknown if the baseline cannot compute in
            this type.
        rounded: map of a share to the readings of a run whose numbers are rounded by that share.
    """

    first: Readings
    again: Readings | None = None
    redrawn: Readings | None = None
    reference: Readings | Unknown | None = None
    reference_type: Literal["float64", "float32"] = "float64"
    rounded: dict[float, Readings | Unknown] = {}


class Guard(msgspec.Struct, frozen=True):
    """Make runs of one command, each in a folder below `folder`, limited to `limit_s` unless the run has its
    own limit.

    All methods raise CommandFailed and CannotRunHere, as `run_settings` does. `made`: finished runs of
    `ahead`;
    `patience_s`: further limit of runs with settings; `caches`: folder of compiled code that other runs of
    the command left, which is keyed by content; None: one for each arm below `folder`.
    """

    run: RunSpec
    folder: Path
    facts: Facts
    limit_s: float = LIMIT_S
    patience_s: float = math.inf
    caches: Path | None = None
    made: dict[str, Readings] = {}
    go_on: Callable[[], object] = lambda: None

    def computed(self, name: str, settings: Sequence[Setting] = (), **how: Any) -> Readings | Unknown:
        """Run the command with settings; return the values that its processes computed. `how`: of
        `CheckResults`."""
        if name in self.made:
            return self.made.pop(name)
        arm = "candidate" if settings else "baseline"
        outcome = run_settings(
            self.run,
            over(self.run.settings, settings),
            label=f"a run of the {arm}",
            cache_folder=self.caches or self.folder / "caches" / arm,
            folder=fresh_folder(self.folder / name),
            purpose="results",
            facts=self.facts,
            limit_s=self.run.timeout_s or min(self.limit_s, self.patience_s if settings else math.inf),
            enough=lambda records: bool(records) and all(record.last(ResultsRead) for record in records),
            results=msgspec.structs.replace(PLAIN, **how),
            go_on=self.go_on,
        )
        refuse_rejected(outcome, "in a guarded run")
        found = readings(outcome.records)
        if isinstance(found, Unknown) or settings or how.get("reference") or how.get("nudge"):
            return found
        room = lanes.room(self.run, outcome)
        return [msgspec.structs.replace(one, room=room) for one in found]

    def ahead(self, own: Own, asked: Sequence[Asked], roundings: Sequence[float]) -> None:
        """Make untimed runs, including the runs of `refer`, concurrently if memory allows.

        `computed` uses these runs. A run that failed beside other runs is repeated alone by `computed`, since
        a lack of memory or a used port may be the cause.
        """
        if not isinstance(own.reference, Unknown) and not any(one.draws for one in own.first):
            exact = [("guard-float64", (), {"reference": "float64"})] * (own.reference is None)
            shares = [one for one in dict.fromkeys(roundings) if one not in own.rounded]
            asked = [*exact, *((f"guard-rounded-{one:.0e}", (), {"nudge": one}) for one in shares), *asked]
        if (num := min(own.first[0].room, len(asked))) < 2:
            return
        cpus, begun = frozenset(probe.host.usable_cpus()), {}
        with lane_order.SideBySide() as side:
            runs = msgspec.structs.replace(self, made={}, go_on=side.go_on)
            for at, (name, settings, how) in enumerate(asked):
                lane = lanes.Lane(1 + at % num, cpus=cpus)
                begun[name] = side.begin(lane, partial(runs.computed, name, settings, **how))
            for name, future in begun.items():
                with suppress(DynotuneError):
                    if not isinstance(found := future.result(), Unknown):
                        self.made[name] = found

    def baseline(self) -> Own | Unknown:
        """Run the baseline once; all candidates are compared with the baseline's readings."""
        first = self.computed("guard-baseline")
        return first if isinstance(first, Unknown) else Own(first=first)

    def _against_itself(self, own: Own) -> Unknown | None:
        """Run the baseline again, and fill in `own` with the new readings."""
        again = self.computed("guard-baseline-again")
        if isinstance(again, Unknown):
            return again
        if draws := sorted({kind for reading in [*own.first, *again] for kind in reading.draws}):
            redrawn = self.computed("guard-baseline-redrawn", other_draws=draws)
            if isinstance(redrawn, Unknown):
                return redrawn
            own.redrawn = redrawn
        own.again = again
        return None

    def refer(self, own: Own, rounding: float) -> None:
        """Run the baseline in float64 (in float32 if float64 fails), and once rounded as a candidate
        promises."""

        def tried(name: str, **how: Any) -> Readings | Unknown:
            try:
                return self.computed(f"guard-{name}", **how)
            except (CommandFailed, CannotRunHere) as error:
                return Unknown(f"{how.get('reference') or 'rounded'}: {error.message}")

        if own.reference is None and any(reading.draws for reading in own.first):
            own.reference = Unknown("its modules draw random numbers, which other kernels draw otherwise")
        if own.reference is None:
            own.reference = tried("float64", reference="float64")
            if isinstance(own.reference, Unknown) and any(
                reading.precision in BY_PRECISION for reading in own.first
            ):
                own.reference_type, own.reference = "float32", tried("float32", reference="float32")
        if not isinstance(own.reference, Unknown) and rounding not in own.rounded:
            own.rounded[rounding] = tried(f"rounded-{rounding:.0e}", nudge=rounding)

    def compare(self, settings: Sequence[Setting], own: Own, name: str = "guard") -> Guarded | Unknown:
        """Compare the results that the program computes with and without `settings`.

        Settings of effect `sampling`, `semantics` and `system` are left out, because they change results on
        purpose.

        Args:
            own: readings of the baseline; further runs are added if needed.
        """
        chosen = guarded(settings)
        if not chosen:
            return Unknown(NOTHING_ROUNDS)
        rounding = allowed(chosen, own.first[0].precision).rounding
        self.ahead(own, [(name, chosen, {})], [rounding])
        found = self.computed(name, chosen)
        if isinstance(found, Unknown):
            return found
        return self.judged(settings, own, found, name)

    def judged(self, settings: Sequence[Setting], own: Own, found: Readings, name: str) -> Guarded | Unknown:
        """Judge the candidate's results, with as many further runs of the baseline as needed."""
        rounding = allowed(guarded(settings), own.first[0].precision).rounding
        # One different rounding may lead training elsewhere, so no candidate is called wrong before a second
        # such run.
        for share in (rounding, -rounding):
            self.refer(own, share)
            judged = compared(settings, own, found)
            is_told = isinstance(judged, Guarded) and bool(judged.reference)
            if is_told and (_is_clear(judged) or share < 0 or found[0].what == "outputs"):
                return judged
            if not is_told and (_is_clear(judged) or isinstance(own.reference, Unknown)):
                break
        if own.again is None and not _is_clear(judged):
            if unknown := self._against_itself(own):
                return unknown
            judged = compared(settings, own, found)
        if _is_clear(judged):
            return judged
        nudged = own.rounded.get(rounding) or self.computed(f"{name}-nudged", nudge=rounding)
        return judged if isinstance(nudged, Unknown) else compared(settings, own, found, nudged)


def within(settings: Sequence[Setting], event: ArmResults) -> Guarded | Unknown:
    """Judge the agent's records of calls or updates in one running program, with and without the settings."""
    if not guarded(settings):
        return Unknown(NOTHING_ROUNDS)
    plain, redrawn, arm, reference, rounded = (
        Reading(what=event.what, outputs=outputs, draws=event.draws, precision=event.precision)
        for outputs in (event.baseline, event.redrawn, event.candidate, event.reference, event.rounded)
    )
    own = Own(first=[plain])
    if reference.outputs:
        own.reference, own.rounded = (
            [reference],
            {allowed(guarded(settings), plain.precision).rounding: [rounded]},
        )
    found = compared(settings, own, [arm])
    if (isinstance(found, Guarded) and found.ok) or not redrawn.outputs:
        return found
    return compared(settings, Own(first=[plain], redrawn=[redrawn]), [arm])


def _is_clear(judged: Guarded | Unknown) -> bool:
    """Tell whether further runs cannot change the judgement."""
    return isinstance(judged, Unknown) or judged.ok or bool(judged.num_not_finite)


def compared(
    settings: Sequence[Setting], own: Own, arm: Readings, nudged: Readings | None = None
) -> Guarded | Unknown:
    """Judge a candidate by the results of its worst rank; Unknown if the results cannot be judged.

    `nudged`: readings of the baseline with weights moved by a rounding error.
    """
    key = arm_key(settings)
    again = own.first if own.again is None else own.again
    if not len(own.first) == len(again) == len(arm):
        return Unknown(f"the baseline computes in {len(own.first)} processes, the arm in {len(arm)}")
    whats = {reading.what for reading in [*own.first, *again, *arm]}
    if len(whats) > 1:
        return Unknown("the one run trains, and the other does not")
    tolerance = allowed(guarded(settings), next((reading.precision for reading in own.first), ""))
    if (referred := _by_reference(key, own, arm, tolerance)) is not None:
        return referred
    redrawn = own.redrawn if tolerance.redraws and own.redrawn and len(own.redrawn) == len(arm) else None
    others = redrawn or again
    what = arm[0].what
    if nudged is not None and (len(nudged) != len(arm) or any(reading.what != what for reading in nudged)):
        nudged = None
    if nudged is not None and what == "losses":
        # Use the baseline as the reference, and its differences from itself as the errors.
        itself = Own(first=others, reference=own.first, rounded={tolerance.rounding: nudged})
        if (held := _by_reference(key, itself, arm, tolerance, _AGAINST_BASELINE)) is not None:
            if held.ok and held.tolerance > MOST_ALLOWED:
                return Unknown(
                    f"rounding errors alone move its {what} by {held.own:.0%}: beside that nothing can be "
                    "seen"
                )
            plain = {"reference": "", "baseline_error": None, "no_worse": False}
            return msgspec.structs.replace(held, reason=held.reason + _without(own.reference), **plain)
    moved_by_rank: Sequence[Reading | None] = nudged or [None] * len(arm)
    apart = [_apart(ours, mine) for ours, mine in zip(own.first, arm, strict=True)]
    num_not_finite = sum(mine.num_not_finite for mine in apart)
    first_not_finite = min((mine.first_not_finite for mine in apart if mine.first_not_finite), default=0)
    found = [
        judge(
            mine,
            _apart(ours, other),
            tolerance,
            what=what,
            redrawn=redrawn is not None,
            nudged=_apart(ours, moved) if moved is not None else None,
        )
        for mine, ours, other, moved in zip(apart, own.first, others, moved_by_rank, strict=True)
    ]
    known = [one for one in found if one is not None]
    num_values = min(len(mine.signed) for mine in apart)
    if not num_values or not (known or num_not_finite):
        return Unknown(f"none of the baseline's {what} is a finite number")
    none = LargestDifference(0.0, 0.0, 0.0, "no value")
    worst = max(known, key=lambda one: one.difference / one.allowed, default=none)
    if worst.ok and worst.allowed > MOST_ALLOWED and not num_not_finite:
        source = "rounding errors alone move" if nudged else "under one seed, runs of the program itself move"
        return Unknown(f"{source} its {what} by {worst.own:.0%}: {NOTHING_SEEN}")
    source = "other random numbers alone" if redrawn else "two runs of it under one seed"
    source = "rounding errors in its weights alone" if nudged else source
    return Guarded(
        arm=key,
        what=what,
        difference=worst.difference,
        own=worst.own if own.again is not None else None,
        tolerance=worst.allowed,
        num_values=num_values,
        ok=worst.ok and not num_not_finite,
        where=f"value {first_not_finite}" if num_not_finite else worst.where,
        num_not_finite=num_not_finite,
        reason=_not_finite(what, first_not_finite)
        if num_not_finite
        else _reason(what, worst, tolerance, source) + _without(own.reference),
    )


def _by_reference(
    key: str, own: Own, arm: Readings, tolerance: Tolerance, wording: _Wording | None = None
) -> Guarded | None:
    """Judge a candidate by the errors of its worst rank, relative to a reference; None if no reference is
    usable."""
    wording = wording or _Wording(own.reference_type, "rounding explains")
    what = arm[0].what
    rounded = own.rounded.get(tolerance.rounding)
    if isinstance(own.reference, Unknown | None) or isinstance(rounded, Unknown | None):
        return None
    others = own.rounded.get(-tolerance.rounding)
    others = rounded if isinstance(others, Unknown | None) or len(others) != len(rounded) else others
    sides = list(zip(own.reference, own.first, rounded, others, arm, strict=False))
    if len(sides) != len(arm) or any(one.what != what for side in sides for one in side):
        return None
    found = []
    for reference, ours, moved, other, mine in sides:
        apart = [_apart(reference, one).signed for one in (mine, ours, moved, other)]
        judged, plainly = noise.judge(*apart, least=tolerance.least), noise.judge(*apart[:2])
        num_missing = max(0, ours.num_values - mine.num_values)
        if (
            judged is None
            or plainly is None
            or judged.own > MOST_ALLOWED
            or _apart(ours, mine).num_not_finite
        ):
            return None
        if judged.verdict == "undecided" and not num_missing:
            return None
        is_ok = judged.verdict == "no worse" and not num_missing
        module = "" if is_ok else _first_departure(tolerance.least, reference, ours, moved, mine)
        found.append(
            Guarded(
                arm=key,
                what=what,
                difference=judged.error,
                own=judged.own,
                tolerance=noise.NO_WORSE * judged.own,
                num_values=min(ours.num_values, mine.num_values),
                ok=is_ok,
                where="" if judged.beyond is None else f"value {judged.beyond + 1}",
                reason=_reason_by_reference(what, judged, wording, tolerance, num_missing, module),
                reference=own.reference_type,
                ratio=judged.ratio,
                ci=judged.ci,
                error_ci=judged.error_ci,
                baseline_error=plainly.own,
                no_worse=plainly.verdict == "no worse",
                module=module,
            )
        )
    return min(found, key=lambda one: (one.ok, -(one.ratio or 0.0)))


def _first_departure(least: float, *sides: Reading) -> str:
    """Return the first module with errors beyond rounding errors. `sides`: reference, baseline, rounded,
    candidate."""
    exact, ours, moved, mine = (dict(one.parts) for one in sides)
    for name in mine:
        if name in exact and name in ours and name in moved:
            errors = [outputs_apart([exact[name]], [one[name]]).signed[0] for one in (mine, ours, moved)]
            error, *others = (math.inf if one is None else abs(one) for one in errors)
            if max(others) < math.inf and error > noise.NO_WORSE * max(*others, least):
                return name
    return ""


def _reason_by_reference(
    what: str,
    judged: noise.JudgedErrors,
    wording: _Wording,
    tolerance: Tolerance,
    num_missing: int,
    module: str,
) -> str:
    if num_missing:
        return f"{num_missing} of the {what} that the baseline computes are missing."
    ends = {"no worse": "no worse", "worse": f"worse by {judged.ratio:.3g} times"}[judged.verdict]
    if judged.beyond is not None:
        ends = f"value {judged.beyond + 1} lies beyond that"
    where = f", from module {module} on" if module else ""
    explained = f"{wording.explains} {_percent(judged.own)} ({tolerance.why})"
    return (
        f"{what.capitalize()} lie {_percent(judged.error)} from {wording.reference}; {explained}: "
        f"{ends}{where}."
    )


def _not_finite(what: str, first: int) -> str:
    """Name the call at which results become NaN: of backward, or of the model in a program that trains
    none."""
    if what == "updates":
        return "Updates of parameters become NaN or infinite, where the baseline's are finite."
    call = "backward" if what == "losses" else "the model"
    place = f"call {first} of {call} (step {first}, if each step makes one)"
    return f"{what.capitalize()} become NaN or infinite at {place}, where the baseline's are finite."


def _reason(what: str, worst: LargestDifference, tolerance: Tolerance, source: str) -> str:
    one = {"losses": "loss", "outputs": "output", "updates": "update"}[what]
    differ = f"{worst.where.capitalize()} ({one}) differs by {_percent(worst.difference)} from the baseline's"
    limit = f"{_percent(worst.allowed)} is allowed for {tolerance.why}"
    if worst.own and worst.allowed > max(tolerance.first, tolerance.later, tolerance.outputs):
        limit = (
            f"{_percent(worst.allowed)} is allowed, since {source} make {_percent(worst.own)} of difference"
        )
    return f"{differ}; {limit}."


def _without(reference: Readings | Unknown | None) -> str:
    if isinstance(reference, Unknown):
        return f" No more exact run could tell: {reference.reason}."
    return " Errors against a more exact run leave it open." if reference else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 10 else "more than 1000%"


def _apart(ours: Reading, others: Reading) -> Apart:
    if ours.what == "losses":
        return losses_apart(ours.losses, others.losses)
    return outputs_apart(ours.outputs, others.outputs)
