"""The start of a CUDA program: kernels that the driver compiles, its cache of them, and when kernels are loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import at_least
from dynotune.doctor.machine import (
    NOT_MEASURED,
    is_on,
    known,
    known_number,
    no_gpu,
    place_of,
    told,
    unset,
    version,
    weighed,
    whole_number,
)
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.doctor.startup_shared import (
    compiles_unseen,
    left_by_driver,
    severity_of_driver,
    what_it_saves,
    without_machine_code,
)
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.setting import Setting
from dynotune.text import words

FORCED_JIT = ("CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT")


@rule("machine")
def ptx_jit_active(seen: Seen) -> Iterator[Finding]:
    """torch has no machine code for this GPU.

    Sees: the architectures that torch was built for against the GPU's compute capability; or a variable that makes the
    driver compile all kernels; of starts that were timed, what a cold one leaves in the driver's cache, whichever
    library or extension it is of.

    Costs: the driver compiles each kernel at its first use, seconds to many minutes, kept in a cache. Kernels for an
    older architecture may also be slower.

    Wrong when: nothing but kernels compiled at run time, as by Triton, is used.
    """
    if no_gpu(seen) or ("torch.cuda" in seen.observation.facts and seen.observation.facts["torch.cuda"] is None):
        return
    forced = [name for name in FORCED_JIT if is_on(seen.variable(name))]
    if forced:
        yield Finding(
            id="ptx-jit-active",
            severity="medium",
            kind="start",
            claim=f"{forced[0]} makes the driver compile every kernel, though torch has machine code.",
            share=0.0,
            evidence=told(seen, *forced),
            where=place_of(seen, forced[0]),
            candidates=unset(*forced),
            remedy="Take it away.",
        )
        return
    natively = known(seen, "torch.runs_natively")
    if natively is not False and (left_by_driver(seen) or (natively is None and compiles_unseen(seen))):
        yield _compiled_at_start(seen)
        return
    if natively is None and known_number(seen, "start.cuda_added_bytes") is not None:
        return  # no torch, and a start that compiled nothing
    if seen.truth("torch.runs_natively"):
        return
    capability = version(seen.text("gpu.compute_capability"))
    compilable = any(_capability(name) <= capability for name in seen.words("torch.arch_list") if "compute_" in name)
    yield Finding(
        id="ptx-jit-active",
        severity="high",
        kind="start" if compilable else "correctness",
        claim="torch has no machine code for this GPU: the driver compiles each kernel at its first use."
        if compilable
        else "torch has no kernels that run on this GPU.",
        share=0.0 if compilable else NOT_MEASURED,
        evidence=[seen.mentions(name) for name in ("gpu.compute_capability", "torch.arch_list", "torch.version")],
        remedy="Install a torch whose list of architectures holds this GPU's, and build extensions for it "
        "(TORCH_CUDA_ARCH_LIST).",
    )


def _compiled_at_start(seen: Seen) -> Finding:
    """Not of torch's own: of another library or extension, or of a program that is not torch at all."""
    left = left_by_driver(seen)
    kept = f"a cold start leaves {words.num_bytes(left)} in the driver's cache" if left else "nothing of it is kept"
    return Finding(
        id="ptx-jit-active",
        severity=severity_of_driver(seen),
        kind="start",
        claim="The driver compiles kernels that have no machine code for this GPU.",
        share=0.0,
        evidence=[kept, *without_machine_code(seen), *what_it_saves(seen)],
        remedy="Build what carries them for this GPU (TORCH_CUDA_ARCH_LIST, nvcc -gencode); `dynotune startup scan` "
        "names the libraries. Until then keep the driver's cache.",
    )


def _capability(arch: str) -> tuple[int, ...]:
    """`compute_90` is (9, 0), `sm_120a` is (12, 0)."""
    digits = re.search(r"_(\d+)(\d)", arch)
    return (int(digits[1]), int(digits[2])) if digits else (99,)


def _compiles_ptx(seen: Seen) -> bool | None:
    """The driver compiles kernels here; None where that is not known."""
    natively = known(seen, "torch.runs_natively")
    if left_by_driver(seen) or (natively is None and compiles_unseen(seen)):
        return True
    return None if natively is None else not natively


