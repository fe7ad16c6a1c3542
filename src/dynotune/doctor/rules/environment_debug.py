"""What was switched on to find a mistake, and caches that were switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dynotune.doctor import policy
from dynotune.doctor.machine import (
    NOT_MEASURED,
    in_words,
    is_on,
    is_watched,
    known,
    known_number,
    place_of,
    shares,
    told,
    unset,
    weighed,
)
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.doctor.startup_shared import what_it_saves
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES, Compilation


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in values


def _asks_for_debug(value: str) -> bool:
    """TORCH_LOGS: a component at debug level, `+dynamo` or `all`, or code that is written out."""
    parts = {part.strip() for part in value.split(",")}
    return any(part.startswith("+") for part in parts) or bool(parts & {"all", "output_code", "graph_code", "bytecode"})


class Flag(NamedTuple):
    """A variable that helps to find mistakes: when it counts, how much it weighs, what it does.

    Args:
        on_gpu: it acts where there is a GPU alone.
    """

    name: str
    counts: Callable[[str], bool]
    severity: Severity
    does: str
    on_gpu: bool = False


CHECKS_COLLECTIVES = "checks each collective against the other ranks"
FLAGS = (
    Flag("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "medium", CHECKS_COLLECTIVES),
    Flag("TORCH_DISTRIBUTED_DEBUG", _is("INFO"), "low", "logs more than it needs to"),
    Flag("NCCL_DEBUG", _is("TRACE"), "medium", "writes a line for each call of NCCL", on_gpu=True),
    Flag("TORCH_COMPILE_DEBUG", is_on, "medium", "writes every graph and kernel of torch.compile to disk"),
    Flag("TORCHINDUCTOR_NAN_ASSERTS", is_on, "medium", "checks every output of compiled code for NaN"),
    Flag("TORCH_LOGS", _asks_for_debug, "low", "logs at debug level"),
    Flag("TORCH_CPP_LOG_LEVEL", _is("INFO"), "low", "logs at info level in C++"),
    Flag("CUDNN_LOGINFO_DBG", is_on, "low", "logs each call of cuDNN", on_gpu=True),
    Flag("CUDNN_LOGLEVEL_DBG", _is("2", "3"), "low", "logs each call of cuDNN", on_gpu=True),
    Flag("CUBLAS_LOGINFO_DBG", is_on, "low", "logs each call of cuBLAS", on_gpu=True),
    Flag("CUBLASLT_LOG_LEVEL", _is("2", "3", "4", "5"), "low", "logs each call of cuBLASLt", on_gpu=True),
    Flag("MALLOC_PERTURB_", is_on, "low", "fills memory at each allocation and release"),
    Flag("MALLOC_CHECK_", is_on, "low", "checks the C allocator's lists"),
)

NCCL = {
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for each collective",
    "NCCL_BLOCKING_WAIT": "the host waits for each collective",
    "TORCH_NCCL_NAN_CHECK": "each buffer is searched for NaN before it is sent",
    "TORCH_NCCL_ENABLE_TIMING": "events with time stamps around each collective",
    "TORCH_NCCL_DESYNC_DEBUG": "each collective is reported to a store",
}

COMPILE_CACHES: dict[str, Callable[[str], bool]] = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": is_on,
    "TORCHINDUCTOR_FX_GRAPH_CACHE": lambda value: not is_on(value),
    "TORCHINDUCTOR_AUTOGRAD_CACHE": lambda value: not is_on(value),
    "TRITON_ALWAYS_COMPILE": is_on,
}


def _set(seen: Seen, name: str, counts: Callable[[str], bool]) -> bool:
    value = seen.variable(name)
    return value is not None and counts(value)


@rule("machine", explains=["host-bound", "launch-bound", "sync-per-step", "communication-exposed"])
def debug_flags_left_on(seen: Seen) -> Iterator[Finding]:
    """Something that helps to find mistakes was left on.

    Sees: variables that make torch, NCCL, cuDNN or cuBLAS check or log what they do; of a watched program, also
    anomaly detection of autograd.

    Costs: host time for each call that is checked or logged; where each collective is checked, at most the exposed
    communication of a step. Anomaly detection keeps a stack trace for each operator and searches every gradient for
    NaN, for which the host waits.

    Wrong when: the mistake is still being looked for.
    """
    flags = [flag for flag in FLAGS if _set(seen, flag.name, flag.counts)]
    anomaly = known(seen, "live.anomaly_mode") is True
    if not flags and not anomaly:
        return
    names = list(dict.fromkeys(flag.name for flag in flags))
    weights = [weighed(seen, flag.severity) if flag.on_gpu else flag.severity for flag in flags]
    severity: Severity = "high" if anomaly else "medium" if "medium" in weights else "low"
    share = _bound_of_anomaly_mode(seen) if anomaly else _bound_of_flags(seen, flags)
    if isinstance(share, float):
        severity = policy.severity(share)
    evidence = ["torch.autograd.set_detect_anomaly(True) is in force"] if anomaly else []
    evidence += [f"{told(seen, flag.name)[0]}: {flag.does}" for flag in flags]
    yield Finding(
        id="debug-flags-left-on",
        severity=severity,
        claim="Anomaly detection of autograd is on."
        if anomaly
        else f"{in_words(names)} {'are' if len(names) > 1 else 'is'} set, as one does to find a mistake.",
        share=share,
        evidence=evidence,
        where=place_of(seen, *names),
        candidates=unset(*names),
        remedy=" ".join(
            [
                *(["Call torch.autograd.set_detect_anomaly(False) once the mistake is found."] if anomaly else []),
                *(["Take the variables away."] if names else []),
            ]
        ),
    )


def _bound_of_anomaly_mode(seen: Seen) -> float | Unknown:
    """What stack traces and searches for NaN take at most: the host's share, and pointwise and reducing kernels.

    On the CPU the stack of each operator is kept inside of the operator, whatever its name: nothing bounds that.
    """
    parts = shares(seen)
    if parts is None:
        return NOT_MEASURED
    if not seen.uses_cuda:
        return Unknown("on the CPU it is part of every operator's own time")
    try:
        return min(parts.host + seen.kernel_share("elementwise", "reduction"), 1.0)
    except Missing:
        return NOT_MEASURED


def _bound_of_flags(seen: Seen, flags: Sequence[Flag]) -> float | Unknown:
    """What checking each collective takes at most; nothing bounds the others."""
    parts = shares(seen)
    if parts is None or flags[0].does != CHECKS_COLLECTIVES or len(flags) > 1 or not parts.communication:
        return NOT_MEASURED
    return parts.communication


@rule("machine")
def torch_nccl_debug(seen: Seen) -> Iterator[Finding]:
    """torch watches its collectives more closely than it needs to.

    Sees: TORCH_NCCL_BLOCKING_WAIT, TORCH_NCCL_NAN_CHECK, TORCH_NCCL_ENABLE_TIMING or TORCH_NCCL_DESYNC_DEBUG is on.

    Costs: a host that waits for each collective cannot queue what follows; a search for NaN reads each buffer once
    more.

    Wrong when: a hang is being looked for.
    """
    names = [name for name in NCCL if is_on(seen.variable(name))]
    if not names:
        return
    several = (known_number(seen, "gpu.count") or 2) > 1
    waits = any(name.endswith(("BLOCKING_WAIT", "NAN_CHECK")) for name in names)
    yield Finding(
        id="torch-nccl-debug",
        severity=weighed(seen, "medium" if several and waits else "low"),
        claim=f"{in_words(names)} {'slow' if len(names) > 1 else 'slows'} collectives down.",
        share=NOT_MEASURED,
        evidence=[f"{line}: {NCCL[name]}" for name, line in zip(names, told(seen, *names), strict=True)],
        where=place_of(seen, *names),
        candidates=unset(*names),
        remedy="Take them away once the hang is found.",
    )


@rule("machine")
def caches_disabled(seen: Seen) -> Iterator[Finding]:
    """torch.compile keeps nothing of what it compiled.

    Sees: TORCHINDUCTOR_FORCE_DISABLE_CACHES, TORCHINDUCTOR_FX_GRAPH_CACHE=0, TORCHINDUCTOR_AUTOGRAD_CACHE=0 or
    TRITON_ALWAYS_COMPILE; of a watched program, also what its configuration says, and a cache folder that it set itself
    and that was another one in each of two runs.

    Costs: each start compiles everything again, seconds to minutes. No step once it runs.

    Wrong when: compiling itself is being worked on, or nothing is compiled.
    """
    names = [name for name, counts in COMPILE_CACHES.items() if _set(seen, name, counts)]
    live = [
        text
        for name, off, text in (
            ("live.inductor_caches_disabled", True, "torch.compiler.config.force_disable_caches is true"),
            ("live.inductor_fx_graph_cache", False, "torch._inductor.config.fx_graph_cache is false"),
        )
        if known(seen, name) is off
    ]
    fresh = str(known(seen, FRESH_CACHES) or "").split()
    if not names and not live and not fresh:
        return
    off = "The caches of torch.compile are off" if names or live else "Each start has a compile cache of its own"
    unused = not isinstance(seen.observation.processes, Unknown) and not _compiles(seen)
    unused = unused or known_number(seen, "start.num_graphs") == 0
    yield Finding(
        id="caches-disabled",
        severity="low" if unused else "medium",
        kind="start",
        claim=f"{off}: each start compiles everything again.",
        share=0.0,
        evidence=[*told(seen, *names, *fresh), *live, *what_it_saves(seen)],
        where=place_of(seen, *names, *fresh),
        candidates=unset(*names),
        remedy="Leave the caches on; TORCHINDUCTOR_CACHE_DIR puts them where they last."
        if names or live
        else f"Do not set {fresh[0]} to a new folder at each start: give it one that lasts.",
    )


def _compiles(seen: Seen) -> bool:
    """Something was compiled by torch.compile, or that is not known."""
    compilation = seen.process.compilation if seen.observation.processes else None
    return isinstance(compilation, Compilation) and compilation.num_graphs > 0


@rule("machine")
def bytecode_not_kept(seen: Seen) -> Iterator[Finding]:
    """Python compiles the modules that it imports anew at each start.

    Sees: torch's modules are not there in compiled form, and PYTHONDONTWRITEBYTECODE is set, or where they would lie
    cannot be written to.

    Costs: seconds at each start: a small training took 8.2 s to its first step, and 3.0 s with its modules compiled.
    Each worker that is spawned, and each rank, pays too. No step once it runs: of a command that was watched its
    severity is low.

    Wrong when: the program starts once and runs for days.
    """
    if seen.truth("torch.bytecode"):
        return
    name = "PYTHONDONTWRITEBYTECODE"
    refused = bool(seen.variable(name))
    if not refused and seen.truth("torch.bytecode_writable"):
        return
    folder, python = known(seen, "torch.folder"), known(seen, "python.executable")
    packages = str(folder).rpartition("/")[0] if folder else ""
    way = f"Take {name} away" if refused else "Let PYTHONPYCACHEPREFIX name a folder that lasts"
    compiles = [f"{python} -m compileall -q {packages}"] if packages and python else []
    yield Finding(
        id="bytecode-not-kept",
        severity="low" if is_watched(seen) else "medium",
        kind="start",
        claim="Python compiles all modules that it imports anew at each start, torch's among them.",
        share=0.0,
        evidence=told(seen, name) if refused else ["they are not there, and cannot be written where they would be"],
        where=place_of(seen, name),
        remedy=f"{way}, or compile once: in an image, as it is built.",
        commands=compiles,
    )


@rule("machine")
def jiterator_cache(seen: Seen) -> Iterator[Finding]:
    """torch compiles some of its own kernels anew at each start.

    Sees: USE_PYTORCH_KERNEL_CACHE=0.

    Costs: seconds at the first call of each special function that torch compiles at run time. No step after it.

    Wrong when: the program calls none of them.
    """
    if _set(seen, "USE_PYTORCH_KERNEL_CACHE", lambda value: not is_on(value)):
        yield Finding(
            id="jiterator-cache",
            severity="low",
            kind="start",
            claim="USE_PYTORCH_KERNEL_CACHE=0: kernels that torch compiles at run time are not kept.",
            share=0.0,
            evidence=told(seen, "USE_PYTORCH_KERNEL_CACHE"),
            where=place_of(seen, "USE_PYTORCH_KERNEL_CACHE"),
            candidates=unset("USE_PYTORCH_KERNEL_CACHE"),
            remedy="Take it away; PYTORCH_KERNEL_CACHE_PATH puts the cache where it lasts.",
        )
