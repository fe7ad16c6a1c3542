"""What follows from timed starts: sentences, variables to set, and the findings about them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from dynotune.doctor import ObservationView, examine, policy
from dynotune.schema.caches import TITLES, Cache, CacheName
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.observation import Observation
from dynotune.schema.startup import Arm, Phase, Ratio, Start, Startup
from dynotune.text import words

ABOUT_STARTS = (
    "ptx-jit-active",
    "jit-cache-too-small",
    "jit-cache-not-persistent",
    "jit-cache-disabled",
    "module-loading-eager",
    "lazy-first-call-jitter",
    "compile-cold-cache",
    "caches-disabled",
    "compile-threads",
    "jiterator-cache",
)
"""Findings that timing starts can judge."""
COMPILED: tuple[CacheName, ...] = ("inductor", "headers", "triton")
"""What torch.compile keeps."""
ON_A_VOLUME = "/path/on/a/volume/that/stays"
LARGE_PART = 0.05
"""Of a warm start: smaller phases are not named."""
IN_WORDS: dict[Phase, str] = {
    "launcher": "launching",
    "interpreter": "starting Python",
    "imports_before_torch": "imports before torch",
    "torch_import": "importing torch",
    "imports": "other imports",
    "compiler_import": "importing torch.compile",
    "cuda_start": "starting CUDA",
    "model_build": "building the model",
    "weights": "reading weights",
    "to_device": "moving the model to its device",
    "compile": "torch.compile",
    "first_batch": "waiting for the first batch",
    "first_step": "the first step",
    "other": "the rest of the program",
}


def conclusions(startup: Startup) -> dict[str, Any]:
    view = ObservationView(Observation(command=startup.run.command, facts=startup.facts | facts(startup)))
    found, unknown = examine(view)
    return {
        "said": [*_saved(startup), *_compiled(startup), *_limits(startup), *_own(startup), *_left(startup)],
        "to_set": to_set(startup),
        "findings": [finding for finding in found if finding.id in ABOUT_STARTS],
        "unknown": [one for one in unknown if one.id in ABOUT_STARTS],
    }


def _saved(startup: Startup) -> list[str]:
    ratios = (of_arm(startup, "cold"), of_arm(startup, "off"))
    return [_of_ratio(ratio, startup.margin) for ratio in ratios if ratio is not None]


def _of_ratio(ratio: Ratio, margin: float) -> str:
    is_cold = ratio.arm == "cold"
    what, start = ("A warm cache", "a cold start") if is_cold else ("Having caches at all", "a start without caches")
    if ratio.verdict == "faster" and ratio.saved_s is not None and ratio.median_s is not None:
        within = ""
        if ratio.saved_ci is not None:
            within = f" ({words.duration(ratio.saved_ci[0])} to {words.duration(ratio.saved_ci[1])})"
        return (
            f"{what} saves {words.duration(ratio.saved_s)}{within} of the {words.duration(ratio.median_s)} of {start}."
        )
    if ratio.verdict == "same":
        return f"{what} saves nothing of {start}: both take the same, within {margin:.0%}."
    if ratio.verdict == "slower":
        return (
            f"{what} makes a start slower: {start} takes {words.duration(ratio.median_s)}, a warm one "
            f"{words.duration(ratio.warm_median_s)}."
        )
    return f"It is undecided what a warm cache saves of {start}. {ratio.reason}".rstrip()


def _compiled(startup: Startup) -> list[str]:
    cold, said = starts(startup, "cold"), []
    for name in ("cuda", *COMPILED, "jiterator"):
        sizes = sorted(added(start, name) for start in cold)
        size = sizes[len(sizes) // 2] if sizes else 0
        if size:
            again = max((added(start, name) for start in starts(startup, "warm")), default=0)
            warm = f"; a warm one adds {words.num_bytes(again)} again" if again else "; a warm one adds nothing"
            said.append(f"A cold start leaves {words.num_bytes(size)} in {TITLES[name]}{warm}.")
    if cold and not any(start.added for start in (*cold, *starts(startup, "warm"))):
        said.append("No start left anything in these caches: a cold one is like a warm one.")
    by_driver = by_difference_s(startup)
    if by_driver is not None:
        said.append(
            f"The driver's compiling and loading of kernels takes about {words.duration(by_driver)} of a cold start: "
            "what it takes beyond a warm one outside of torch.compile. Inside of one run it cannot be told from the "
            "calls that cause it."
        )
    return said


def by_difference_s(startup: Startup) -> float | None:
    """What the driver's compiling costs a cold start; None where it compiled nothing, or that cannot be told."""
    cold, warm = starts(startup, "cold"), starts(startup, "warm")
    left = max((added(start, "cuda") for start in cold), default=0)
    if not left:
        return None
    took_s = _outside_of_compile_s(startup, cold, warm)
    # So few bytes do not take so long: it is something else that a warm start is spared.
    return None if took_s is None or took_s > left / policy.LEAST_JIT_BYTES_PER_S else took_s