@rule("machine")
def jit_cache_too_small(seen: Seen) -> Iterator[Finding]:
    """The cache of kernels that the driver compiled is smaller than usual, or asked to be larger than it can be.

    Sees: CUDA_CACHE_MAXSIZE below 1 GiB, the default, or above 4 GiB, the most there is; of starts that were timed, a
    warm one that compiles again what a cold one left.

    Costs: kernels that do not fit are compiled again at the next start; a binary larger than the limit is never kept.
    Only where kernels are compiled by the driver.

    Wrong when: torch has machine code for this GPU, and so do all extensions.
    """
    again, kept = known_number(seen, "start.cuda_again_bytes"), known_number(seen, "start.cuda_kept_bytes")
    value = seen.variable("CUDA_CACHE_MAXSIZE")
    size = whole_number(value)
    if again and left_by_driver(seen):
        yield Finding(
            id="jit-cache-too-small",
            severity=at_least(severity_of_driver(seen), "medium"),
            kind="start",
            claim="The driver compiles again what it had compiled before: its cache does not hold all of it.",
            share=0.0,
            evidence=[
                f"a cold start leaves {words.num_bytes(left_by_driver(seen))} in it",
                f"a warm start leaves {words.num_bytes(again)} again; it holds {words.num_bytes(kept)}",
                *told(seen, "CUDA_CACHE_MAXSIZE"),
            ],
            where=place_of(seen, "CUDA_CACHE_MAXSIZE"),
            candidates=[Setting("env.CUDA_CACHE_MAXSIZE", str(policy.LARGEST_JIT_CACHE_BYTES))],
            remedy="Set CUDA_CACHE_MAXSIZE=4294967296, the most there is.",
        )
        return
    if size is None or policy.DEFAULT_JIT_CACHE_BYTES <= size <= policy.LARGEST_JIT_CACHE_BYTES:
        return
    small = size < policy.DEFAULT_JIT_CACHE_BYTES
    severity: Severity = "medium" if small and _compiles_ptx(seen) else "low"
    yield Finding(
        id="jit-cache-too-small",
        severity=weighed(seen, severity),
        kind="start",
        claim=f"CUDA_CACHE_MAXSIZE is {words.num_bytes(size)}; the default is 1 GiB, the most is 4 GiB.",
        share=0.0,
        evidence=[*told(seen, "CUDA_CACHE_MAXSIZE"), *_what_was_kept(seen)],
        where=place_of(seen, "CUDA_CACHE_MAXSIZE"),
        candidates=unset("CUDA_CACHE_MAXSIZE"),
        remedy="Take it away, or set CUDA_CACHE_MAXSIZE=4294967296.",
    )


def _what_was_kept(seen: Seen) -> list[str]:
    kept = known_number(seen, "start.cuda_kept_bytes")
    if kept is None or not _compiles_ptx(seen):
        return []
    what = f"the cache holds {words.num_bytes(kept)}" if kept else "nothing is kept: a binary larger than that never is"
    return [f"after starts with it, {what}", *without_machine_code(seen)]


@rule("machine")
def jit_cache_not_persistent(seen: Seen) -> Iterator[Finding]:
    """The kernels that the driver compiled are gone with the container.

    Sees: kernels that the driver compiles, and its cache in a folder that cannot be written, or that goes with the
    container or the machine's memory: CUDA_CACHE_PATH, or ~/.nv/ComputeCache.

    Costs: each fresh container compiles them again, seconds to many minutes.

    Wrong when: the image brings the cache with it, compiled for this GPU and this driver.
    """
    if no_gpu(seen) or is_on(seen.variable("CUDA_CACHE_DISABLE")) or _compiles_ptx(seen) is False:
        return
    if _compiles_ptx(seen) is None:
        raise Missing("torch.runs_natively", "whether the driver compiles anything is not known")
    writable = seen.truth("cache.cuda.writable")
    if writable and seen.truth("cache.cuda.lasts"):
        return
    yield Finding(
        id="jit-cache-not-persistent",
        severity=at_least(severity_of_driver(seen), "medium") if left_by_driver(seen) else "medium",
        kind="start",
        claim="Kernels that the driver compiles are kept in a folder that does not last."
        if writable
        else "Kernels that the driver compiles cannot be kept: the folder of its cache cannot be written.",
        share=0.0,
        evidence=[seen.mentions("cache.cuda.path"), seen.mentions("cache.cuda.storage"), *what_it_saves(seen)],
        remedy="Set CUDA_CACHE_PATH to a folder on a volume that stays, or bring the cache along: "
        "dynotune startup pack.",
    )


