"""Name the part of a program that holds it up, from looks at its threads and from its GPUs; or say that it is
unknown.

From outside, several programs look alike: one that decodes its batches in its main process, and one whose
Python is slow. So a part is named only where nothing else looks so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynotune.running.thread_states import Activity, Look, share
from dynotune.schema.running import Part, Stacks
from dynotune.text import words

FEWEST_LOOKS = 15
WAITS = 0.25
"""Share of the time: a program that waits less is not held up by what it waits for."""
WORKS = 1 - WAITS
WORKERS_BUSY = 0.8
"""Share of the waits in which a worker has to work for the loader to be what is waited for."""
MIXED = 0.5
"""Below this share the workers have their batches ready, so the main process does not wait for them."""
DEVICE_BUSY, DEVICE_IDLE = 0.85, 0.4
READS_PER_S = 5.0
"""A process without workers that reads files more often may load its batches itself."""
CORES_BUSY = 0.3
"""Cores of a worker that computes; below this it waits for its storage."""
QUEUED, STARVED = 0.1, 0.5
"""Shares of the time in which the main thread was ready, but had no core: worth a line, and worth the
verdict."""
HANDED_OVER_BYTES = 5e6
"""Bytes a second that a process with workers reads. Tensors come by shared memory; this much comes through
pipes."""
STARTED_ANEW = 2
"""Workers seen for each worker that lives: from here on, epochs are so short that their workers start all the
time."""


class Judged(NamedTuple):
    """The part, one sentence on it, and what it rests on."""

    part: Part
    told: str
    evidence: tuple[str, ...]


class Seen(NamedTuple):
    """Shares of the looks at one rank.

    Args:
        works: the process computes: its main thread, or its backward pass, or threads that the main thread
            waits for.
        waits_data: the main thread waits for a pipe or a socket; or, with a thread that pins, for that
            thread.
    """

    works: float
    waits_data: float
    waits_lock: float
    sleeps: float
    disk: float
    stopped: float
    workers_when_waiting: float
    workers: float


def judge(activity: Activity, device_busy: float | None) -> Judged:
    """Name the part that holds one rank up.

    Args:
        device_busy: share of the time in which a kernel ran on the rank's GPUs; None without a GPU, or if
            unknown.
    """
    if len(activity.looks) < FEWEST_LOOKS:
        return Judged(
            "unknown", "The program was observed for too short a time.", (f"{len(activity.looks)} looks",)
        )
    seen = _seen(activity)
    part, told = _part(activity, seen, device_busy)
    return Judged(part, told, tuple(_evidence(activity, seen, device_busy)))


def _seen(activity: Activity) -> Seen:
    looks = activity.looks

    def waits_data(look: Look) -> bool:
        through_pinning = activity.pins and look.main == "lock" and not look.autograd_runs
        return look.main == "data" or through_pinning

    def works(look: Look) -> bool:
        threads = look.main == "lock" and (look.autograd_runs or (look.others_run and not activity.pins))
        return look.main == "runs" or threads

    waiting = [look for look in looks if waits_data(look)]
    return Seen(
        works=share(looks, works),
        waits_data=share(looks, waits_data),
        waits_lock=share(
            looks, lambda look: look.main == "lock" and not works(look) and not waits_data(look)
        ),
        sleeps=share(looks, lambda look: look.main == "sleep"),
        disk=share(looks, lambda look: look.main == "disk"),
        stopped=share(looks, lambda look: look.main == "stopped"),
        workers_when_waiting=share(waiting, lambda look: look.num_working > 0),
        workers=share(looks, lambda look: look.num_working > 0),
    )


def _part(activity: Activity, seen: Seen, device_busy: float | None) -> tuple[Part, str]:
    if seen.stopped > WORKS:
        return "waiting", "The program is stopped by a signal."
    if device_busy is not None and device_busy >= DEVICE_BUSY:
        return "device", f"A kernel runs on its GPU {_of_time(device_busy)}."
    if activity.rank.workers and seen.waits_data >= WAITS and seen.workers_when_waiting >= WORKERS_BUSY:
        does = _what_workers_do(activity)
        return "input", f"It waits for its loader {_of_time(seen.waits_data)}, while {does}."
    if seen.disk >= WAITS:
        return _at_disk(activity, seen)
    if seen.works >= WORKS and (loads := _loads_meanwhile(activity)):
        return "unknown", (
            f"Its own process works nearly all the time, and {loads}. From outside, loading and "
            "computing look the same."
        )
    if seen.works >= WORKS:
        return _computes(activity, device_busy)
    if device_busy is not None and device_busy > 1 - DEVICE_IDLE:
        return (
            "unknown",
            "Its GPU is neither busy nor idle for most of the time, and the host waits in between.",
        )
    return _waits(activity, seen)


def _computes(activity: Activity, device_busy: float | None) -> tuple[Part, str]:
    """Judge a process that computes nearly all the time: on the host, or on the CPU as its device."""
    starved = _starved(activity)
    if device_busy is None:
        return "cpu", f"Its own process computes nearly all the time, and waits for nothing.{starved}"
    if device_busy <= 1 - DEVICE_IDLE:
        return (
            "host",
            f"Its GPU has no work {_of_time(1 - device_busy)}, while its own process works.{starved}",
        )
    return (
        "unknown",
        f"A kernel runs on its GPU {_of_time(device_busy)}, while its own process works as well.",
    )


def _loads_meanwhile(activity: Activity) -> str:
    """Say what a process that computes may do for its input, which stacks alone tell from other work; "" if
    nothing."""
    pid, num_workers = activity.rank.process.pid, len(activity.rank.workers)
    living = max(look.num_workers for look in activity.looks)
    reads, num_bytes = activity.rate("num_reads", [pid]), activity.rate("read_bytes", [pid]) or 0.0
    if not num_workers:
        return (
            "" if reads is not None and reads < READS_PER_S else "reads files itself, without loader workers"
        )
    if num_workers >= STARTED_ANEW * living + 1:
        return f"started {num_workers - living} workers of its loader within {activity.length_s:.1f} s"
    if num_bytes >= HANDED_OVER_BYTES:
        return f"reads {words.num_bytes(num_bytes)} a second, as through pipes from its workers"
    return ""


def _starved(activity: Activity) -> str:
    """Return a sentence if the main thread has no core most of the time, else ""."""
    queued = activity.rate("main_queued_s", [activity.rank.process.pid])
    if queued is None or queued < STARVED:
        return ""
    return (
        f" It is ready {_of_time(min(queued, 1.0))}, but gets no core: other programs, or its own threads "
        "and workers, "
        "take the cores of this machine."
    )


def _at_disk(activity: Activity, seen: Seen) -> tuple[Part, str]:
    pid = activity.rank.process.pid
    disk, read, written = (
        activity.rate(name, [pid]) or 0.0 for name in ("disk_bytes", "read_bytes", "written_bytes")
    )
    told = f"Its main thread waits for the disk {_of_time(seen.disk)}"
    if disk > 0 and read > written:
        return "input", f"{told}, and reads {words.num_bytes(disk)} a second from it."
    return "waiting", f"{told}."


def _waits(activity: Activity, seen: Seen) -> tuple[Part, str]:
    idle = 1 - seen.works
    if activity.rank.workers and seen.waits_data >= WAITS:
        if seen.workers_when_waiting < MIXED:
            return "unknown", (
                f"It waits for data {_of_time(seen.waits_data)}, while its loader's workers wait, too: "
                "for requests from the main process, or for data from a network."
            )
        return "unknown", f"It waits {_of_time(idle)}, for its loader only in part."
    what = max(
        (seen.sleeps, "its main thread sleeps"),
        (seen.waits_data, "its main thread waits for another process or a network"),
        (seen.waits_lock, "its main thread waits for another thread or for the device"),
    )
    if what[0] >= WAITS:
        return "waiting", f"It waits {_of_time(idle)}: {what[1]} {_of_time(what[0])}."
    return (
        "unknown",
        f"Its own process works {_of_time(seen.works)}; what it waits for in between is not known.",
    )


def _what_workers_do(activity: Activity) -> str:
    """Say whether the workers compute or wait for storage. A worker that waits for a core would compute."""
    pids = [one.pid for one in activity.rank.workers]
    who = f"its {len(pids)} workers" if len(pids) > 1 else "its worker"
    cores, queued = (activity.rate(name, pids) or 0.0 for name in ("cpu_s", "main_queued_s"))
    disk = activity.rate("disk_bytes", pids) or 0.0
    does = ("use", "wait", "compute") if len(pids) > 1 else ("uses", "waits", "computes")
    if cores + queued >= CORES_BUSY:
        starved = f" and wait{does[1][4:]} for a core" if queued > cores else ""
        return f"{who} {does[0]} {cores:.1f} cores{starved}"
    reads = f", which gives {words.num_bytes(disk)} a second" if disk >= 1 else ""
    return f"{who} {does[1]} for storage{reads}, and hardly {does[2]}"


def _evidence(activity: Activity, seen: Seen, device_busy: float | None) -> list[str]:
    pid, workers = activity.rank.process.pid, [one.pid for one in activity.rank.workers]
    does = {
        "works": seen.works,
        "waits for data": seen.waits_data,
        "waits for a lock": seen.waits_lock,
        "sleeps": seen.sleeps,
        "waits for the disk": seen.disk,
    }
    shares = ", ".join(f"{what} {words.share(part)}" for what, part in does.items() if part)
    told = [f"{len(activity.looks)} looks over {activity.length_s:.1f} s: the process {shares} of the time"]
    if device_busy is not None:
        told.append(f"a kernel runs on its GPU {_of_time(device_busy)}")
    cores = activity.rate("cpu_s", [pid])
    if cores is not None:
        told.append(f"the process uses {cores:.1f} cores")
    if workers:
        of_workers = activity.rate("cpu_s", workers)
        used = "an unknown number of" if of_workers is None else f"{of_workers:.1f}"
        told.append(f"{len(workers)} workers use {used} cores; at least one works {_of_time(seen.workers)}")
    queued = activity.rate("main_queued_s", [pid])
    if queued is not None and queued >= QUEUED:
        told.append(f"the main thread is ready {_of_time(min(queued, 1.0))}, but gets no core")
    if activity.ended:
        told.append("the process ended meanwhile")
    return told


def with_stacks(judged: Judged, activity: Activity, device_busy: float | None, stacks: Stacks) -> Judged:
    """Name the part again, now that the stacks tell loading from computing.

    What waits in a loader waits for input, also where the main process makes the batches. A device that is
    busy all the time remains the part: its queue hides such a wait.
    """
    of_main = {
        "in a loader": stacks.loader_share,
        "in the backward pass": stacks.backward_share,
        "in an optimizer": stacks.optimizer_share,
    }
    shares = ", ".join(f"{words.share(part)} {where}" for where, part in of_main.items())
    evidence = (*judged.evidence, f"{stacks.num} stacks of the main thread: {shares}")
    if device_busy is not None and device_busy >= DEVICE_BUSY:
        return judged._replace(evidence=evidence)
    if stacks.loader_share >= WAITS:
        line = next((line for line in stacks.lines if line.thread == "main" and line.in_loader), None)
        where = f", at {line.place}" if line is not None else ""
        own = (
            ""
            if activity.rank.workers
            else " The main process makes the batches itself: the loader has no workers."
        )
        told_input = f"Its main thread is in its loader {_of_time(stacks.loader_share)}{where}.{own}"
        return Judged("input", told_input, evidence)
    if judged.part == "unknown" and _seen(activity).works >= 1 - WAITS - stacks.loader_share:
        part, what = _computes(activity, device_busy)
        return Judged(part, what, evidence)
    return judged._replace(evidence=evidence)


def _of_time(part: float) -> str:
    return f"{words.share(part)} of the time"


def job(judged: Sequence[tuple[str, Judged]]) -> Judged:
    """Name the part that holds up all ranks.

    A rank that waits for its input, its disk or its host makes the others wait, so its part is the program's.
    """
    if len(judged) == 1:
        return judged[0][1]
    by_part: dict[Part, list[str]] = {}
    for name, one in judged:
        by_part.setdefault(one.part, []).append(name)
    if len(by_part) == 1:
        part, names = next(iter(by_part.items()))
        return Judged(part, f"All {len(names)} ranks alike. {judged[0][1].told}", ())
    holding = [part for part in by_part if part not in ("waiting", "unknown")]
    if "input" in by_part or len(holding) == 1:
        part = "input" if "input" in by_part else holding[0]
        first = next(one for name, one in judged if one.part == part)
        others = (
            "For some ranks the part is unknown." if "unknown" in by_part else "The others may wait for them."
        )
        return Judged(part, f"Ranks {', '.join(by_part[part])}: {first.told} {others}", ())
    told = "; ".join(f"{part}: ranks {', '.join(names)}" for part, names in by_part.items())
    return Judged("unknown", f"The ranks differ ({told}).", ())
