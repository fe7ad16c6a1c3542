"""What the last seconds say: the cause in one sentence, since which step, and what is wrong enough for an alert."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Cause, GpuView, ProcessView, Shares
from dynotune.text import words
from dynotune.watch.store import Series, Store

WINDOW_S, LONGEST_WINDOW_S, FEWEST_STEPS = 10.0, 60.0, 10
INPUT_BOUND, DEVICE_BOUND = 0.25, 0.85
FEWEST_BINS, LONG_STEP_S, FEWEST_LONG = 5, 5.0, 3
"""Seconds with steps that a pace needs; steps that are long fill fewer."""
MINUTE_S = 60.0
DROP = 0.9
"""Below this share of its own past a pace is an alert, if it is also below `BELOW_ALL` of all that was there."""
BELOW_ALL = 0.97
PAST_S = (20.0, 30)
"""The past ends this long before now, and is at least so many looks."""
LOOKS = 3
MORE_CORES = 0.25
LAG = 1.1
STALL_S, STALL_STEPS, BUSY_STALL_S = 10.0, 10.0, 300.0
QUIET_CORES, QUIET_DEVICE = 0.1, 5.0
WARM_S = 30.0
GROWTH = ((15.0, 600.0), (120.0, 3600.0), (600.0, 86400.0))
"""Seconds in which memory grew all along, and in how many more it would be full."""
LEAST_GROWTH_BYTES = 64 << 20
SLOWING = ("sw-power-cap", "hw-slowdown", "sw-thermal", "hw-thermal", "hw-power-brake")
CAUSES: dict[Cause, str] = {
    "input": "Input-bound: the loader lets each step wait {input} of its time",
    "device": "Device-bound: a kernel runs {device} of the time, and steps wait {input} for input",
    "host": "Host-bound: no kernel runs {idle} of the time, and steps wait only {input} of it for input",
    "cpu": "Compute-bound on the CPU: {cores} of {num_cpus} cores are busy, and steps wait {input} for input",
    "waiting": "The program waits outside of its loader: {cores} of {num_cpus} cores are busy",
}


class Look(NamedTuple):
    """What is known at one moment."""

    now: float
    begun_s: float
    store: Store
    gpus: Sequence[GpuView]
    rows: Sequence[ProcessView]
    history: dict[int, deque[tuple[float, str]]]
    lost_workers: Sequence[int]
    room_bytes: int | None
    num_cpus: int

    @property
    def ranks(self) -> list[str]:
        return self.store.whose("step")

    def mean(self, name: str, whose: str = "", length_s: float = WINDOW_S) -> float | None:
        found = self.store.of(name, whose).over(self.now - length_s)
        return found.mean if found.num else None

    @property
    def device_percent(self) -> float | Unknown:
        found = [self.mean("gpu.utilisation_percent", gpu) for gpu in self.store.whose("gpu.utilisation_percent")]
        known = [value for value in found if value is not None]
        return fmean(known) if known else Unknown("no GPU says so")


class Moment(NamedTuple):
    """Of the past, a look each second: the number of steps then, the cause, the pace, and whether it was as ever."""

    at_s: float
    step: int
    cause: Cause
    pace_s: float | None
    shares: Shares | None
    usual: bool


def window_s(look: Look, rank: str) -> float:
    """Ten seconds, or as long as ten steps take."""
    bins = look.store.of("step", rank).newest(look.now - LONGEST_WINDOW_S)
    num = 0
    for each in reversed(bins):
        num += each.num
        if num >= FEWEST_STEPS:
            return max(WINDOW_S, look.now - each.begin_s)
    return LONGEST_WINDOW_S


def shares(look: Look, length_s: float | None = None) -> Shares | None:
    """Where the steps' time went lately; None without steps."""
    step_s = wait_s = 0.0
    for rank in look.ranks:
        begin_s = look.now - (length_s or window_s(look, rank))
        step_s += look.store.of("step", rank).over(begin_s).total
        wait_s += look.store.of("wait", rank).over(begin_s).total
    if not step_s:
        return None
    percent, waits = look.device_percent, wait_s / step_s
    device = percent if isinstance(percent, Unknown) else percent / 100
    rest = 1 - waits - (0.0 if isinstance(device, Unknown) else device)
    return Shares(input=waits, device=device, rest=max(0.0, rest))


