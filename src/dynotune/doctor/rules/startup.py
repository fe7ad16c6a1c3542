"""The start of a program: compilation by torch.compile and the driver, their caches, and the loading of
kernels."""

import math
import re
from dataclasses import replace

from dynotune.doctor import machine, policy
from dynotune.doctor.bounds import at_least
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule, rule
from dynotune.doctor.observation_view import Missing, ObservationView, needs
from dynotune.doctor.rules.compile import compiled
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import WHOLE_RUN
from dynotune.schema.setting import Setting
from dynotune.text import words

THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
USUAL_THREADS = 32
"""torch's own maximum."""
BEFORE_STEPS = Unknown("it costs time before the first step")
FORCED_JIT = ("CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT")


@rule(family="startup")
def compile_cold_cache(view: ObservationView) -> Judgements:
    left = view.number_or_none("start.compiler_added_bytes")
    if left and not view.fact_or_none("cache.inductor.off"):
        remedy = (
            "Set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to folders on a volume that lasts, or pack the "
            "caches: dynotune startup pack."
        )
        for lost in _lost(view, "inductor", "torch.compile", "its results", severity_of_start(view), remedy):
            yield replace(lost, share=BEFORE_STEPS)
    if left is not None:
        return
    compilation = compiled(view)
    if compilation is None or not compilation.num_graphs or view.fact_or_none("host.container") is None:
        return
    started_s = view.timing.time_to_first_step_s
    if started_s is None or started_s < policy.LONG_START_S:
        return
    folder = view.variable("TORCHINDUCTOR_CACHE_DIR")
    if folder is not None and not folder.startswith("/tmp"):
        return
    yield Judgement(
        severity="low",
        claim="torch.compile keeps its results in a folder of the container, which is lost with it.",
        share=BEFORE_STEPS,
        evidence=[
            f"{started_s:.0f} s to the first step, {compilation.num_graphs} graphs",
            f"TORCHINDUCTOR_CACHE_DIR: {folder or 'not set: a folder in /tmp'}",
            view.mentions("host.container"),
        ],
    )


@rule(family="startup")
def start_dominates(view: ObservationView) -> Judgements:
    whole_s, timing = view.number_or_none(WHOLE_RUN), view.timing
    if whole_s is None or timing.time_to_first_step_s is None:
        return
    before_s = timing.time_to_first_step_s - timing.step_s
    if before_s < policy.SHORTEST_START_S or before_s < policy.MOST_OF_A_LOSS * whole_s:
        return
    yield Judgement(
        severity="high" if before_s >= policy.MUCH_OF_START_S else "medium",
        claim=f"The command takes {words.duration(whole_s)}, of which {words.duration(before_s)} pass "
        "before its first "
        "step.",
        share=BEFORE_STEPS,
        evidence=[f"{timing.num_steps} steps of {words.duration(timing.step_s)} were timed"],
    )


def _lost(
    view: ObservationView, cache: str, who: str, what: str, severity: Severity, remedy: str
) -> Judgements:
    """Return the finding for a cache whose folder is not writable or does not last."""
    writable = view.truth(f"cache.{cache}.writable")
    if writable and view.truth(f"cache.{cache}.lasts"):
        return
    lost, unwritable = "in a folder that does not last.", "its cache folder is not writable."
    yield Judgement(
        severity=severity,
        kind="start",
        claim=f"{who} keeps {what} {lost}" if writable else f"{who} cannot keep {what}: {unwritable}",
        evidence=[
            view.mentions(f"cache.{cache}.path"),
            view.mentions(f"cache.{cache}.storage"),
            *what_it_saves(view),
        ],
        remedy=remedy,
    )