@rule("machine")
def jit_cache_disabled(seen: Seen) -> Iterator[Finding]:
    """The driver forgets the kernels that it compiled.

    Sees: CUDA_CACHE_DISABLE is on.

    Costs: each start compiles them again, seconds to many minutes, where torch or an extension has no machine code for
    this GPU; nothing elsewhere.

    Wrong when: the start is being measured without a cache.
    """
    if not is_on(seen.variable("CUDA_CACHE_DISABLE")):
        return
    compiles = _compiles_ptx(seen)
    severity: Severity = "low" if compiles is False else "high" if compiles else "medium"
    yield Finding(
        id="jit-cache-disabled",
        severity=weighed(seen, severity),
        kind="start",
        claim="CUDA_CACHE_DISABLE makes the driver compile kernels again at each start.",
        share=0.0,
        evidence=[
            *told(seen, "CUDA_CACHE_DISABLE"),
            seen.mentions("torch.runs_natively"),
            *without_machine_code(seen),
        ],
        where=place_of(seen, "CUDA_CACHE_DISABLE"),
        candidates=unset("CUDA_CACHE_DISABLE"),
        remedy="Take it away; CUDA_CACHE_PATH puts the cache where it lasts.",
    )


@rule("machine")
def lazy_first_call_jitter(seen: Seen) -> Iterator[Finding]:
    """Kernels are loaded when they are first called, one request after another.

    Sees: of a start that was watched until its steps were steady, what the steps after the first took beyond a steady
    one without anything being compiled, on a GPU whose kernels are loaded lazily.

    Costs: the first calls of a service; no step after them.

    Wrong when: the first steps do more for another reason, as algorithms are tried or memory is taken.
    """
    if no_gpu(seen) or (seen.variable("CUDA_MODULE_LOADING") or "").upper() == "EAGER":
        return
    if known(seen, "start.cuda_start_s") is None:
        raise Missing("a start that was timed", "dynotune startup time -- COMMAND times it and says what it is made of")
    if seen.number("start.cuda_start_s") <= 0:
        return
    late_s = seen.number("start.late_s")
    if late_s < policy.LATE_STEPS_S:
        return
    yield Finding(
        id="lazy-first-call-jitter",
        severity="low",
        kind="jitter",
        claim="The steps after the first take longer than later ones, as kernels are loaded when first called.",
        share=0.0,
        evidence=[f"{words.duration(late_s)} in all, with warm caches", *told(seen, "CUDA_MODULE_LOADING")],
        candidates=[Setting("env.CUDA_MODULE_LOADING", "EAGER")],
        remedy="In a service call every shape once before the first request. CUDA_MODULE_LOADING=EAGER loads all "
        "kernels at the start, which takes longer and more memory.",
    )


@rule("machine")
def module_loading_eager(seen: Seen) -> Iterator[Finding]:
    """All kernels are loaded at the start.

    Sees: CUDA_MODULE_LOADING=EAGER.

    Costs: seconds at the start and hundreds of MiB of GPU memory, for kernels that are never called. No step.

    Wrong when: a service must not pay at the first call of a kernel.
    """
    if (seen.variable("CUDA_MODULE_LOADING") or "").upper() != "EAGER":
        return
    yield Finding(
        id="module-loading-eager",
        severity=weighed(seen, "medium"),
        kind="start",
        claim="CUDA_MODULE_LOADING=EAGER loads every kernel at the start, used or not.",
        share=0.0,
        evidence=told(seen, "CUDA_MODULE_LOADING"),
        where=place_of(seen, "CUDA_MODULE_LOADING"),
        candidates=unset("CUDA_MODULE_LOADING"),
        remedy="Take it away: kernels are then loaded when they are first called.",
    )
