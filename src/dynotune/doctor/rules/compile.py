"""Compilation: graph breaks, recompilations, and CUDA graphs that torch.compile left out."""

import re

from dynotune.doctor import bounds, policy
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.observation_view import Missing, ObservationView, or_else, or_unknown
from dynotune.doctor.rules.sync import breaks_a_graph
from dynotune.schema.compilation import Compilation
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Caller, Place

OF_MODEL: tuple[Caller, ...] = ("program", "library", "backward", "unknown")
GRAPH_MODES = ("reduce-overhead", "max-autotune")
SHOWN = 3
_PIECE = re.compile(r"## Call CompiledFxGraph")
_GENERATED = re.compile(r"## Call CompiledFxGraph|Torch-Compiled Region|TorchDynamo Cache Lookup")
_BREAK = re.compile(r"(?:\d+x )?(?P<file>.+?\.py):(?P<line>\d+): ")
_CHANGED = re.compile(r"size|shape|stride|rank|dimension", re.IGNORECASE)


@cuda_rule(family="compile")
def compile_default(view: ObservationView) -> Judgements:
    losses = view.losses("compile-default")
    share = bounds.saving(view, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE or any(model.compiled for model in view.models):
        return
    yield Judgement(
        severity="medium" if share >= policy.MUCH_FUSABLE else "low",
        share=share,
        losses=losses,
        model=bounds.main_model(view),
    )


@rule(family="compile")
def graph_breaks(view: ObservationView) -> Judgements:
    compilation = compiled(view)
    if compilation is None:
        return
    gave_up = (
        not compilation.num_graphs
        and bool(compilation.modes)
        and any(model.compiled for model in view.models)
    )
    if not (compilation.num_graph_breaks or compilation.skipped or gave_up):
        return
    share = or_unknown(lambda: _spared(view))
    if not isinstance(share, Unknown):
        share = max(share, _waits_at_breaks(view))
    severity = bounds.severity_of(share, "medium")
    num = compilation.num_graph_breaks
    reasons = [*compilation.breaks, *compilation.skipped]
    yield Judgement(
        severity=bounds.at_least(severity, "medium") if gave_up else severity,
        claim="torch.compile made no graph of the model: all of it runs uncompiled."
        if gave_up
        else (
            f"torch.compile broke the graph {num} {'time' if num == 1 else 'times'}; Python runs between "
            "the pieces."
        )
        if num
        else "torch.compile left some functions uncompiled.",
        share=share,
        evidence=reasons[:SHOWN]
        or [f"modes: {', '.join(compilation.modes)}; graphs: {compilation.num_graphs}"],
        where=_place(reasons),
        model=bounds.main_model(view),
    )


@rule(family="compile")
def recompiles(view: ObservationView) -> Judgements:
    compilation = compiled(view)
    if compilation is None or not (compilation.limit_reached or compilation.num_recompilations):
        return
    again = (
        f"{compilation.num_recompilations} recompilations, {compilation.num_compilations_in_window} "
        "compilations "
    )
    evidence = [f"{again}in the window", *compilation.recompilations[:SHOWN]]
    remedy = (
        (
            "Pad or bucket inputs, or mark sizes that vary (torch._dynamo.mark_dynamic, "
            "torch.compile(dynamic=True))."
        )
        if not compilation.recompilations or _CHANGED.search(" ".join(compilation.recompilations))
        else "Pass the value that changes as a tensor, or keep it out of the compiled function."
    )
    severity: Severity = "high"
    limit, now = compilation.limit_reached, compilation.num_compilations_in_window > 0
    claim = (
        f"torch.compile reached its limit of recompilations in {', '.join(limit[:SHOWN])}, uncompiled since."
    )
    share = or_unknown(lambda: _spared(view))
    if not limit:
        timing = view.timing
        beyond = max(0.0, 1.0 - timing.median_step_s / timing.step_s) if timing.step_s else 0.0
        severity = bounds.at_least(policy.severity(beyond), "medium") if now else "low"
        claim = f"torch.compile compiled the same code again {compilation.num_recompilations} times."
        share = beyond if now else Unknown("it cost time before the window")
    yield Judgement(
        severity=severity,
        kind="speed" if limit or now else "start",
        claim=claim,
        share=share,
        evidence=evidence,
        model=bounds.main_model(view),
        remedy=remedy,
    )


@rule(family="compile")
def cudagraph_skipped(view: ObservationView) -> Judgements:
    compilation = compiled(view)
    if compilation is None or not view.uses_cuda:
        return
    if not any(mode in GRAPH_MODES for mode in compilation.modes):
        return
    replays_none = or_else(lambda: _replays_no_graph(view), False)
    if not compilation.cudagraph_skips and not replays_none:
        return
    yield Judgement(
        otherwise="medium",
        claim="torch.compile was asked for CUDA graphs, but no recorded step replays one."
        if replays_none
        else "",
        share=or_unknown(lambda: view.attribution.shares.host),
        evidence=[
            f"modes: {', '.join(compilation.modes)}",
            *(compilation.cudagraph_skips or compilation.recompilations)[:SHOWN],
        ],
        where=_place(compilation.cudagraph_skips),
        model=bounds.main_model(view),
    )


def _replays_no_graph(view: ObservationView) -> bool:
    """Tell whether all kernels were launched one by one. Raises Missing: nothing was recorded.

    A graph is recorded when a shape comes for the second time; until then its calls run without one.
    """
    known = [rank for rank in view.trace.kernels if rank.in_graphs is not None and rank.num]
    return bool(known) and not any(rank.in_graphs for rank in known)


@rule(family="compile")
def cudagraph_rerecord(view: ObservationView) -> Judgements:
    compilation = compiled(view)
    if (
        compilation is None
        or not view.uses_cuda
        or not any(mode in GRAPH_MODES for mode in compilation.modes)
    ):
        return
    recorded = compilation.num_cudagraphs_in_window
    if recorded is None:
        raise Missing("how often CUDA graphs were recorded", "torch does not say")
    if not recorded:
        return
    yield Judgement(
        otherwise="medium",
        claim=f"CUDA graphs were recorded {recorded} times within the window.",
        share=or_unknown(lambda: view.attribution.shares.host),
        evidence=[f"modes: {', '.join(compilation.modes)}"],
        model=bounds.main_model(view),
    )


def compiled(view: ObservationView) -> Compilation | None:
    """Return what torch compiled; None if nothing was compiled.

    Raises Missing: some code is compiled, and torch's counters are not known.
    """
    compilation = view.process.compilation
    if not isinstance(compilation, Unknown):
        return compilation
    if any(model.compiled for model in view.models) or "compilation" in view.process.failed:
        raise Missing("what torch.compile did", compilation.reason)
    return None


def _spared(view: ObservationView) -> float:
    """Return the most that compiling the whole model saves of an unrecorded step."""
    host = bounds.waits_for_host(view)
    if view.uses_cuda:
        fused = view.lost("compile-default") + policy.FUSABLE * _at_cuts(view)
        return min(1.0, host + bounds.saving(view, fused))
    return min(1.0, host + policy.FUSABLE * (_uncompiled(view) + _in_pieces(view)))


def _waits_at_breaks(view: ObservationView) -> float:
    """Return the share of an unrecorded step that waits for the values at which graphs are cut."""
    losses = view.losses("sync-per-step") if view.uses_cuda else []
    if not losses or not all(breaks_a_graph(view, loss) for loss in losses):
        return 0.0
    return max(
        sum(loss.share for loss in losses), view.attribution.counterfactual_savings.get("sync-per-step", 0.0)
    )


def _uncompiled(view: ObservationView) -> float:
    """Return the share of an unrecorded step, without a device, of operators that compiling could fuse.

    Generated code is already compiled. Products and convolutions stay library calls. Optimizers and loaders
    are not part of the model.
    """
    rows = [
        row
        for row in view.trace.operators
        if row.name.startswith("aten::") and row.name not in bounds.PRODUCTS
    ]
    all_s = sum(row.self_s for row in view.trace.operators)
    fusable_s = sum(
        called.self_s for row in rows for caller, called in row.callers.items() if caller in OF_MODEL
    )
    fusable_s += sum(row.self_s for row in rows if not row.callers)
    return fusable_s / all_s * view.attribution.shares.device if all_s else 0.0


def _at_cuts(view: ObservationView) -> float:
    """Return the share of an unrecorded step of generated kernels that graph cuts keep apart, at most one for
    each cut."""
    if not view.compilation.num_graph_breaks:
        return 0.0  # models that are compiled layer by layer also consist of pieces
    num = sum(row.num for row in view.kernels.classes if row.name == "inductor")
    pieces = sum(row.num for row in bounds.operators(view, _PIECE.match))
    cuts = pieces - (view.trace.num_steps or 1)
    return view.kernel_share("inductor") * min(1.0, cuts / num) if num and cuts > 0 else 0.0


def _in_pieces(view: ObservationView) -> float:
    """Return the share of an unrecorded step, without a device, of generated code and its entries, except for
    one piece."""
    pieces = bounds.operators(view, _PIECE.match)
    num = sum(row.num for row in pieces) / (view.trace.num_steps or 1)
    return bounds.operator_share(view, _GENERATED.match) * (1.0 - 1.0 / num) if num > 1 else 0.0


def _place(reasons: list[str]) -> Place | None:
    """Return the place in the first reason that has a line: `3x /home/me/model.py:31: …`."""
    for reason in reasons:
        if match := _BREAK.match(reason):
            return Place(f"{match['file']}({match['line']}): forward")
    return None
