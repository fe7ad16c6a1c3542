"""Algorithms: what cuDNN and torch may choose from, and whether results must repeat bit by bit."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import (
    at_most,
    is_at,
    main_model,
    num_input_shapes,
    operator_share,
    operators,
    place_of,
    saved,
)
from dynotune.doctor.machine import known
from dynotune.doctor.observation_view import Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.doctor.slow_steps import slow_steps
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

REPEATABLE = ("index", "sort", "random", "pooling")
"""Classes of kernels in which torch has another algorithm for results that repeat."""
_REPEATABLE_ON_CPU = ("aten::index_put", "aten::_index_put", "aten::index_add", "aten::scatter", "aten::cumsum")
_CONVOLUTIONS = ("aten::cudnn_convolution", "aten::convolution_backward")


@rule("program")
def cudnn_benchmark_off(seen: Seen) -> Iterator[Finding]:
    """cuDNN takes the algorithm that it guesses to be fastest.

    Sees: convolutions take a fifth of a step or more, their shapes hardly vary, and `torch.backends.cudnn.benchmark`
    is off.

    Costs: at most half of the time of convolutions. It weighs little unless slow kernels show that cuDNN guessed
    wrong: half types or TF32 without tensor cores.

    Wrong when: the guess is right, as for common shapes it mostly is. The choice may differ from run to run, and the
    results with it in their last digits.
    """
    if not seen.uses_cuda or not _may_convolve(seen):
        return
    share_of = seen.kernel_share("convolution")
    if share_of < policy.CONVOLUTION_SHARE or num_input_shapes(seen) > policy.FEW_SHAPES:
        return
    if seen.truth("live.cudnn_benchmark"):
        return
    share = saved(seen, policy.AUTOTUNED * share_of)
    if share < policy.LEAST_SHARE:
        return
    slow = [loss for loss in seen.losses("gemm-misaligned", "amp-absent") if is_at(loss.where, "conv")]
    yield Finding(
        id="cudnn-benchmark-off",
        severity=policy.severity(share) if slow else at_most(policy.severity(share), "medium"),
        claim=f"Convolutions take {share_of:.0%} of a step by algorithms that cuDNN chose without timing them.",
        share=share,
        evidence=[seen.mentions("live.cudnn_benchmark"), *evidence_of(slow)],
        where=place_of(slow, main_model(seen)),
        candidates=[Setting("cudnn.benchmark", True)],
        remedy="Set torch.backends.cudnn.benchmark = True. Results may differ in their last digits.",
    )


@rule("program", explains=["cudnn-benchmark-off"])
def cudnn_deterministic_on(seen: Seen) -> Iterator[Finding]:
    """cuDNN is kept to algorithms whose results repeat.

    Sees: `torch.backends.cudnn.deterministic` is on in a training whose convolutions take a fifth of a step or more.

    Costs: at most half of the time of convolutions. Only their backward pass has algorithms that do not repeat.

    Wrong when: results must repeat bit by bit.
    """
    if not seen.uses_cuda or not seen.is_training or not _may_convolve(seen):
        return
    share_of = seen.kernel_share("convolution")
    if share_of < policy.CONVOLUTION_SHARE or not seen.truth("live.cudnn_deterministic"):
        return
    share = saved(seen, policy.AUTOTUNED * share_of)
    if share < policy.LEAST_SHARE:
        return
    benchmarks = known(seen, "live.cudnn_benchmark") is True
    yield Finding(
        id="cudnn-deterministic-on",
        severity=policy.severity(share),
        claim=f"Convolutions take {share_of:.0%} of a step and may only use algorithms whose results repeat.",
        share=share,
        evidence=[seen.mentions("live.cudnn_deterministic"), seen.mentions("live.cudnn_benchmark")],
        where=place_of([], main_model(seen)),
        candidates=[Setting("cudnn.deterministic", False), *([] if benchmarks else [Setting("cudnn.benchmark", True)])],
        remedy="Set torch.backends.cudnn.deterministic = False where results need not repeat bit by bit.",
    )


@rule("program", explains=["alloc-retries", "alloc-jitter", "host-bound", "sync-per-step"])
def cudnn_benchmark_dynamic(seen: Seen) -> Iterator[Finding]:
    """cuDNN times its algorithms again and again.

    Sees: `torch.backends.cudnn.benchmark` is on, inputs of more than twenty shapes, and more kernels of convolutions
    in the recorded steps than their operators can have used, or steps that differ much in length. Or inputs of more
    than two shapes, and steps among the slowest hundredth in which memory was allocated, as each trial needs some.

    Costs: the kernels that were only timed, and what the host waits for them; else what steps take beyond the median.
    Of few shapes what those slowest steps lost, which is the least that it costs.

    Wrong when: all shapes have been seen once the program has run for a while.
    """
    if not seen.uses_cuda or not _may_convolve(seen) or not seen.truth("live.cudnn_benchmark"):
        return
    num_shapes = num_input_shapes(seen)
    slow = slow_steps(seen, "allocation") if num_shapes > policy.FULL_AND_LAST else None
    if num_shapes <= policy.FEW_SHAPES and slow is None:
        return
    kernels = sum(row.num for row in seen.kernels.classes if row.name in ("convolution", "layout"))
    calls = sum(row.num for row in operators(seen, lambda name: name in _CONVOLUTIONS))
    tried = 1.0 - policy.KERNELS_OF_CONVOLUTION * calls / kernels if calls and kernels else 0.0
    # With such trials the host waits for each of them.
    timed = tried * seen.kernel_share("convolution", "layout") + seen.attribution.shares.host if tried > 0 else 0.0
    uneven = 1.0 - seen.timing.median_step_s / seen.timing.step_s if seen.timing.step_s else 0.0
    # Of few shapes most steps time nothing, and some are longer by their size.
    share = min(1.0, max(timed, uneven if num_shapes > policy.FEW_SHAPES else slow.share if slow else 0.0))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="cudnn-benchmark-dynamic",
        severity=policy.severity(share),
        claim=f"cuDNN times its algorithms for each new shape, and there were {num_shapes} already.",
        share=share,
        evidence=[
            f"{kernels / max(1, calls):.1f} kernels for each call of a convolution",
            f"the median step takes {1 - uneven:.0%} of the mean one",
            *(slow.evidence() if slow else []),
        ],
        where=place_of([], main_model(seen)),
        candidates=[Setting("cudnn.benchmark", False)],
        remedy="Set torch.backends.cudnn.benchmark = False, or pad inputs to a few sizes.",
    )


@rule("program")
def cudnn_benchmark_limit(seen: Seen) -> Iterator[Finding]:
    """cuDNN times ten algorithms of those it has.

    Sees: benchmarking is on, convolutions take half of a step or more, and the limit is the default.

    Costs: nothing that is known: the fastest is mostly among the first.

    Wrong when: it mostly is.
    """
    if not seen.uses_cuda or not _may_convolve(seen) or num_input_shapes(seen) > policy.FEW_SHAPES:
        return
    if seen.kernel_share("convolution") < 0.5 or not seen.truth("live.cudnn_benchmark"):
        return
    if seen.number("live.cudnn_benchmark_limit") == 0:
        return
    yield Finding(
        id="cudnn-benchmark-limit",
        severity="low",
        claim="cuDNN times ten algorithms for each convolution, and may have more.",
        share=Unknown("what the others take was not tried"),
        evidence=[seen.mentions("live.cudnn_benchmark_limit")],
        remedy="Try torch.backends.cudnn.benchmark_limit = 0 in a long training: all are timed, once a shape.",
    )


@rule("program", explains=["fill-uninitialized"])
def deterministic_algos_on(seen: Seen) -> Iterator[Finding]:
    """torch is kept to algorithms whose results repeat.

    Sees: `torch.use_deterministic_algorithms(True)`, and time in operations that have a faster algorithm whose results
    do not repeat: indexing, scattering, sorting, interpolation, and convolutions in training.

    Costs: at most the time of the former, half of that of convolutions, and the fills of `fill-uninitialized`.

    Wrong when: results must repeat bit by bit.
    """
    if not seen.truth("live.deterministic_algorithms"):
        return
    if seen.uses_cuda:
        convolving = policy.AUTOTUNED * seen.kernel_share("convolution") if seen.is_training else 0.0
        share = saved(seen, seen.kernel_share(*REPEATABLE) + convolving)
    else:
        share = operator_share(seen, lambda name: name.startswith(_REPEATABLE_ON_CPU))
    share = min(1.0, share + (_filling(seen)[1] if seen.truth("live.fill_uninitialized_memory") else 0.0))
    yield Finding(
        id="deterministic-algos-on",
        severity=policy.severity(share),
        claim="torch may only use algorithms whose results repeat.",
        share=share,
        evidence=[seen.mentions("live.deterministic_algorithms"), seen.mentions("live.deterministic_warn_only")],
        where=place_of([], main_model(seen)),
        candidates=[Setting("determinism.algorithms", False)],
        remedy="Call torch.use_deterministic_algorithms(False) where results need not repeat bit by bit.",
    )


@rule("program")
def fill_uninitialized(seen: Seen) -> Iterator[Finding]:
    """Memory that nobody reads before writing is filled.

    Sees: deterministic algorithms are on, `torch.utils.deterministic.fill_uninitialized_memory` is too, and fills
    among the recorded operators.

    Costs: at most the fills' part of the pointwise kernels, and of the host's time that the device waits for; without
    a device the time of the fills.

    Wrong when: the program does read memory that it never wrote, and must do so alike in each run.
    """
    if not seen.truth("live.deterministic_algorithms") or not seen.truth("live.fill_uninitialized_memory"):
        return
    fills, share = _filling(seen)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="fill-uninitialized",
        severity=policy.severity(share),
        claim="With deterministic algorithms torch fills each new tensor, though the program writes it anyway.",
        share=share,
        evidence=[f"{fills / (seen.trace.num_steps or 1):,.0f} fills a step"],
        where=Place(),
        candidates=[Setting("determinism.algorithms", False)],
        remedy="Set torch.utils.deterministic.fill_uninitialized_memory = False.",
    )


def _filling(seen: Seen) -> tuple[int, float]:
    """Fills among the recorded operators, and the share of a step that they cost at most."""
    fills = sum(row.num for row in operators(seen, _fills))
    if seen.uses_cuda:
        pointwise = sum(row.num for row in seen.kernels.classes if row.name == "elementwise")
        part = min(1.0, fills / pointwise) if pointwise else 0.0
        calls = sum(row.num for row in seen.trace.operators)
        waits = seen.attribution.shares.host * min(1.0, 2 * fills / calls) if calls else 0.0
        return fills, min(1.0, saved(seen, part * seen.kernel_share("elementwise")) + waits)
    return fills, operator_share(seen, _fills)


def _fills(name: str) -> bool:
    return name == "aten::fill_"


def _may_convolve(seen: Seen) -> bool:
    """False where the modules are known and none of them is a convolution."""
    return not seen.models or any(model.num_modules.get("convolution") for model in seen.models)
