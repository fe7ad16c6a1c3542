"""Analyse the last seconds: the bottleneck in one sentence, its first step, and faults serious enough for an
alert.

Each second's data (`Look`) become a result (`Moment`); a `Change` is a result unlike the past ones. The guide
explains the alerts.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Cause, GpuView, ProcessView
from dynotune.text import words
from dynotune.watch.store import Bin, Series, Store

WINDOW_S, LONGEST_WINDOW_S, FEWEST_STEPS = 10.0, 60.0, 10
MINUTE_S = 60.0
INPUT_BOUND, DEVICE_BOUND, DEVICE_IDLE = 0.25, 0.85, 0.05
STILL = 0.6
"""Fraction of a cause's threshold: the cause stays until its share falls below this, since ten-second shares
vary."""
FEWEST_BINS, LONG_STEP_S, FEWEST_LONG = 5, 5.0, 3
"""Seconds with steps that are needed to compute a pace; fewer seconds are enough if steps are long."""
DROP, BELOW_ALL = 0.9, 0.97
"""A pace is slow below this share of its usual past, if it is also below this share of the slowest usual
pace."""
PAST_S, FEWEST_PAST, MOST_MOMENTS, LOOKS = 20.0, 30, 600, 3
"""The past ends this long before now, and has at least this many looks. Changes within three looks are
ignored."""
MORE_CORES, LAG = 0.25, 0.1
HALTED_S = 3.0
"""Seconds without a step after which a stopped process explains the pause."""
STALL_S, STALL_STEPS, BUSY_STALL_S, QUIET_CORES = 10.0, 10.0, 300.0, 0.1
WARM_S, LEAST_GROWTH_BYTES = 30.0, 64 << 20
GROWTH = ((15.0, 600.0), (120.0, 3600.0), (600.0, 86400.0))
"""Seconds during which memory has grown steadily, and further seconds within which the memory would be
full."""
SLOWING = {"sw-power-cap", "hw-slowdown", "sw-thermal", "hw-thermal", "hw-power-brake"}
ON_THE_HOST: tuple[Cause, ...] = ("input", "host", "cpu")
NONE_FREE = 0.9
"""Share of the cores that are busy when no core is free."""
CAUSES: dict[Cause, str] = {
    "input": "Input-bound: the loader lets each step wait {input} of its time",
    "device": "Device-bound: a kernel runs {device} of the time, and steps wait {input} for input",
    "host": "Host-bound: no kernel runs {idle} of the time, and steps wait only {input} of it for input",
    "cpu": "Compute-bound on the CPU: {cores} of {num_cpus} cores are busy, and steps wait {input} for input",
    "waiting": "The program waits outside of its loader: {cores} of {num_cpus} cores are busy",
}

HEADLINES: dict[Cause, str] = {
    "input": "waits for input",
    "device": "the device sets the pace",
    "host": "the host sets the pace",
    "cpu": "computes on the CPU",
    "waiting": "waits outside of the loader",
    "stalled": "stalled",
}


class Shares(NamedTuple):
    """Shares of the time of steps: waits for input, and kernels on the GPU."""

    input: float
    device: float | None


class Look(NamedTuple):
    """All data about a run at one point in time."""

    now: float
    begun_s: float
    store: Store
    gpus: Sequence[GpuView]
    rows: Sequence[ProcessView]
    room_bytes: int | None
    num_cpus: int
    step: int

    @property
    def ranks(self) -> list[str]:
        return self.store.whose("step")

    def lately(self, name: str, whose: str = "", length_s: float = WINDOW_S) -> Bin:
        return self.store.of(name, whose).over(self.now - length_s)

    def mean(self, name: str) -> float | None:
        """Return a value's mean over the last ten seconds and over all ranks or GPUs that have the value."""
        found = [
            mean for whose in self.store.whose(name) if not math.isnan(mean := self.lately(name, whose).mean)
        ]
        return fmean(found) if found else None

    def window_s(self, rank: str) -> float:
        """Return ten seconds, or the time of ten steps if that is longer."""
        num = 0
        for each in reversed(self.store.of("step", rank).bins(self.now - LONGEST_WINDOW_S)):
            num += each.num
            if num >= FEWEST_STEPS:
                return max(WINDOW_S, self.now - each.begin_s)
        return LONGEST_WINDOW_S

    def shares(self, length_s: float | None = None) -> Shares | None:
        """Return recent shares of the time of steps; None without steps."""
        step_s, wait_s = (
            sum(self.lately(name, rank, length_s or self.window_s(rank)).total for rank in self.ranks)
            for name in ("step", "wait")
        )
        if not step_s:
            return None
        percent = self.mean("gpu.kernel_running_percent")
        return Shares(wait_s / step_s, None if percent is None else percent / 100)

    def pace_s(self) -> float | None:
        """Return the median over recent seconds of the first rank's mean step, which a pause does not
        change."""
        found = (
            [each.mean for each in self.steps(self.now - self.window_s(self.ranks[0]))] if self.ranks else []
        )
        if not found or len(found) < (FEWEST_BINS if median(found) < LONG_STEP_S else FEWEST_LONG):
            return None
        # The last three seconds already show whether the change has passed.
        return min(median(found), median(found[-3:]))

    def steps(self, begin_s: float) -> list[Bin]:
        """Return the first rank's steps, grouped by second."""
        return self.store.of("step", self.ranks[0]).bins(begin_s)


