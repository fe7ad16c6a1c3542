"""Draw conclusions from timed starts: sentences, variables to set, and findings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynotune.doctor import ObservationView, examine, policy
from dynotune.probe.gpu_code import code_places, device_code
from dynotune.schema.caches import TITLES, Cache, CacheName
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.observation import Observation
from dynotune.schema.run import RunSpec
from dynotune.schema.startup import PHASES, Ratio, Start, Startup, median, phase_s
from dynotune.text import words

ABOUT_STARTS = (
    "bytecode-not-kept",
    "ptx-jit-active",
    "jit-cache-too-small",
    "jit-cache-not-persistent",
    "jit-cache-disabled",
    "module-loading-eager",
    "lazy-first-call-jitter",
    "compile-cold-cache",
    "caches-disabled",
    "compile-threads",
)
"""Findings that timing starts can judge."""
COMPILED: tuple[CacheName, ...] = ("inductor", "headers", "triton")
"""Caches that torch.compile fills."""
ON_A_VOLUME = "/path/on/a/volume/that/stays"
CODE = ("code.num_compiled", "code.num_cannot", "code.ptx_bytes", "code.compiled")
DEADLINE_S = 30.0
"""Reading a whole installation of torch from a cold disk takes a third of this time."""
NUM_NAMED = 3
LARGE_PART = 0.05
"""Share of a warm start: smaller phases are not named."""


def conclusions(startup: Startup) -> dict[str, Any]:
    view = ObservationView(Observation(command=startup.run.command, facts=startup.facts | facts(startup)))
    found, unknown = examine(view)
    saved = [_of_ratio(ratio, startup.margin) for ratio in startup.ratios]
    if not startup.max_blocks:
        saved = [_once(startup)]
    return {
        "said": [*saved, *_compiled(startup), *_limits(startup), *_own(startup), *_left(startup)],
        "to_set": to_set(startup),
        "findings": [finding for finding in found if finding.id in ABOUT_STARTS],
        "unknown": [one for one in unknown if one.id in ABOUT_STARTS],
    }


def _once(startup: Startup) -> str:
    """Say what one cold and one warm start took."""
    cold, warm = (startup.starts(arm)[0].value_s for arm in ("cold", "warm"))
    took = f"A cold start took {words.duration(cold)}, a warm one {words.duration(warm)}."
    return f"{took} These are one start each; --blocks 4 says by how much starts differ without a cause."


def _of_ratio(ratio: Ratio, margin: float) -> str:
    what, start = {
        "cold": ("A warm cache", "a cold start"),
        "off": ("Having caches at all", "a start without caches"),
    }[ratio.arm]
    took = words.duration(ratio.median_s)
    if ratio.verdict == "faster" and ratio.saved_s is not None:
        within = f" ({' to '.join(map(words.duration, ratio.saved_ci))})" if ratio.saved_ci else ""
        return f"{what} saves {words.duration(ratio.saved_s)}{within} of the {took} of {start}."
    if ratio.verdict == "same":
        return f"{what} saves nothing of {start}: both take the same, within {margin:.0%}."
    if ratio.verdict == "slower":
        warm = words.duration(ratio.warm_median_s)
        return f"{what} makes a start slower: {start} takes {took}, a warm one {warm}."
    return f"It is undecided what a warm cache saves of {start}. {ratio.reason}".rstrip()


def _compiled(startup: Startup) -> list[str]:
    cold, warm, said = startup.starts("cold"), startup.starts("warm"), []
    for name, title in TITLES.items():
        sizes = sorted(start.added_bytes(name) for start in cold)
        if sizes and (size := sizes[len(sizes) // 2]):
            again = max((start.added_bytes(name) for start in warm), default=0)
            adds = f"{words.num_bytes(again)} again" if again else "nothing"
            said.append(f"A cold start leaves {words.num_bytes(size)} in {title}; a warm one adds {adds}.")
    if cold and not any(start.added for start in (*cold, *warm)):
        said.append("No start left anything in these caches: a cold one is like a warm one.")
    by_driver = by_difference_s(startup)
    if by_driver is not None:
        said.append(
            f"The driver's compiling and loading of kernels takes about {words.duration(by_driver)} of a "
            "cold start: "
            "what it takes beyond a warm one outside of torch.compile. Inside of one run it cannot be told "
            "from the "
            "calls that cause it."
        )
    return said


def by_difference_s(startup: Startup) -> float | None:
    """Return the seconds that the driver's compiling adds to a cold start; None if nothing was compiled or if
    unknown.

    The cost is the difference between a cold and a warm start, without torch.compile.
    """
    cold, ratio = startup.starts("cold"), startup.ratio("cold")
    left = max((start.added_bytes("cuda") for start in cold), default=0)
    if not left or ratio is None or ratio.verdict != "faster" or ratio.saved_s is None:
        return None
    cold_s, warm_s = (phase_s(each, "compile") for each in (cold, startup.starts("warm")))
    if not isinstance(cold_s, Unknown) and not isinstance(warm_s, Unknown):
        took_s = max(0.0, ratio.saved_s - max(0.0, cold_s - warm_s))
    elif any(start.added_bytes(*COMPILED) for start in cold):
        return None
    else:
        took_s = ratio.saved_s
    # So few bytes do not take so long to compile; a warm start then saves time for another reason.
    return None if took_s > left / policy.LEAST_JIT_BYTES_PER_S else took_s


def _own_of(startup: Startup, name: CacheName) -> Cache | None:
    return next((cache for cache in startup.own if cache.name == name), None)


def _kernels_bytes(startup: Startup) -> int:
    """Return the size (bytes) that the driver's cache needs: the size that a cold start left, or a warm cache
    has."""
    left = [start.added_bytes("cuda") for start in startup.starts("cold")]
    held = [start.held.get("cuda", 0) for start in startup.starts("warm")]
    return max([*left, *held], default=0)


def _is_too_small(cache: Cache, needed: int, startup: Startup) -> bool:
    """Tell whether the driver's cache is limited to less than twice the needed size, or the driver kept no
    code."""
    limit = cache.limit_bytes if isinstance(cache.limit_bytes, int) else policy.SURELY_KEPT_BYTES
    # Without a GPU, no driver compiles or keeps anything.
    return (
        needed > limit / 2
        if needed
        else limit < policy.SURELY_KEPT_BYTES and startup.facts.get("gpu.count") != 0
    )


def _limits(startup: Startup) -> list[str]:
    cache, needed = _own_of(startup, "cuda"), _kernels_bytes(startup)
    if cache is None or cache.limit_bytes is None:
        return []
    size, too_small = words.num_bytes(needed), _is_too_small(cache, needed, startup)
    if isinstance(cache.limit_bytes, Unknown):
        if needed >= policy.SURELY_KEPT_BYTES:
            return [f"Whether {size} are kept depends: {cache.limit_bytes.reason}."]
        return [f"Every driver's own limit keeps {size} of compiled kernels."] if needed else []
    limit = words.num_bytes(cache.limit_bytes)
    if needed and too_small:
        return [f"The limit of {limit} is too small for {size} of compiled kernels and those of others."]
    if needed:
        return [f"The limit of {limit} is large enough for {size} of compiled kernels."]
    kept_nothing = (
        f"CUDA_CACHE_MAXSIZE is {limit}, and the driver kept nothing: a binary that is larger is never kept."
    )
    return [kept_nothing] if too_small else []


def _own(startup: Startup) -> list[str]:
    """Describe the command's own caches that received files."""
    said = []
    for cache in startup.own:
        uses = any(start.added_bytes(cache.name) for start in startup.starts("cold"))
        if cache.off and (uses or cache.is_set or cache.name == "cuda"):
            said.append(f"{TITLES[cache.name]} is off for this command: {cache.off}.")
        if not uses or isinstance(cache.path, Unknown):
            continue
        size = (
            "an unknown size" if isinstance(cache.size_bytes, Unknown) else words.num_bytes(cache.size_bytes)
        )
        lasts = cache.storage or (cache.lasts.reason if isinstance(cache.lasts, Unknown) else "")
        how = f"holds {size}{' and lasts' if cache.lasts is True else ''}: {lasts}"
        if cache.writable is False:
            how = "cannot be written: every start is cold"
        said.append(f"{TITLES[cache.name]} of this command, {cache.path}, {how}.")
    return said


