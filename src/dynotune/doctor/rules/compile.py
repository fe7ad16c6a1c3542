"""Compilation: torch.compile where it falls short, and CUDA graphs that were asked for and are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import (
    PRODUCTS,
    at_least,
    main_model,
    operator_share,
    operators,
    place_of,
    saved,
    severity_of,
    waits_for_host,
)
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.doctor.rules.sync import breaks_a_graph
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Compilation
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Caller, Place

OF_MODEL: tuple[Caller, ...] = ("program", "library", "backward", "unknown")
GRAPH_MODES = ("reduce-overhead", "max-autotune")
SHOWN = 3
_PIECE = re.compile(r"## Call CompiledFxGraph")
_GENERATED = re.compile(r"## Call CompiledFxGraph|Torch-Compiled Region|TorchDynamo Cache Lookup")
_BREAK = re.compile(r"(?:\d+x )?(?P<file>.+?\.py):(?P<line>\d+): ")
_CHANGED = re.compile(r"size|shape|stride|rank|dimension", re.IGNORECASE)


@rule("program")
def compile_default(seen: Seen) -> Iterator[Finding]:
    """Pointwise kernels run one by one.

    Sees: pointwise, normalising and reducing kernels take a fifth of the kernels' time or more in a model that is not
    compiled.

    Costs: at most their time but for one, the longest, of each row of them that nothing interrupts, as far as the
    device sets the pace: compiled, such a row runs as one. A sum over the batch ends a row.

    Wrong when: shapes vary much, or the program ends before compiling has paid for itself. Results change in their
    last digits.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("compile-default")
    share = saved(seen, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE or any(model.compiled for model in seen.models):
        return
    yield Finding(
        id="compile-default",
        severity="medium" if share >= policy.MUCH_FUSABLE else "low",
        claim="Kernels that read and write memory once for each small operation take the time.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses, main_model(seen)),
        candidates=[Setting("compile.mode", "default")],
        remedy="Compile the model: torch.compile(model).",
    )


@rule("program", explains=["launch-bound", "host-bound", "compile-default"])
def graph_breaks(seen: Seen) -> Iterator[Finding]:
    """torch.compile cuts the model into pieces.

    Sees: graph breaks that torch counted while it compiled; or a compiled model of which torch made no graph at all, as
    after a break inside a loop, which it does without a word.

    Costs: at most what compiling whole could spare: the device's waits for the host, what `compile-default` counts of
    pointwise kernels, and three quarters of those that were generated, as many as there are cuts; without a device the
    time of Python, and three quarters of that of operators that were not compiled and are no products, and of what the
    pieces' generated code takes if it were one piece. Or what waiting costs for values on which the code branches.

    Wrong when: what breaks the graph is needed, and runs once in many calls.
    """
    compilation = _compiled(seen)
    if compilation is None:
        return
    gave_up = not compilation.num_graphs and bool(compilation.modes) and any(model.compiled for model in seen.models)
    if not (compilation.num_graph_breaks or compilation.skipped or gave_up):
        return
    share = _spared(seen)
    if not isinstance(share, Unknown):
        share = max(share, _waits_at_breaks(seen))
    severity = severity_of(share, "medium")
    num = compilation.num_graph_breaks
    reasons = [*compilation.breaks, *compilation.skipped]
    yield Finding(
        id="graph-breaks",
        severity=at_least(severity, "medium") if gave_up else severity,
        claim="torch.compile made no graph of the model: all of it runs uncompiled."
        if gave_up
        else f"torch.compile broke the graph {num} {'time' if num == 1 else 'times'}; Python runs between the pieces."
        if num
        else "torch.compile left some functions uncompiled.",
        share=share,
        evidence=reasons[:SHOWN] or [f"modes: {', '.join(compilation.modes)}; graphs: {compilation.num_graphs}"],
        where=_place(reasons) or place_of([], main_model(seen)),
        remedy="Take what breaks it (print, .item(), data-dependent branches, unknown calls) out of forward, and prove "
        "it with torch.compile(fullgraph=True).",
    )


@rule("program", explains=["launch-bound", "host-bound", "compile-default", "recompile-jitter"])
def recompiles(seen: Seen) -> Iterator[Finding]:
    """torch.compile compiles the same code again, or has given up.

    Sees: recompilations that torch counted. Functions that reached the limit, 8 by default, run uncompiled from then
    on, and torch says so once.

    Costs: given up, at most what compiling spares, as for `graph-breaks`. Else what steps of the window take beyond
    the median, if something was compiled in it; the first steps alone if not.

    Wrong when: all shapes have been seen after a while.
    """
    compilation = _compiled(seen)
    if compilation is None or not (compilation.limit_reached or compilation.num_recompilations):
        return
    again = f"{compilation.num_recompilations} recompilations, {compilation.num_compilations_in_window} compilations "
    evidence = [f"{again}in the window", *compilation.recompilations[:SHOWN]]
    remedy = (
        "Pad or bucket inputs, or mark what varies (torch._dynamo.mark_dynamic, torch.compile(dynamic=True))."
        if not compilation.recompilations or _CHANGED.search(" ".join(compilation.recompilations))
        else "Pass what changes as a tensor, or leave it out of the compiled function."
    )
    where = place_of([], main_model(seen))
    if compilation.limit_reached:
        yield Finding(
            id="recompiles",
            severity="high",
            claim=f"torch.compile reached its limit of recompilations in {', '.join(compilation.limit_reached[:SHOWN])}"
            ", which runs uncompiled since.",
            share=_spared(seen),
            evidence=evidence,
            where=where,
            remedy=remedy,
        )
        return
    timing = seen.timing
    in_window = compilation.num_compilations_in_window > 0
    share = max(0.0, 1.0 - timing.median_step_s / timing.step_s) if in_window and timing.step_s else 0.0
    yield Finding(
        id="recompiles",
        severity=at_least(severity_of(share, "low"), "medium") if in_window else "low",
        kind="speed" if in_window else "start",
        claim=f"torch.compile compiled the same code again {compilation.num_recompilations} times.",
        share=share if in_window else Unknown("it cost time before the window"),
        evidence=evidence,
        where=where,
        remedy=remedy,
    )


@rule("program", explains=["launch-bound", "host-bound"])
def cudagraph_skipped(seen: Seen) -> Iterator[Finding]:
    """CUDA graphs were asked for and are not used.

    Sees: a mode of torch.compile that uses CUDA graphs, and reasons why TorchInductor left them out.

    Costs: at most the device's waits for the host: a graph is launched as one.

    Wrong when: the device is busy all the time anyway.
    """
    compilation = _compiled(seen)
    if compilation is None or not seen.uses_cuda or not compilation.cudagraph_skips:
        return
    if not any(mode in GRAPH_MODES for mode in compilation.modes):
        return
    shares = _shares_of_host(seen)
    yield Finding(
        id="cudagraph-skipped",
        severity=severity_of(shares, "medium"),
        claim="torch.compile was asked for CUDA graphs and left them out.",
        share=shares,
        evidence=[f"modes: {', '.join(compilation.modes)}", *compilation.cudagraph_skips[:SHOWN]],
        where=_place(compilation.cudagraph_skips) or place_of([], main_model(seen)),
        remedy="Take away the reason that torch gives: inputs changed in place, operations on the CPU, or shapes that "
        "vary.",
    )


@rule("program", explains=["launch-bound", "host-bound"])
def cudagraph_rerecord(seen: Seen) -> Iterator[Finding]:
    """CUDA graphs are recorded again for each input shape.

    Sees: a mode of torch.compile that uses CUDA graphs, and graphs that were recorded within the window.

    Costs: at most what the device waits for the host meanwhile. Each graph also keeps memory of its own.

    Wrong when: all shapes have been seen after a while.
    """
    compilation = _compiled(seen)
    if compilation is None or not seen.uses_cuda or not any(mode in GRAPH_MODES for mode in compilation.modes):
        return
    recorded = compilation.num_cudagraphs_in_window
    if recorded is None:
        raise Missing("how often CUDA graphs were recorded", "torch does not say")
    if not recorded:
        return
    share = _shares_of_host(seen)
    yield Finding(
        id="cudagraph-rerecord",
        severity=severity_of(share, "medium"),
        claim=f"CUDA graphs were recorded {recorded} times within the window.",
        share=share,
        evidence=[f"modes: {', '.join(compilation.modes)}"],
        where=place_of([], main_model(seen)),
        remedy="Pad inputs to a few shapes, or set torch._inductor.config.triton.cudagraph_skip_dynamic_graphs.",
    )


def _compiled(seen: Seen) -> Compilation | None:
    """None where nothing was compiled, and where that can be told by the modules.

    Raises:
        Missing: something is compiled, and what torch did is not known.
    """
    compilation = seen.process.compilation
    if not isinstance(compilation, Unknown):
        return compilation
    if any(model.compiled for model in seen.models) or "not used" not in compilation.reason:
        raise Missing("what torch.compile did", compilation.reason)
    return None


def _spared(seen: Seen) -> float | Unknown:
    """Of a plain step, what compiling the model whole can spare at most."""
    try:
        host = waits_for_host(seen)
        if seen.uses_cuda:
            fused = seen.lost("compile-default") + policy.FUSABLE * _at_cuts(seen)
            return min(1.0, host + saved(seen, fused))
        return min(1.0, host + policy.FUSABLE * (_uncompiled(seen) + _in_pieces(seen)))
    except Missing as missing:
        return Unknown(f"{missing.name}: {missing.reason}")


def _waits_at_breaks(seen: Seen) -> float:
    """Of a plain step, what is lost by waiting for the values at which graphs are cut."""
    losses = seen.losses("sync-per-step") if seen.uses_cuda else []
    if not losses or not all(breaks_a_graph(seen, loss) for loss in losses):
        return 0.0
    return max(sum(loss.share for loss in losses), seen.attribution.counterfactual_savings.get("sync-per-step", 0.0))


def _uncompiled(seen: Seen) -> float:
    """Of a plain step of a program without a device, operators that compiling could fuse.

    Those in generated code are compiled already; products and convolutions stay calls of a library; optimizers and
    loaders are no part of the model.
    """
    rows = [row for row in seen.trace.operators if row.name.startswith("aten::") and row.name not in PRODUCTS]
    all_s = sum(row.self_s for row in seen.trace.operators)
    fusable_s = sum(called.self_s for row in rows for caller, called in row.callers.items() if caller in OF_MODEL)
    fusable_s += sum(row.self_s for row in rows if not row.callers)
    return fusable_s / all_s * seen.attribution.shares.device if all_s else 0.0


def _at_cuts(seen: Seen) -> float:
    """Of a plain step, generated kernels that the pieces' ends keep apart: each cut at most one from the next."""
    if not seen.compilation.num_graph_breaks:
        return 0.0  # models that are compiled part by part are in pieces too
    num = sum(row.num for row in seen.kernels.classes if row.name == "inductor")
    pieces = sum(row.num for row in operators(seen, _PIECE.match))
    cuts = pieces - (seen.trace.num_steps or 1)
    return seen.kernel_share("inductor") * min(1.0, cuts / num) if num and cuts > 0 else 0.0


def _in_pieces(seen: Seen) -> float:
    """Of a plain step of a program without a device, generated code and entering it, but for one piece of them."""
    pieces = operators(seen, _PIECE.match)
    num = sum(row.num for row in pieces) / (seen.trace.num_steps or 1)
    return operator_share(seen, _GENERATED.match) * (1.0 - 1.0 / num) if num > 1 else 0.0


def _shares_of_host(seen: Seen) -> float | Unknown:
    try:
        return seen.attribution.shares.host
    except Missing as missing:
        return Unknown(f"{missing.name}: {missing.reason}")


def _place(reasons: list[str]) -> Place | None:
    """Of the first reason that names a line: `3x /home/me/model.py:31: …`."""
    for reason in reasons:
        if match := _BREAK.match(reason):
            return Place(f"{match['file']}({match['line']}): forward")
    return None