class Moment(NamedTuple):
    """Results for one second; `is_usual` unless the pace was slow."""

    at_s: float
    step: int
    cause: Cause
    pace_s: float | None
    shares: Shares | None
    cores: float | None
    others: float | None
    is_usual: bool = True


class Change(NamedTuple):
    """Change of the bottleneck: last second of the old cause, first second and first step of the new
    cause."""

    before: Moment
    first: Moment
    step: int


class Analysis:
    """Analyses second after second, and keeps the results."""

    def __init__(self) -> None:
        self.past: deque[Moment] = deque(maxlen=MOST_MOMENTS)

    def judge(self, look: Look) -> tuple[Moment, list[Alert], Change | None]:
        """Return this second's result, the alerts, and the change that led to the present cause."""
        shares, pace_s = look.shares(), look.pace_s()
        usual = [
            each for each in self.past if each.is_usual and each.pace_s and each.at_s <= look.now - PAST_S
        ]
        is_usual = pace_s is None or len(usual) < FEWEST_PAST
        if pace_s is not None and not is_usual:
            paces = [each.pace_s or 0.0 for each in usual]
            is_usual = pace_s * DROP <= median(paces) or pace_s * BELOW_ALL <= max(paces)
        stalls = list(stalled(look))
        before = self.past[-1].cause if self.past else ""
        cause = "stalled" if stalls else cause_of(look, shares, before) if shares else ""
        now = Moment(
            look.now, look.step, cause, pace_s, shares, look.mean("cores"), look.mean("others"), is_usual
        )
        found = [*stalls, *memory_growth(look), *device_shared(look)]
        if not stalls:  # a stalled program has no pace to judge
            found += [*input_bound(look), *rank_lag(look)]
            if not (is_usual or any(each.is_usual for each in list(self.past)[-LOOKS:])):
                found += throughput_drop(look, now, usual)
        change = self._change(look, now)
        self.past.append(now)
        return now, found, change

    def _change(self, look: Look, now: Moment) -> Change | None:
        """Return a change of the cause if the new cause has lasted for at least three seconds."""
        first, before, num_other = now, now, 0
        for each in reversed(self.past):
            if each.cause == now.cause:
                first, num_other = each, 0
            elif each.cause:
                num_other += 1
                before = each if num_other == 1 else before
                if num_other == LOOKS:
                    return Change(before, first, _first_step(look, before, first)) if look.ranks else None
        return None


def _first_step(look: Look, before: Moment, first: Moment) -> int:
    """Return the first second whose steps resemble the steps after the change more than the steps before."""
    old_s, after = before.pace_s or math.nan, [each.mean for each in look.steps(first.at_s)]
    new_s = median(after) if after else first.pace_s or math.nan
    bins = [each for each in look.steps(before.at_s - WINDOW_S) if each.begin_s <= first.at_s]
    return next((each.first for each in bins if abs(each.mean - new_s) < abs(each.mean - old_s)), first.step)


# The cause, and its reasons


def cause_of(look: Look, shares: Shares, before: Cause = "") -> Cause:
    device = shares.device or 0.0
    if shares.input >= INPUT_BOUND * (STILL if before == "input" else 1.0) and device < DEVICE_BOUND:
        return "input"
    if device > DEVICE_IDLE:
        return "device" if device >= DEVICE_BOUND else "host"
    return "waiting" if (look.mean("cores") or 1.0) < 0.5 else "cpu"


def sentence(look: Look, now: Moment) -> str:
    """Return a sentence on the cause and its reason."""
    if now.shares is None or now.cause not in CAUSES:
        return ""
    shares, cores = now.shares, words.UNKNOWN if now.cores is None else f"{now.cores:.1f}"
    idle = None if shares.device is None else words.share(1 - shares.device)
    values = {
        "input": words.share(shares.input),
        "device": words.share(shares.device),
        "idle": idle,
        "cores": cores,
    }
    text = CAUSES[now.cause].format(**values, num_cpus=look.num_cpus)
    if _are_cores_taken(look, now):
        others = f"Other programs take {look.mean('others'):.1f} of {look.num_cpus} cores"
        return f"{others}, so steps are slow. {text}"
    reason = loader_reason(look) if now.cause == "input" else _device_reason(look)
    return f"{text} ({reason})" if reason else text