def _outside_of_compile_s(startup: Startup, cold: list[Start], warm: list[Start]) -> float | None:
    """What a cold start takes beyond a warm one, torch.compile aside; None where that is not known."""
    ratio = of_arm(startup, "cold")
    if ratio is None or ratio.verdict != "faster" or ratio.saved_s is None:
        return None
    compile_s = [phase_s(each, "compile") for each in (cold, warm)]
    if isinstance(compile_s[0], Unknown) or isinstance(compile_s[1], Unknown):
        return ratio.saved_s if not any(added(start, *COMPILED) for start in cold) else None
    return max(0.0, ratio.saved_s - max(0.0, compile_s[0] - compile_s[1]))


def _own_of(startup: Startup, name: CacheName) -> Cache | None:
    return next((cache for cache in startup.own if cache.name == name), None)


def needed_bytes(startup: Startup) -> int:
    """Of the driver's cache: what a cold start left there, or a warm cache holds."""
    left = [added(start, "cuda") for start in starts(startup, "cold")]
    held = [start.held.get("cuda", 0) for start in starts(startup, "warm")]
    return max([*left, *held], default=0)


def _limits(startup: Startup) -> list[str]:
    cache, needed = _own_of(startup, "cuda"), needed_bytes(startup)
    if cache is None or cache.limit_bytes is None:
        return []
    if isinstance(cache.limit_bytes, Unknown):
        if needed and needed < policy.SURELY_KEPT_BYTES:
            return [f"Every driver's own limit keeps {words.num_bytes(needed)} of compiled kernels."]
        return [f"Whether {words.num_bytes(needed)} are kept depends: {cache.limit_bytes.reason}."] if needed else []
    limit = words.num_bytes(cache.limit_bytes)
    if needed and needed <= cache.limit_bytes / 2:
        return [f"The limit of {limit} is large enough for {words.num_bytes(needed)} of compiled kernels."]
    if needed:
        return [
            f"The limit of {limit} is too small for {words.num_bytes(needed)} of compiled kernels and those of others."
        ]
    if cache.limit_bytes < policy.SURELY_KEPT_BYTES and not _has_no_gpu(startup):
        return [f"CUDA_CACHE_MAXSIZE is {limit}, and the driver kept nothing: a binary that is larger is never kept."]
    return []