@machine_rule(family="startup")
def unpacked_caches_unfit(view: ObservationView) -> Judgements:
    if view.fact_or_none("packed.folder") is None:
        return
    dangerous, useless = view.words("packed.dangerous"), view.words("packed.useless")
    variables = view.words("packed.variables")
    folder = view.text("packed.folder")
    if dangerous:
        yield Judgement(
            severity="high",
            kind="correctness",
            claim=f"The unpacked caches in {folder} hold code for another processor: a start may crash.",
            evidence=dangerous,
            remedy="Build the image on a machine like those that run it, or unset the variables that name "
            "the caches.",
        )
    elif useless or variables:
        yield Judgement(
            severity="medium",
            kind="start",
            claim=f"The unpacked caches in {folder} do not fit: code is compiled again at each start.",
            evidence=[*useless, *variables],
            remedy="Fill and pack the caches where all of this is as it is here: dynotune startup warm."
            if useless
            else "Start with the variables of the pack, or fill and pack the caches with these: dynotune "
            "startup warm.",
        )


@machine_rule(family="startup", candidates=[f"env.{THREADS}"])
def compile_threads(view: ObservationView) -> Judgements:
    threads = view.number_or_none("start.compile_threads") or machine.whole_number(view.variable(THREADS))
    if threads is None or threads < 1:
        return
    compile_s = view.number_or_none("start.compile_cold_s")
    if compile_s is not None and compile_s < policy.COMPILING_PART * view.number("start.cold_s"):
        return
    cores = view.number("host.num_cores")
    ranks = machine.whole_number(view.variable("LOCAL_WORLD_SIZE")) or 1
    fair = max(1, int(cores // ranks))
    too_many, too_few = threads > 2 * fair, threads == 1 and fair > 2 and view.variable(THREADS) is not None
    if not (too_many or too_few):
        return
    each = f" for each of {ranks} ranks" if ranks > 1 else ""
    yield Judgement(
        severity="low",
        claim=f"torch.compile compiles in {threads:g} processes{each}, on {cores:g} cores."
        if too_many
        else f"torch.compile compiles in one process, on {cores:g} cores.",
        variables=[THREADS],
        evidence=[view.mentions("host.num_cores"), *what_it_saves(view)],
        candidates=machine.unset(THREADS)
        if fair == min(cores, USUAL_THREADS) and view.variable(THREADS) is not None
        else [Setting(f"env.{THREADS}", str(min(fair, USUAL_THREADS)))],
        remedy=(
            f"Set {THREADS} to the cores of a rank, and compare the time to the first step with cold caches."
        ),
    )


@machine_rule(family="startup", candidates=machine.unset(*FORCED_JIT))
def ptx_jit_active(view: ObservationView) -> Judgements:
    if machine.no_gpu(view) or machine.without_cuda(view):
        return
    forced = [name for name in FORCED_JIT if machine.is_on(view.variable(name))]
    if forced:
        yield Judgement(
            severity="medium",
            kind="start",
            claim=f"{forced[0]} makes the driver compile every kernel, although torch has machine code.",
            variables=forced,
            remedy="Unset it.",
        )
        return
    natively = view.fact_or_none("torch.runs_natively")
    if natively is not False and _compiles_ptx(view):
        yield _compiled_at_start(view)
        return
    if natively is None and view.number_or_none("start.cuda_added_bytes") is not None:
        return  # without torch, and the start compiled nothing
    if view.truth("torch.runs_natively"):
        return
    capability = machine.version(view.text("gpu.compute_capability"))
    compilable = any(
        _capability(name) <= capability for name in view.words("torch.arch_list") if "compute_" in name
    )
    yield Judgement(
        severity="high",
        kind="start" if compilable else "correctness",
        claim="torch has no machine code for this GPU: the driver compiles each kernel at its first use."
        if compilable
        else "torch has no kernels that run on this GPU.",
        share=0.0 if compilable else machine.NOT_MEASURED,
        evidence=[
            view.mentions(name) for name in ("gpu.compute_capability", "torch.arch_list", "torch.version")
        ],
        candidates=[],
        remedy=(
            "Install a torch built for this GPU's architecture, and build extensions for it "
            "(TORCH_CUDA_ARCH_LIST)."
        ),
    )


def _compiled_at_start(view: ObservationView) -> Judgement:
    """Return the finding for kernels of another library or extension, or of a program without torch."""
    left = left_by_driver(view)
    kept = (
        f"a cold start leaves {words.num_bytes(left)} in the driver's cache"
        if left
        else "the cache keeps none of it"
    )
    return Judgement(
        severity=severity_of_driver(view),
        kind="start",
        claim="The driver compiles kernels that have no machine code for this GPU.",
        candidates=[],
        evidence=[kept, *without_machine_code(view), *what_it_saves(view)],
        remedy="Build these libraries for this GPU (TORCH_CUDA_ARCH_LIST, nvcc -gencode); `dynotune "
        "startup scan` "
        "names them. Until then, keep the driver's cache.",
    )


def _capability(arch: str) -> tuple[int, ...]:
    """Convert `compute_90` to (9, 0), `sm_120a` to (12, 0)."""
    digits = re.search(r"_(\d+)(\d)", arch)
    return (int(digits[1]), int(digits[2])) if digits else (99,)


def _compiles_ptx(view: ObservationView) -> bool | None:
    """Tell whether the driver compiles kernels here; None if that is not known."""
    natively = view.fact_or_none("torch.runs_natively")
    if left_by_driver(view) or (natively is None and compiles_unseen(view)):
        return True
    return None if natively is None else not natively


@machine_rule(family="startup")
def jit_cache_too_small(view: ObservationView) -> Judgements:
    again, kept = view.number_or_none("start.cuda_again_bytes"), view.number_or_none("start.cuda_kept_bytes")
    value = view.variable("CUDA_CACHE_MAXSIZE")
    size = machine.whole_number(value)
    if again and left_by_driver(view):
        yield Judgement(
            severity=at_least(severity_of_driver(view), "medium"),
            claim="The driver compiles kernels again: its cache does not hold all of them.",
            evidence=[
                f"a cold start leaves {words.num_bytes(left_by_driver(view))} in it",
                f"a warm start leaves {words.num_bytes(again)} again; it holds {words.num_bytes(kept)}",
                *view.variable_evidence("CUDA_CACHE_MAXSIZE"),
            ],
            where=view.place_of_variable("CUDA_CACHE_MAXSIZE"),
            candidates=[Setting("env.CUDA_CACHE_MAXSIZE", str(policy.LARGEST_JIT_CACHE_BYTES))],
            remedy="Set CUDA_CACHE_MAXSIZE=4294967296, the maximum.",
        )
        return
    if size is None or policy.DEFAULT_JIT_CACHE_BYTES <= size <= policy.LARGEST_JIT_CACHE_BYTES:
        return
    small = size < policy.DEFAULT_JIT_CACHE_BYTES
    severity: Severity = "medium" if small and _compiles_ptx(view) else "low"
    yield Judgement(
        severity=machine.severity_on_gpu(view, severity),
        claim=f"CUDA_CACHE_MAXSIZE is {words.num_bytes(size)}; the default is 1 GiB, the maximum 4 GiB.",
        variables=["CUDA_CACHE_MAXSIZE"],
        evidence=[*_what_was_kept(view)],
        remedy="Unset it, or set CUDA_CACHE_MAXSIZE=4294967296.",
    )


def _what_was_kept(view: ObservationView) -> list[str]:
    kept = view.number_or_none("start.cuda_kept_bytes")
    if kept is None or not _compiles_ptx(view):
        return []
    what = (
        f"the cache holds {words.num_bytes(kept)}"
        if kept
        else "nothing is kept: a binary larger than that never is"
    )
    return [f"after starts with it, {what}", *without_machine_code(view)]


@machine_rule(family="startup")
def jit_cache_not_persistent(view: ObservationView) -> Judgements:
    if (
        machine.no_gpu(view)
        or machine.is_on(view.variable("CUDA_CACHE_DISABLE"))
        or _compiles_ptx(view) is False
    ):
        return
    needs(
        _compiles_ptx(view) is not None,
        "torch.runs_natively",
        "whether the driver compiles anything is not known",
    )
    severity = at_least(severity_of_driver(view), "medium") if left_by_driver(view) else "medium"
    remedy = (
        "Set CUDA_CACHE_PATH to a folder on a volume that lasts, or pack the cache: dynotune startup pack."
    )
    yield from _lost(view, "cuda", "The driver", "its compiled kernels", severity, remedy)


@machine_rule(family="startup")
def jit_cache_disabled(view: ObservationView) -> Judgements:
    if not machine.is_on(view.variable("CUDA_CACHE_DISABLE")):
        return
    compiles = _compiles_ptx(view)
    severity: Severity = "low" if compiles is False else "high" if compiles else "medium"
    yield Judgement(
        severity=machine.severity_on_gpu(view, severity),
        variables=["CUDA_CACHE_DISABLE"],
        evidence=[view.mentions("torch.runs_natively"), *without_machine_code(view)],
    )


@machine_rule(family="startup")
def lazy_first_call_jitter(view: ObservationView) -> Judgements:
    if machine.no_gpu(view) or (view.variable("CUDA_MODULE_LOADING") or "").upper() == "EAGER":
        return
    if view.fact_or_none("start.cuda_start_s") is None:
        raise Missing(
            "a start that was timed", "dynotune startup time -- COMMAND times it and shows its parts"
        )
    if view.number("start.cuda_start_s") <= 0:
        return
    late_s = view.number("start.late_s")
    if late_s < policy.LATE_STEPS_S:
        return
    yield Judgement(
        severity="low",
        evidence=[
            f"{words.duration(late_s)} in all, with warm caches",
            *view.variable_evidence("CUDA_MODULE_LOADING"),
        ],
    )


def severity_of_start(view: ObservationView, most_s: float = math.inf) -> Severity:
    """Return the severity by the time that warm caches save of a measured start, at most `most_s` seconds."""
    saved_s = view.number_or_none("start.saved_s")
    if saved_s is None:
        return "medium"
    saved_s = min(saved_s, most_s)
    return (
        "high"
        if saved_s >= policy.MUCH_OF_START_S
        else "medium"
        if saved_s >= policy.SOME_OF_START_S
        else "low"
    )


def severity_of_driver(view: ObservationView) -> Severity:
    """Return `severity_of_start`, with the saving limited to the most time that the driver's compilation can
    take."""
    return severity_of_start(view, (left_by_driver(view) or math.inf) / policy.LEAST_JIT_BYTES_PER_S)


def left_by_driver(view: ObservationView) -> float:
    """Return the bytes that a cold start leaves in the driver's cache; 0 if unmeasured, or only cuDNN wrote
    them."""
    left = view.number_or_none("start.cuda_added_bytes") or 0.0
    return 0.0 if view.fact_or_none("torch.runs_natively") is True and left <= policy.FEW_JIT_BYTES else left


def compiles_unseen(view: ObservationView) -> bool:
    """Tell whether the driver must compile libraries, but its cache keeps too little to show that."""
    limit = machine.whole_number(view.variable("CUDA_CACHE_MAXSIZE"))
    small = (
        limit is not None
        and limit < policy.SURELY_KEPT_BYTES
        and not view.number_or_none("start.cuda_kept_bytes")
    )
    return bool(view.number_or_none("code.num_compiled")) and (
        small or machine.is_on(view.variable("CUDA_CACHE_DISABLE"))
    )


def without_machine_code(view: ObservationView) -> list[str]:
    """Return evidence of libraries that have only PTX for this GPU, as a whole or in part."""
    num, size = view.number_or_none("code.num_compiled"), view.number_or_none("code.ptx_bytes")
    if not num or size is None:
        return []
    named = view.fact_or_none("code.compiled")
    which = (
        f" ({', '.join(map(str, named))}{', …' if num > len(named) else ''})"
        if isinstance(named, list)
        else ""
    )
    return [
        (
            f"{num:.0f} of its libraries hold {words.num_bytes(size)} of PTX without machine code for this "
            f"GPU{which}"
        )
    ]


def what_it_saves(view: ObservationView) -> list[str]:
    """Return evidence of the times of cold and warm starts, if both were measured."""
    cold_s, warm_s = view.number_or_none("start.cold_s"), view.number_or_none("start.warm_s")
    if cold_s is None or warm_s is None:
        return []
    return [
        (
            f"{words.duration(cold_s)} to the first step with the caches cold, {words.duration(warm_s)} with "
            "them warm"
        )
    ]