def cause_of(look: Look, seen: Shares) -> Cause:
    busy = not isinstance(seen.device, Unknown) and seen.device >= DEVICE_BOUND
    if seen.input >= INPUT_BOUND and not busy:
        return "input"
    if not isinstance(seen.device, Unknown) and seen.device > QUIET_DEVICE / 100:
        return "device" if busy else "host"
    cores = look.mean("cores")
    return "waiting" if cores is not None and cores < 0.5 else "cpu"


def pace_s(look: Look, rank: str) -> float | None:
    """Median over the last seconds of their mean step: a pause in between does not move it."""
    bins = look.store.of("step", rank).newest(look.now - max(WINDOW_S, min(LONGEST_WINDOW_S, window_s(look, rank))))
    means = [each.mean for each in bins]
    if not means or len(means) < (FEWEST_BINS if median(means) < LONG_STEP_S else FEWEST_LONG):
        return None
    # Of what has passed already, the last three seconds know.
    return min(median(means), median(means[-3:]))


def usual_pace_s(look: Look, past: Sequence[Moment]) -> tuple[float, float] | None:
    """Median and slowest pace of the looks that were as usual; None where there are too few to say."""
    end_s = look.now - PAST_S[0]
    found = [each.pace_s for each in past if each.usual and each.pace_s and each.at_s <= end_s]
    return (median(found), max(found)) if len(found) >= PAST_S[1] else None


def is_slow(pace: float | None, usual_s: tuple[float, float] | None) -> bool:
    return pace is not None and usual_s is not None and pace * DROP > usual_s[0] and pace * BELOW_ALL > usual_s[1]


def loader_reason(look: Look) -> str:
    """Why the loader is late, by what its workers do; may be empty."""
    workers = [row for row in look.rows if row.role.startswith("worker")]
    past = [list(look.history.get(row.pid, ())) for row in workers]
    known = [each for each in past if each]
    if not look.rows:
        return ""
    if not workers:
        return "no worker processes: the program makes its batches itself"
    disk = sum(fmean(state == "at its disk" for _, state in each) >= 0.3 for each in known)
    busy = sum(fmean(cores for cores, _ in each) >= 0.8 for each in known)
    idle = sum(fmean(cores for cores, _ in each) < 0.1 for each in known)
    num = len(workers)
    if look.lost_workers:
        return f"worker {look.lost_workers[-1]} has ended, and {num} of its loader go on"
    if stopped := [row.pid for row in workers if row.state == "stopped"]:
        return f"worker {stopped[0]} is stopped"
    if disk:
        return f"{disk} of {num} workers are at their disk"
    others = look.mean("others")
    if others is not None and others > look.num_cpus / 4 and not idle:
        return f"other processes use {others:.1f} of {look.num_cpus} cores"
    if busy == num:
        return f"all {num} workers compute all the time"
    return f"{idle} of {num} workers sleep or wait, outside of the CPU" if idle else ""


def sentence(look: Look, seen: Shares, cause: Cause) -> str:
    """The cause in words, with what belongs to it."""
    device = None if isinstance(seen.device, Unknown) else seen.device
    cores = look.mean("cores")
    text = CAUSES[cause].format(
        input=words.share(seen.input),
        device=words.share(device),
        idle=words.share(None if device is None else 1 - device),
        cores="unknown" if cores is None else f"{cores:.1f}",
        num_cpus=look.num_cpus,
    )
    reason = loader_reason(look) if cause == "input" else device_reason(look) if cause in ("device", "host") else ""
    return f"{text} ({reason})" if reason else text


def device_reason(look: Look) -> str:
    shared = [f"GPU {gpu.nvml_index} is shared with {other}" for gpu in look.gpus for other in gpu.others]
    slowed = [
        f"the clock of GPU {gpu.nvml_index} is limited: {', '.join(limits)}"
        for gpu in look.gpus
        if (limits := [name for name in gpu.clock_limits if name in SLOWING])
    ]
    return "; ".join([*shared, *slowed][:2])