def _left(startup: Startup) -> list[str]:
    """Describe the part of a start's time that no cache saves."""
    warm = startup.starts("warm")
    values = sorted(start.value_s for start in warm)
    if not values:
        return []
    median_s = values[len(values) // 2]
    parts = [(phase_s(warm, phase), text) for phase, text in PHASES.items()]
    known = [
        (value, text)
        for value, text in parts
        if not isinstance(value, Unknown) and value >= LARGE_PART * median_s
    ]
    named = [f"{text} {words.duration(value)}" for value, text in sorted(known, reverse=True)[:4]]
    return [f"A warm start still takes {words.duration(median_s)}: {', '.join(named)}."] if named else []


def _why_lost(cache: Cache | None) -> str:
    """Return why the caches' present place keeps no files; empty if the place keeps files."""
    if cache is None or (cache.writable is True and cache.lasts is True):
        return ""
    if cache.writable is False:
        return f"{cache.path} cannot be written"
    return cache.path.reason if isinstance(cache.path, Unknown) else cache.storage


def to_set(startup: Startup) -> dict[str, str]:
    """Return variables worth setting, with reasons; a placeholder for a folder of the user's starts with
    `/path`."""
    found: dict[str, str] = {}
    left = {growth.name for start in startup.starts("cold") for growth in start.added if growth.size_bytes}
    cuda, inductor = _own_of(startup, "cuda"), _own_of(startup, "inductor")
    needed = _kernels_bytes(startup)
    if needed and (why := _why_lost(cuda)):
        found[f"CUDA_CACHE_PATH={ON_A_VOLUME}"] = f"kernels that the driver compiled are kept: {why}"
    if cuda is not None and _is_too_small(cuda, needed, startup):
        found[f"CUDA_CACHE_MAXSIZE={policy.LARGEST_JIT_CACHE_BYTES}"] = (
            f"{words.num_bytes(needed)} of compiled kernels fit"
            if needed
            else "compiled kernels fit, if there are any"
        )
    if left.intersection(COMPILED) and (why := _why_lost(inductor)):
        found[f"TORCHINDUCTOR_CACHE_DIR={ON_A_VOLUME}/inductor"] = f"what torch.compile made is kept: {why}"
        if "headers" in left:
            found["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0"] = (
                "C++ headers, which no variable but TMPDIR moves, are not compiled first in each new "
                "container"
            )
        if "triton" in left:
            found[f"TRITON_CACHE_DIR={ON_A_VOLUME}/triton"] = "so are Triton's kernels"
    return found


def facts(startup: Startup) -> Facts:
    cold, warm = startup.starts("cold"), startup.starts("warm")
    late = [pilot.late_s for pilot in startup.pilots if pilot.arm == "warm" and pilot.late_s is not None]
    threads = [start.compiled.num_threads for start in cold if start.compiled and start.compiled.num_threads]
    found: Facts = {
        "start.cold_s": median(start.value_s for start in cold),
        "start.warm_s": median(start.value_s for start in warm),
        "start.saved_s": _saved_s(startup),
        "start.cuda_added_bytes": median(start.added_bytes("cuda") for start in cold),
        "start.cuda_again_bytes": median(start.added_bytes("cuda") for start in warm),
        "start.cuda_kept_bytes": max((start.held.get("cuda", 0) for start in warm), default=0),
        "start.compiler_added_bytes": median(start.added_bytes(*COMPILED) for start in cold),
        "start.compiler_again_bytes": median(start.added_bytes(*COMPILED) for start in warm),
        "start.num_graphs": _num_graphs(cold),
        "start.compile_cold_s": phase_s(cold, "compile"),
        "start.compile_warm_s": phase_s(warm, "compile"),
        "start.cuda_start_s": phase_s(warm, "cuda_start"),
        "start.late_s": next(iter(late), Unknown("no start was watched until its steps were steady")),
    }
    if threads:
        found["start.compile_threads"] = threads[0]
    names = ("path", "off", "size_bytes", "writable", "lasts", "storage", "limit_bytes")
    return found | {
        f"cache.{cache.name}.{name}": getattr(cache, name) for cache in startup.own for name in names
    }


def _saved_s(startup: Startup) -> Value | Unknown:
    cold = startup.ratio("cold")
    if cold is None or cold.verdict is None:
        return Unknown("it was not judged")
    if cold.verdict == "undecided":
        return Unknown(f"it is undecided what a warm cache saves: {cold.reason}")
    return cold.saved_s if cold.verdict == "faster" and cold.saved_s is not None else 0.0


def _num_graphs(cold: Iterable[Start]) -> int | Unknown:
    known = [start for start in cold if not isinstance(start.phases.get("other"), Unknown)]
    if not known:
        return Unknown("no Python of this command recorded it")
    return max(
        (start.compiled.num_missed + start.compiled.num_found for start in known if start.compiled), default=0
    )


def code_facts(run: RunSpec) -> Facts:
    """Return facts `code.*`: what the first GPU of this machine compiles when libraries are loaded.

    The facts equal the findings of `dynotune startup scan -- COMMAND`. Only headers of files are read. A
    library counts as compiled in part if it has machine code for the GPU and also code that exists only as
    PTX.
    """
    gpus, places = device_code.gpus_here(run.env), code_places.Places()
    if isinstance(gpus, Unknown):
        return dict.fromkeys(CODE, gpus)
    found = code_places.of_command(run.command, places, run.env, run.cwd)
    if isinstance(found, Unknown):
        return dict.fromkeys(CODE, found)
    scanned = device_code.scan(places, gpus, deadline_s=DEADLINE_S)
    if not scanned.complete:
        return dict.fromkeys(CODE, Unknown(f"not every library was read in {DEADLINE_S:.0f} s"))
    judged = [(Path(library.path).name, library.verdicts[0]) for library in scanned.libraries]
    compiled = sorted((each for each in judged if each[1].num_jit), key=lambda each: -each[1].ptx_bytes)
    values: tuple[Value, ...] = (
        len(compiled),
        sum(verdict.verdict == "cannot" for _, verdict in judged),
        sum(verdict.ptx_bytes for _, verdict in compiled),
        [name for name, _ in compiled[:NUM_NAMED]],
    )
    return dict(zip(CODE, values, strict=True))
