"""Algorithms that cuDNN and torch may use, and whether results must repeat bit by bit."""

from dynotune.doctor import bounds, policy
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.observation_view import ObservationView, evidence_of
from dynotune.doctor.slow_steps import slow_steps
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

REPEATABLE = ("index", "sort", "random", "pooling")
"""Classes of kernels for which torch has a second algorithm with repeatable results."""
_REPEATABLE_ON_CPU = (
    "aten::index_put",
    "aten::_index_put",
    "aten::index_add",
    "aten::scatter",
    "aten::cumsum",
)
_CONVOLUTIONS = ("aten::cudnn_convolution", "aten::convolution_backward")


@rule(family="algorithms")
def cudnn_benchmark_off(view: ObservationView) -> Judgements:
    if not view.uses_cuda or not _may_convolve(view):
        return
    share_of = view.kernel_share("convolution")
    if share_of < policy.CONVOLUTION_SHARE or bounds.num_input_shapes(view) > policy.FEW_SHAPES:
        return
    if view.truth("live.cudnn_benchmark"):
        return
    share = bounds.saving(view, policy.AUTOTUNED * share_of)
    if share < policy.LEAST_SHARE:
        return
    slow = [loss for loss in view.losses("gemm-misaligned", "amp-absent") if bounds.is_at(loss.where, "conv")]
    yield Judgement(
        severity=policy.severity(share) if slow else bounds.at_most(policy.severity(share), "medium"),
        claim=(
            f"Convolutions take {share_of:.0%} of a step, with algorithms that cuDNN chose without "
            "timing them."
        ),
        share=share,
        evidence=[view.mentions("live.cudnn_benchmark"), *evidence_of(slow)],
        where=bounds.place_of(slow, bounds.main_model(view)),
    )


@rule(family="algorithms")
def cudnn_deterministic_on(view: ObservationView) -> Judgements:
    if not view.uses_cuda or not view.is_training or not _may_convolve(view):
        return
    share_of = view.kernel_share("convolution")
    if share_of < policy.CONVOLUTION_SHARE or not view.truth("live.cudnn_deterministic"):
        return
    share = bounds.saving(view, policy.AUTOTUNED * share_of)
    benchmarks = view.fact_or_none("live.cudnn_benchmark") is True
    yield Judgement(
        claim=(
            f"Convolutions take {share_of:.0%} of a step, and cuDNN may use only algorithms whose "
            "results repeat."
        ),
        share=share,
        evidence=[view.mentions("live.cudnn_deterministic"), view.mentions("live.cudnn_benchmark")],
        model=bounds.main_model(view),
        candidates=[
            Setting("cudnn.deterministic", False),
            *([] if benchmarks else [Setting("cudnn.benchmark", True)]),
        ],
    )


@rule(family="algorithms")
def cudnn_benchmark_dynamic(view: ObservationView) -> Judgements:
    if not view.uses_cuda or not _may_convolve(view) or not view.truth("live.cudnn_benchmark"):
        return
    num_shapes = bounds.num_input_shapes(view)
    slow = slow_steps(view, "allocation") if num_shapes > policy.FULL_AND_LAST else None
    if num_shapes <= policy.FEW_SHAPES and slow is None:
        return
    kernels = sum(row.num for row in view.kernels.classes if row.name in ("convolution", "layout"))
    calls = sum(row.num for row in bounds.operators(view, lambda name: name in _CONVOLUTIONS))
    tried = 1.0 - policy.KERNELS_OF_CONVOLUTION * calls / kernels if calls and kernels else 0.0
    # The host waits for each trial.
    timed = (
        tried * view.kernel_share("convolution", "layout") + view.attribution.shares.host
        if tried > 0
        else 0.0
    )
    uneven = 1.0 - view.timing.median_step_s / view.timing.step_s if view.timing.step_s else 0.0
    # With few shapes, most steps time no algorithm, and some steps are longer only because of their size.
    share = min(1.0, max(timed, uneven if num_shapes > policy.FEW_SHAPES else slow.share if slow else 0.0))
    yield Judgement(
        claim=f"cuDNN times its algorithms for each new shape, and there were {num_shapes} already.",
        share=share,
        evidence=[
            f"{kernels / max(1, calls):.1f} kernels for each call of a convolution",
            f"the median step takes {1 - uneven:.0%} of the mean one",
            *(slow.evidence() if slow else []),
        ],
        model=bounds.main_model(view),
    )


@rule(family="algorithms")
def cudnn_benchmark_limit(view: ObservationView) -> Judgements:
    if not view.uses_cuda or not _may_convolve(view) or bounds.num_input_shapes(view) > policy.FEW_SHAPES:
        return
    if view.kernel_share("convolution") < 0.5 or not view.truth("live.cudnn_benchmark"):
        return
    if view.number("live.cudnn_benchmark_limit") == 0:
        return
    yield Judgement(
        severity="low",
        share=Unknown("the other algorithms were not tried"),
        evidence=[view.mentions("live.cudnn_benchmark_limit")],
    )


@rule(family="algorithms")
def deterministic_algos_on(view: ObservationView) -> Judgements:
    if not view.truth("live.deterministic_algorithms"):
        return
    if view.uses_cuda:
        convolving = policy.AUTOTUNED * view.kernel_share("convolution") if view.is_training else 0.0
        share = bounds.saving(view, view.kernel_share(*REPEATABLE) + convolving)
    else:
        share = bounds.operator_share(view, lambda name: name.startswith(_REPEATABLE_ON_CPU))
    share = min(1.0, share + (_filling(view)[1] if view.truth("live.fill_uninitialized_memory") else 0.0))
    yield Judgement(
        severity=policy.severity(share),
        share=share,
        evidence=[
            view.mentions("live.deterministic_algorithms"),
            view.mentions("live.deterministic_warn_only"),
        ],
        model=bounds.main_model(view),
    )


@rule(family="algorithms")
def fill_uninitialized(view: ObservationView) -> Judgements:
    if not view.truth("live.deterministic_algorithms") or not view.truth("live.fill_uninitialized_memory"):
        return
    fills, share = _filling(view)
    yield Judgement(share=share, evidence=[f"{fills / (view.trace.num_steps or 1):,.0f} fills per step"])


def _filling(view: ObservationView) -> tuple[int, float]:
    """Return the number of recorded fills, and a bound of their share of a step."""
    fills = sum(row.num for row in bounds.operators(view, _fills))
    if view.uses_cuda:
        pointwise = sum(row.num for row in view.kernels.classes if row.name == "elementwise")
        part = min(1.0, fills / pointwise) if pointwise else 0.0
        calls = sum(row.num for row in view.trace.operators)
        waits = view.attribution.shares.host * min(1.0, 2 * fills / calls) if calls else 0.0
        return fills, min(1.0, bounds.saving(view, part * view.kernel_share("elementwise")) + waits)
    return fills, bounds.operator_share(view, _fills)


def _fills(name: str) -> bool:
    return name == "aten::fill_"


def _may_convolve(view: ObservationView) -> bool:
    """Return False if all modules are known and none of them is a convolution."""
    return not view.models or any(model.num_modules.get("convolution") for model in view.models)