def _own(startup: Startup) -> list[str]:
    """Of the caches that the command has without this command, and that something was left in."""
    cold, said = starts(startup, "cold"), []
    for cache in startup.own:
        uses = any(added(start, cache.name) for start in cold)
        if cache.off and (uses or cache.is_set or cache.name == "cuda"):
            said.append(f"{TITLES[cache.name]} is off for this command: {cache.off}.")
        if not uses or isinstance(cache.path, Unknown):
            continue
        size = "an unknown size" if isinstance(cache.size_bytes, Unknown) else words.num_bytes(cache.size_bytes)
        lasts = cache.storage or (cache.lasts.reason if isinstance(cache.lasts, Unknown) else "")
        if cache.writable is False:
            said.append(f"{TITLES[cache.name]} of this command, {cache.path}, cannot be written: every start is cold.")
        elif cache.lasts is not True:
            said.append(f"{TITLES[cache.name]} of this command, {cache.path}, holds {size}: {lasts}.")
        else:
            said.append(f"{TITLES[cache.name]} of this command, {cache.path}, holds {size} and lasts: {lasts}.")
    return said


def _left(startup: Startup) -> list[str]:
    """What no cache saves."""
    warm = starts(startup, "warm")
    values = sorted(start.value_s for start in warm)
    if not values:
        return []
    median_s = values[len(values) // 2]
    parts = [(phase_s(warm, phase), text) for phase, text in IN_WORDS.items()]
    named = sorted(
        ((value, text) for value, text in parts if not isinstance(value, Unknown) and value >= LARGE_PART * median_s),
        reverse=True,
    )[:4]
    if not named:
        return []
    return [
        f"A warm start still takes {words.duration(median_s)}: "
        + ", ".join(f"{words.duration(value)} {text}" for value, text in named)
        + "."
    ]


def _has_no_gpu(startup: Startup) -> bool:
    """For certain: then no driver compiles or keeps anything."""
    return startup.facts.get("gpu.count") == 0


def _why(cache: Cache) -> str:
    """Why nothing stays where it is now."""
    if cache.writable is False:
        return f"{cache.path} cannot be written"
    return cache.path.reason if isinstance(cache.path, Unknown) else cache.storage


def to_set(startup: Startup) -> dict[str, str]:
    """Variables worth setting, and why; a value that stands for a folder of the user's begins with `/path`."""
    found: dict[str, str] = {}
    cold = starts(startup, "cold")
    cuda, inductor = _own_of(startup, "cuda"), _own_of(startup, "inductor")
    needed = needed_bytes(startup)
    if needed and cuda is not None:
        if cuda.writable is not True or cuda.lasts is not True:
            found[f"CUDA_CACHE_PATH={ON_A_VOLUME}"] = f"kernels that the driver compiled are kept: {_why(cuda)}"
        limit = policy.SURELY_KEPT_BYTES if isinstance(cuda.limit_bytes, Unknown | None) else cuda.limit_bytes
        if needed > limit / 2:
            found[f"CUDA_CACHE_MAXSIZE={policy.LARGEST_JIT_CACHE_BYTES}"] = (
                f"{words.num_bytes(needed)} of compiled kernels fit"
            )
    elif (
        cuda is not None
        and isinstance(cuda.limit_bytes, int)
        and cuda.limit_bytes < policy.SURELY_KEPT_BYTES
        and not _has_no_gpu(startup)
    ):
        found[f"CUDA_CACHE_MAXSIZE={policy.LARGEST_JIT_CACHE_BYTES}"] = "compiled kernels fit, if there are any"
    compiles = any(added(start, *COMPILED) for start in cold)
    if compiles and inductor is not None and (inductor.writable is not True or inductor.lasts is not True):
        why = f"what torch.compile made is kept: {_why(inductor)}"
        found[f"TORCHINDUCTOR_CACHE_DIR={ON_A_VOLUME}/inductor"] = why
        if any(added(start, "headers") for start in cold):
            found["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0"] = (
                "C++ headers, which no variable but TMPDIR moves, are not compiled first in each new container"
            )
        if any(added(start, "triton") for start in cold):
            found[f"TRITON_CACHE_DIR={ON_A_VOLUME}/triton"] = "so are Triton's kernels"
    return found


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
    names = ("path", "off", "size_bytes", "writable", "lasts", "storage", "limit_bytes")
    return found | {f"cache.{cache.name}.{name}": getattr(cache, name) for cache in startup.own for name in names}


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
