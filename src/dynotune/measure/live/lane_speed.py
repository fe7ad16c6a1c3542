"""Leave out the lanes in which steps take longer than on the whole machine.

The cause may be too few cores, a shared disk or a slower GPU. A setting's effect in such a lane says little
to the user.
"""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from dynotune import probe
from dynotune.measure.live.lane_order import SideBySide
from dynotune.measure.live.lanes import AUTO, VISIBLE, WHOLE, Lane, Notes, divide
from dynotune.measure.live.live_run import num_ranks
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.readiness import steady_steps
from dynotune.measure.live.warmup import batch_means
from dynotune.measure.live.window_length import PRIOR_BETWEEN_RUNS
from dynotune.measure.live.window_plan import steps_from
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.run import RunSpec
from dynotune.text import words

SURE = 3.0
"""Standard errors by which a lane must be slower; with fewer, one of eight equal lanes would often be left
out."""
Launch = Callable[[Lane], Outcome]


def alike(
    run: RunSpec, among: Sequence[Lane], alone: Outcome, side: SideBySide, launch: Launch, notes: Notes
) -> list[Lane]:
    """Return the lanes in which steps take hardly longer than on the whole machine; `WHOLE` if fewer than
    two.

    `alone`: pilot of the command on the whole machine. `launch`: function that runs such a pilot in a lane.

    Raises UsageError: the program itself uses several GPUs, and lanes were requested by number.
    """
    num = max([num_ranks(alone.records), *(process.num_devices or 0 for process in alone.run.processes)])
    moves = [
        change for process in alone.run.processes for change in process.environment_changes if not change.kept
    ]
    why = f"Lanes are for a program of one GPU, and this one has {num} ranks or GPUs." if num > 1 else ""
    if any(change.name == VISIBLE for change in moves) and among and among[0].gpu:
        why = f"The program sets {VISIBLE} itself, so it would leave its lane."
    if among and why:
        if run.lanes != AUTO:
            raise UsageError(why, hint="Leave --lanes out.")
        notes.say(why)
        among = []
    cores = probe.host.cores(probe.host.usable_cpus())
    if len(among) > (num_cpus := sum(map(len, cores))):
        notes.say(f"There are {num_cpus} logical processors, so there are no more lanes than that.")
    among = among[:num_cpus]
    while len(among) > 1:
        notes.running(f"the command in {len(among)} lanes at once")
        made = divide(among, cores)
        pilots = {}
        with side:
            begun = {lane: side.begin(lane, functools.partial(launch, lane)) for lane in made}
            for lane, future in begun.items():
                try:
                    pilots[lane] = future.result()
                except DynotuneError as error:
                    notes.say(f"Lane {lane.number} is left out: {error.message}")
        slow = slower(alone, pilots)
        for lane, (share, noise) in slow.items():
            notes.say(
                f"Lane {lane.number} is left out: steps take {share:.1%} longer there; {noise:.1%} may be "
                "noise."
            )
        told = {"with the whole machine": alone} | {f"in lane {lane.number}": pilots[lane] for lane in pilots}
        paces = [f"{words.duration(_step_s(outcome))} {where}" for where, outcome in told.items()]
        notes.say(f"A step takes {', '.join(paces)}; {len(made)} lanes ran at once.")
        if len(found := [lane for lane in pilots if lane not in slow]) > 1:
            notes.say(f"Fresh runs go side by side in {len(found)} lanes.")
            return found
        among = among[: len(among) // 2]
    if run.lanes != 1:
        notes.say("Runs go one after another.")
    return [WHOLE]


def slower(alone: Outcome, together: Mapping[Lane, Outcome]) -> dict[Lane, tuple[float, float]]:
    """Return by which share slow lanes exceed the machine alone, or the middle lane, and how much of it may
    be noise.

    A lane is slow if its excess is above the noise. `alone` may be slower than all lanes, since the first run
    reads a cold disk. One fast lane does not make the others slow: runs that wait for the host differ by a
    tenth.
    """
    paces = {lane: _pace(outcome) for lane, outcome in {WHOLE: alone, **together}.items()}
    best, best_se = min(
        paces[WHOLE], statistics.median_high([paces[lane] for lane in together] or [paces[WHOLE]])
    )
    found = {}
    for lane in together:
        log, se = paces[lane]
        # Two runs in one lane differ as well, by an amount that a single pilot cannot show.
        noise = math.expm1(SURE * math.sqrt(se**2 + best_se**2 + 2 * PRIOR_BETWEEN_RUNS**2))
        if (share := math.expm1(log - best)) > noise:
            found[lane] = share, noise
    return found


def _step_s(outcome: Outcome) -> float | None:
    log, _ = _pace(outcome)
    return math.exp(log) if math.isfinite(log) else None


def _pace(outcome: Outcome) -> tuple[float, float]:
    """Return the log of a steady step's time, and its standard error; infinite if there are too few steps."""
    record = outcome.records[0]
    times = steps_from(steady_steps(record) or len(record.steps) // 2, record)
    if not times:
        return math.inf, math.inf
    means, mean = batch_means(times), statistics.fmean(times)
    return math.log(mean), statistics.stdev(means) / math.sqrt(len(means)) / mean if len(
        means
    ) > 1 else math.inf
