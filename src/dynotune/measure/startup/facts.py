"""What the timed starts tell the rules: facts `start.*`, and `cache.*` of the caches that the command has otherwise."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from dynotune.schema.caches import Cache, CacheName
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.startup import Arm, Phase, Ratio, Start, Startup

COMPILED: tuple[CacheName, ...] = ("inductor", "headers", "triton")
"""What torch.compile keeps."""


def facts(startup: Startup) -> Facts:
    cold, warm = starts(startup, "cold"), starts(startup, "warm")
    late = [pilot.late_s for pilot in startup.pilots if pilot.arm == "warm" and pilot.late_s is not None]
    threads = [start.compiled.num_threads for start in cold if start.compiled and start.compiled.num_threads]
    found: Facts = {
        "start.cold_s": _median(start.value_s for start in cold),
        "start.warm_s": _median(start.value_s for start in warm),
        "start.saved_s": _saved_s(startup),
        "start.cuda_added_bytes": _median(added(start, "cuda") for start in cold),
        "start.cuda_again_bytes": _median(added(start, "cuda") for start in warm),
        "start.cuda_kept_bytes": max((start.held.get("cuda", 0) for start in warm), default=0),
        "start.compiler_added_bytes": _median(added(start, *COMPILED) for start in cold),
        "start.compiler_again_bytes": _median(added(start, *COMPILED) for start in warm),
        "start.num_graphs": _num_graphs(cold),
        "start.compile_cold_s": phase_s(cold, "compile"),
        "start.compile_warm_s": phase_s(warm, "compile"),
        "start.cuda_start_s": phase_s(warm, "cuda_start"),
        "start.late_s": next(iter(late), Unknown("no start was watched until its steps were steady")),
    }
    if threads:
        found["start.compile_threads"] = threads[0]
    for cache in startup.own:
        found |= _of_cache(cache)
    return found


def starts(startup: Startup, arm: Arm) -> list[Start]:
    """Those that count; without any, those of void blocks, and the pilots before there are any."""
    blocks = startup.blocks or [voided.values for voided in startup.voided]
    return [block.of(arm) for block in blocks] or [pilot for pilot in startup.pilots if pilot.arm == arm]


def added(start: Start, *names: CacheName) -> int:
    """Bytes that it left in these caches; none where inductor was told to keep nothing, but leaves its folders."""
    return sum(growth.size_bytes for growth in start.added if growth.name in names)


def phase_s(of: Iterable[Start], phase: Phase) -> float | Unknown:
    """The median over these starts; Unknown where one of them does not know it."""
    values = []
    for start in of:
        value = start.phases.get(phase, Unknown("not recorded"))
        if isinstance(value, Unknown):
            return value
        values.append(value)
    return statistics.median(values) if values else Unknown("nothing was timed")


def of_arm(startup: Startup, arm: Arm) -> Ratio | None:
    return next((ratio for ratio in startup.ratios if ratio.arm == arm), None)


def _median(values: Iterable[float]) -> float | Unknown:
    known = list(values)
    return statistics.median(known) if known else Unknown("nothing was timed")


def _saved_s(startup: Startup) -> Value | Unknown:
    cold = of_arm(startup, "cold")
    if cold is None or cold.verdict is None:
        return Unknown("it was not judged")
    if cold.verdict == "undecided":
        return Unknown(f"it is undecided what a warm cache saves: {cold.reason}")
    return cold.saved_s if cold.verdict == "faster" and cold.saved_s is not None else 0.0


def _num_graphs(cold: Iterable[Start]) -> int | Unknown:
    known = [start for start in cold if not isinstance(start.phases.get("other"), Unknown)]
    if not known:
        return Unknown("no Python of this command recorded it")
    return max((start.compiled.num_missed + start.compiled.num_found for start in known if start.compiled), default=0)


def _of_cache(cache: Cache) -> Facts:
    prefix = f"cache.{cache.name}"
    names = ("path", "off", "size_bytes", "writable", "lasts", "storage", "limit_bytes")
    return {f"{prefix}.{name}": getattr(cache, name) for name in names}