def lags(look: Look) -> dict[str, str]:
    """Ranks that are behind the others, and in what."""
    ranks = look.ranks
    if len(ranks) < 2:
        return {}
    step, wait = {}, {}
    for rank in ranks:
        begin_s = look.now - window_s(look, rank)
        steps, waits = look.store.of("step", rank).over(begin_s), look.store.of("wait", rank).over(begin_s)
        if steps.num >= 3:
            step[rank], wait[rank] = steps.quantile(0.5), waits.mean
    found = {}
    for rank in step:
        others = [other for other in step if other != rank]
        if not others:
            continue
        usual_s, usual_wait_s = median(step[other] for other in others), median(wait[other] for other in others)
        if wait[rank] - usual_wait_s > (LAG - 1) * usual_s:
            found[rank] = f"it waits {words.duration(wait[rank] - usual_wait_s)} longer for input in each step"
        elif step[rank] > LAG * 1.02 * usual_s:
            found[rank] = (
                f"its steps take {words.duration(step[rank])}, those of the others {words.duration(usual_s)}, "
                "and not because of input: look at its forward, backward, cores and GPU"
            )
    return found


# Alerts: each a function of what is known now, and of the looks before where it compares.


def input_bound(look: Look) -> Iterator[Alert]:
    seen = shares(look, MINUTE_S)
    first_s = min((look.store.of("step", rank).first_s for rank in look.ranks), default=look.now)
    if seen is None or look.now - first_s < MINUTE_S or cause_of(look, seen) != "input":
        return
    reason = loader_reason(look)
    yield Alert(
        id="input-bound",
        text=f"Steps waited {words.share(seen.input)} of the last minute for input"
        + (f": {reason}." if reason else "."),
    )


def memory_growth(look: Look, typical_s: float | None) -> Iterator[Alert]:
    steps = [look.store.of("step", rank).ever.num for rank in look.ranks]
    if not steps or look.now - look.begun_s < WARM_S or not typical_s:
        return
    asked: list[tuple[str, str, Series, float | None]] = [("", "The run", look.store.of("rss"), look.room_bytes)]
    for gpu in look.gpus:
        used, all_ = gpu.memory_used_bytes, gpu.memory_bytes
        room = None if isinstance(used, Unknown) or isinstance(all_, Unknown) else all_ - used
        series = look.store.of("gpu.memory_used_bytes", str(gpu.nvml_index))
        asked.append((str(gpu.nvml_index), f"GPU {gpu.nvml_index}", series, room))
    for whose, name, series, room in asked:
        per_s = None if room is None else growth(series, look.now, room)
        if per_s is None or room is None:
            continue
        full_s = room / per_s
        yield Alert(
            id="memory-growth",
            whose=whose,
            text=f"{name} takes {words.num_bytes(per_s * 60)} more memory each minute: the "
            f"{words.num_bytes(room)} left would be used up in {words.duration(full_s)}, "
            f"at about step {max(steps) + int(full_s / typical_s):,}.",
        )