def headline(look: Look, now: Moment) -> str:
    """Return the cause in a few words; "" without one."""
    text = "other programs take the cores" if _are_cores_taken(look, now) else HEADLINES.get(now.cause, "")
    return text[:1].upper() + text[1:]


def _are_cores_taken(look: Look, now: Moment) -> bool:
    """Tell whether a step that the host sets the pace of has no core free, as other programs use half of
    them."""
    others = look.mean("others") or 0.0
    busy = others + (now.cores or 0.0)
    return now.cause in ON_THE_HOST and others >= look.num_cpus / 2 and busy >= NONE_FREE * look.num_cpus


def loader_reason(look: Look) -> str:
    """Explain why the loader is late, by the state of its workers; may be empty."""
    workers = [row for row in look.rows if row.is_worker]
    num, others = len(workers), look.mean("others") or 0.0
    at_disk = sum(row.at_disk_share >= 0.3 for row in workers)
    cores = [row.cores for row in workers if row.cores is not None]
    busy, idle = sum(each >= 0.8 for each in cores), sum(each < 0.1 for each in cores)
    stopped = [row.pid for row in workers if row.state == "stopped"]
    if not workers:
        return "no worker processes: the program makes its batches itself" if look.rows else ""
    if stopped or at_disk:
        return (
            f"worker {stopped[0]} is stopped" if stopped else f"{at_disk} of {num} workers are at their disk"
        )
    if others > look.num_cpus / 4 and not idle:
        return f"other processes use {others:.1f} of {look.num_cpus} cores"
    waits = f"{idle} of {num} workers sleep or wait, without using a CPU" if idle else ""
    return f"all {num} workers compute all the time" if busy == num else waits


def _device_reason(look: Look) -> str:
    shared = [f"GPU {gpu.nvml_index} is shared with {other}" for gpu in look.gpus for other in gpu.others]
    limits = {gpu.nvml_index: sorted(SLOWING.intersection(gpu.clock_limits)) for gpu in look.gpus}
    slowed = [
        f"the clock of GPU {index} is limited: {', '.join(names)}" for index, names in limits.items() if names
    ]
    return "; ".join([*shared, *slowed][:2])


# Alerts


def throughput_drop(look: Look, now: Moment, usual: Sequence[Moment]) -> Iterator[Alert]:
    pace_s, usual_s = now.pace_s or 0.0, median(each.pace_s or 0.0 for each in usual)
    why = [each for each in (_grown(look, now, usual, pace_s, usual_s), _device_reason(look)) if each]
    text = f"Steps take {words.duration(pace_s)}, {1 - usual_s / pace_s:.0%} less throughput than before "
    text += f"({words.duration(usual_s)}): {'; '.join(why) or 'nothing that is watched says why'}."
    yield Alert(id="throughput-drop", text=text)


def _grown(look: Look, now: Moment, usual: Sequence[Moment], pace_s: float, usual_s: float) -> str:
    """Return as text what takes longer in a step than before: the input, the host, or another user of the
    cores."""
    before = [each.shares for each in usual if each.shares]
    if now.shares and before:
        more_s = now.shares.input * pace_s - fmean(each.input for each in before) * usual_s
        if more_s > (pace_s - usual_s) / 2:
            return "the wait for input grew" + (f" ({reason})" if (reason := loader_reason(look)) else "")
        devices = [each.device for each in before if each.device is not None]
        if devices and now.shares.device is not None and now.shares.device < fmean(devices) - 0.05:
            return "the GPU is idle for longer: the host does more between kernels"
    for who, cores, earlier in (
        ("other processes use", now.others, [each.others for each in usual if each.others is not None]),
        ("the program itself uses", now.cores, [each.cores for each in usual if each.cores is not None]),
    ):
        if cores is not None and earlier and cores > fmean(earlier) + MORE_CORES:
            return f"{who} {cores:.1f} of {look.num_cpus} cores, {fmean(earlier):.1f} before"
    return ""


def input_bound(look: Look) -> Iterator[Alert]:
    shares = look.shares(MINUTE_S)
    first_s = look.steps(-math.inf)[0].begin_s if look.ranks else look.now
    if shares and look.now - first_s >= MINUTE_S and cause_of(look, shares) == "input":
        reason, text = (
            loader_reason(look),
            f"Steps waited {words.share(shares.input)} of the last minute for input",
        )
        yield Alert(id="input-bound", text=f"{text}: {reason}." if reason else f"{text}.")