def growth(series: Series, now: float, room_bytes: float) -> float | None:
    """Bytes a second, where it grew all along and would soon be full; None elsewhere."""
    for length_s, full_s in GROWTH:
        bins = series.newest(now - length_s)
        if not bins or bins[-1].begin_s - bins[0].begin_s < 0.8 * length_s:
            continue
        parts = [bins[len(bins) * at // 6 : len(bins) * (at + 1) // 6] for at in range(6)]
        lows = [min(each.mean for each in part) for part in parts if part]
        if len(lows) < 6 or any(later <= earlier for earlier, later in itertools.pairwise(lows)):
            continue
        per_s = (lows[-1] - lows[0]) / (length_s * 5 / 6)
        if lows[-1] - lows[0] >= LEAST_GROWTH_BYTES and room_bytes / per_s < full_s:
            return per_s
    return None


def throughput_drop(look: Look, past: Sequence[Moment]) -> Iterator[Alert]:
    pace = pace_s(look, look.ranks[0]) if look.ranks else None
    usual = usual_pace_s(look, past)
    # What passes within so many looks is no change.
    if pace is None or usual is None or not is_slow(pace, usual) or any(each.usual for each in list(past)[-LOOKS:]):
        return
    usual_s = usual[0]
    earlier = [each for each in past if each.usual]
    seen, grew = shares(look), []
    before = [each.shares for each in earlier if each.shares]
    if seen is not None and before:
        input_before_s = fmean(each.input for each in before) * usual_s
        if seen.input * pace - input_before_s > (pace - usual_s) / 2:
            grew.append("the wait for input grew" + (f" ({reason})" if (reason := loader_reason(look)) else ""))
        devices = [each.device for each in before if not isinstance(each.device, Unknown)]
        if devices and not isinstance(seen.device, Unknown) and seen.device < fmean(devices) - 0.05 and not grew:
            grew.append("the GPU idles more: the host does more between its kernels")
    if not grew:
        whose = (("others", "other processes use"), ("cores", "the program itself uses"))
        grew = [
            f"{who} {cores[0]:.1f} of {look.num_cpus} cores, {cores[1]:.1f} before"
            for name, who in whose
            if (cores := now_and_before(look, name)) is not None and cores[0] > cores[1] + MORE_CORES
        ]
    why = grew + ([reason] if (reason := device_reason(look)) else [])
    yield Alert(
        id="throughput-drop",
        text=f"Steps take {words.duration(pace)}, {100 * (1 - usual_s / pace):.0f}% less throughput than before "
        f"({words.duration(usual_s)})" + (f": {'; '.join(why)}." if why else ": nothing that is watched says why."),
    )


def now_and_before(look: Look, name: str) -> tuple[float, float] | None:
    """Mean of the last ten seconds, and of the minutes before; None where one is not known."""
    end_s = look.now - PAST_S[0]
    before = [each.mean for each in look.store.of(name).newest(end_s - 2 * MINUTE_S) if each.begin_s < end_s]
    now = look.mean(name)
    return (now, fmean(before)) if before and now is not None else None


def rank_lag(look: Look) -> Iterator[Alert]:
    for rank, why in lags(look).items():
        yield Alert(id="rank-lag", whose=rank, text=f"Rank {rank} lags: {why}.")


def stalled(look: Look) -> Iterator[Alert]:
    """No step for long, and nothing of the run is at work; or for very long."""
    for rank in look.ranks[:1]:
        step = look.store.of("step", rank)
        since_s = look.now - max(look.store.of("step", each).last_s for each in look.ranks)
        usual_s = step.ever.quantile(0.5)
        longest_s = step.ever.most if step.ever.num > 1 else 0.0
        cores = look.mean("cores", length_s=5.0)
        cores, device = look.mean("cores") if cores is None else cores, look.device_percent
        quiet = cores is not None and cores < QUIET_CORES and (isinstance(device, Unknown) or device < QUIET_DEVICE)
        if since_s > max(STALL_S if quiet else BUSY_STALL_S, STALL_STEPS * usual_s, 2 * longest_s):
            yield Alert(
                id="stalled",
                text=f"No step for {words.duration(since_s)} (usual: {words.duration(usual_s)})"
                + (", and no process computes." if quiet else ", though its processes or its GPU are busy."),
            )


def device_shared(look: Look) -> Iterator[Alert]:
    for gpu in look.gpus:
        if gpu.others:
            text = f"GPU {gpu.nvml_index} is shared: kernels of {', '.join(gpu.others[:3])}."
            yield Alert(id="device-shared", whose=str(gpu.nvml_index), text=text)


def alerts(look: Look, past: Sequence[Moment], typical_s: float | None) -> list[Alert]:
    """All of them; a program that stands still is not judged by its pace."""
    still = [*stalled(look), *memory_growth(look, typical_s), *device_shared(look)]
    if still and still[0].id == "stalled":
        return still
    return [*input_bound(look), *throughput_drop(look, past), *rank_lag(look), *still]


def changed(past: Sequence[Moment], cause: Cause) -> tuple[Moment | None, Moment | None]:
    """The first look of the present cause, and the last of the one before; a second of another is no change."""
    first = before = None
    num_other = 0
    for each in reversed(past):
        if each.cause == cause:
            first, num_other = each, 0
        elif each.cause:
            num_other += 1
            before = each if num_other == 1 else before
            if num_other == 3:
                return first, before
    return first, None


def refined(store: Store, rank: str, first: Moment, before: Moment) -> int:
    """The step with which it began: the first second whose steps are nearer to what came after than to what was."""
    old_s, new_s = before.pace_s or math.nan, first.pace_s or math.nan
    bins = [each for each in store.of("step", rank).newest(before.at_s - WINDOW_S) if each.begin_s <= first.at_s]
    after = store.of("step", rank).newest(first.at_s)
    new_s = median(each.mean for each in after) if after else new_s
    return next((each.first for each in bins if abs(each.mean - new_s) < abs(each.mean - old_s)), first.step)