def rank_lag(look: Look) -> Iterator[Alert]:
    """Report a rank that is later than the other ranks, and the phase of its step that takes longer."""
    steps, wait_s = {}, {}
    for rank in look.ranks:
        step, wait = (look.lately(name, rank, look.window_s(rank)) for name in ("step", "wait"))
        if step.num >= (FEWEST_STEPS if step.mean < LONG_STEP_S else FEWEST_LONG):
            steps[rank], wait_s[rank] = step.quantile(0.5), wait.mean
    parts = (
        (wait_s, LAG, "it waits {} longer for input in each step"),
        (
            steps,
            LAG + 0.02,
            "its steps take {} longer, but not because of input: look at its forward pass, cores and GPU",
        ),
    )
    for values, least, why in parts if len(steps) > 1 else ():
        usual = {rank: [other for other in steps if other != rank] for rank in steps}
        more_s = {
            rank: values[rank] - median(values[other] for other in others) for rank, others in usual.items()
        }
        late = {
            rank: more
            for rank, more in more_s.items()
            if more > least * median(steps[r] for r in usual[rank])
        }
        for rank, more in late.items():
            text = f"Rank {rank} lags: {why.format(words.duration(more))}."
            yield Alert(id="rank-lag", whose=rank, text=text)
        if late:
            return  # a part with an explanation also makes the steps of waiting ranks uneven


def memory_growth(look: Look) -> Iterator[Alert]:
    pace_s = look.store.of("step", look.ranks[0]).ever.quantile(0.5) if look.ranks else math.nan
    asked: list[tuple[str, str, Series, float | None]] = [
        ("", "The run", look.store.of("rss"), look.room_bytes)
    ]
    for gpu in look.gpus:
        used, all_, index = gpu.memory_used_bytes, gpu.memory_bytes, str(gpu.nvml_index)
        room = None if isinstance(used, Unknown) or isinstance(all_, Unknown) else all_ - used
        asked.append((index, f"GPU {index}", look.store.of("gpu.memory_used_bytes", index), room))
    for whose, name, series, room in asked if pace_s > 0 and look.now - look.begun_s >= WARM_S else ():
        if room is not None and (per_s := growth(series, look.now, room)) is not None:
            text = (
                f"{name} takes {words.num_bytes(per_s * 60)} more memory each minute: the "
                f"{words.num_bytes(room)} "
            )
            text += f"left would be used up in {words.duration(room / per_s)}, "
            text += f"at about step {look.step + int(room / per_s / pace_s):,}."
            yield Alert(id="memory-growth", whose=whose, text=text)


def growth(series: Series, now: float, room_bytes: float) -> float | None:
    """Return the growth in bytes per second if the series grew steadily and would soon reach the limit; else
    None."""
    for length_s, full_s in GROWTH:
        bins = series.bins(now - length_s)
        if len(bins) < 6 or bins[-1].begin_s - bins[0].begin_s < 0.8 * length_s:
            continue
        ends = [len(bins) * at // 6 for at in range(7)]
        lows = [min(each.mean for each in bins[begin:end]) for begin, end in pairwise(ends)]
        grew, per_s = lows[-1] - lows[0], (lows[-1] - lows[0]) / (length_s * 5 / 6)
        if (
            all(a < b for a, b in pairwise(lows))
            and grew >= LEAST_GROWTH_BYTES
            and room_bytes < full_s * per_s
        ):
            return per_s
    return None


def stalled(look: Look) -> Iterator[Alert]:
    """Report that no step has ended for a long time while no process works, or for a very long time."""
    if not look.ranks:
        return
    ever = look.store.of("step", look.ranks[0]).ever
    since_s = look.now - max(look.store.of("step", rank).last_s for rank in look.ranks)
    usual_s, longest_s = ever.quantile(0.5), ever.most if ever.num > 1 else 0.0
    cores, device = (
        look.lately("cores", "", WINDOW_S / 2).mean,
        look.mean("gpu.kernel_running_percent") or 0.0,
    )
    is_quiet = cores < QUIET_CORES and device < 100 * DEVICE_IDLE
    halted = [f"{row.role} ({row.pid})" for row in look.rows if row.state == "stopped"]
    if halted and since_s > max(HALTED_S, STALL_STEPS * usual_s):
        text = (
            f"No step for {words.duration(since_s)} (usual: {words.duration(usual_s)}): {halted[0]} is "
            "stopped."
        )
        yield Alert(id="stalled", text=text)
    elif since_s > max(STALL_S if is_quiet else BUSY_STALL_S, STALL_STEPS * usual_s, 2 * longest_s):
        does = "and no process computes" if is_quiet else "though its processes or its GPU are busy"
        text = f"No step for {words.duration(since_s)} (usual: {words.duration(usual_s)}), {does}."
        yield Alert(id="stalled", text=text)


def device_shared(look: Look) -> Iterator[Alert]:
    for gpu in look.gpus:
        if gpu.others:
            text = f"GPU {gpu.nvml_index} is shared: kernels of {', '.join(gpu.others[:3])}."
            yield Alert(id="device-shared", whose=str(gpu.nvml_index), text=text)
