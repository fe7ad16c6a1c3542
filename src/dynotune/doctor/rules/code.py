"""Code patterns: what programs leave on, leave out, or get from a library without asking."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import (
    at_least,
    bytes_per_s,
    goes_backward,
    host_share,
    main_model,
    operator_share,
    place_of,
    severity_of,
    version,
    waits_for_host,
)
from dynotune.doctor.machine import known, unset
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Model
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
READ_ONCE_FROM = (2, 13)
"""torch; before, the variable is read at each product."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
_ZEROING = ("aten::zero_", "aten::_foreach_zero_", "aten::fill_", "aten::add_")


@rule("program", explains=["host-bound", "launch-bound"])
def profiler_left_on(seen: Seen) -> Iterator[Finding]:
    """The program profiles itself.

    Sees: torch's profiler, or anomaly detection's sibling `emit_nvtx`, running in the window by the program's own
    doing.

    Costs: host time for each operator and kernel: on one H200 ResNet-50 took 1.7 times as long under it. At most what
    the device waits for the host; without a trace nothing bounds it, since two recordings cannot run at once.

    Wrong when: profiling is what this run is for. A schedule without `repeat=1` goes on for ever.
    """
    where = seen.text("live.profiler_place")
    if not where:
        return
    share: float | Unknown
    try:
        share = waits_for_host(seen) + (0.0 if seen.uses_cuda else seen.attribution.shares.device)
    except Missing:
        share = Unknown("where time goes cannot be recorded while the program does that itself")
    yield Finding(
        id="profiler-left-on",
        severity="high" if isinstance(share, Unknown) else at_least(policy.severity(share), "medium"),
        claim="The program runs torch's profiler while it works.",
        share=share,
        evidence=[f"running in the window: {where}"],
        where=Place(where) if where != "elsewhere" else Place(),
        remedy="Leave it out, or give its schedule repeat=1.",
    )


@rule("program")
def inference_mode_absent(seen: Seen) -> Iterator[Finding]:
    """Inference keeps what only a backward pass needs.

    Sees: a program without an optimizer and without a backward pass whose model is called with gradients enabled and
    gives results that require them.

    Costs: some microseconds of the host for each operator, at most what the device waits for the host. Where that is
    little, without a device less than a tenth of a step, nothing bounds it: activations are kept until the results go,
    and memory for them is taken anew.

    Wrong when: gradients are computed by means that leave no trace.
    """
    if seen.is_training:
        return
    kept = [model for model in seen.models if model.call is not None and _keeps_graph(model)]
    if not kept or goes_backward(seen):
        return
    model = kept[0]
    recording = _of_recording(seen)
    little = recording < (policy.LEAST_SHARE if seen.uses_cuda else policy.HIGH_SHARE)
    share: float | Unknown = Unknown("what keeping activations costs is not recorded") if little else recording
    yield Finding(
        id="inference-mode-absent",
        severity=at_least(severity_of(share, "medium"), "medium"),
        claim="The model is called with gradients enabled, and nothing goes backward: it keeps all activations.",
        share=share,
        evidence=[f"results of {model.name} require gradients; no optimizer stepped, no backward pass ran"],
        where=place_of([], model),
        remedy="Call it under torch.inference_mode() (or torch.no_grad()).",
    )


def _keeps_graph(model: Model) -> bool:
    call = model.call
    return call is not None and call.grad_enabled and not call.inference_mode and call.output_requires_grad is True


def _of_recording(seen: Seen) -> float:
    """Of a plain step, the time to keep nodes of the graph for all operators."""
    if not seen.trace.num_steps or not seen.timing.step_s:
        return 0.0
    num = sum(row.num for row in seen.trace.operators if row.name.startswith("aten::")) / seen.trace.num_steps
    most = waits_for_host(seen) + (0.0 if seen.uses_cuda else seen.attribution.shares.device)
    return min(most, num * policy.RECORDING_OPERATOR_S / seen.timing.step_s)


@rule("program")
def model_train_mode_eval(seen: Seen) -> Iterator[Finding]:
    """A model in training mode is used for inference.

    Sees: a program without an optimizer and without a backward pass that calls a model whose dropout or batch norm is
    in training mode.

    Costs: right results: dropout drops, and batch norm takes the batch's statistics and changes its own.

    Wrong when: that is meant, as for Monte Carlo dropout or for renewing batch norm's statistics.
    """
    if seen.is_training:
        return
    model = next((model for model in seen.models if model.num_training and model.call is not None), None)
    if model is None or model.call is None or not model.call.training:
        return
    if model.call.grad_enabled and goes_backward(seen):
        return
    yield Finding(
        id="model-train-mode-eval",
        severity="high",
        kind="correctness",
        claim=f"{model.num_training} layers of the model (dropout, batch norm) are in training mode at inference.",
        share=Unknown("it costs right results, not time"),
        evidence=[f"{model.name}.training: {model.training}", "no optimizer stepped"],
        where=place_of([], model),
        remedy="Call model.eval() before.",
    )


@rule("program")
def zero_grad_memset(seen: Seen) -> Iterator[Finding]:
    """Gradients are filled with zeros rather than dropped.

    Sees: `zero_grad(set_to_none=False)`.

    Costs: writing zeros to all gradients, and adding to them where the new ones could take their place: four times
    their bytes, and an operator more for each parameter. On the CPU at most the time of such operators.

    Wrong when: the program reads `.grad` of parameters that got none.
    """
    if not seen.is_training or known(seen, "live.zero_grad_sets_none") is not False:
        return
    num = sum(each.num_tensors for each in seen.optimizers)
    num_bytes = sum(model.parameter_bytes for model in seen.models)
    step_s = seen.timing.step_s
    share: float | Unknown
    try:
        shares = seen.attribution.shares
        moved = policy.ZEROED_BYTES * num_bytes / bytes_per_s(seen) / step_s if step_s else 0.0
        if seen.uses_cuda:
            launched = min(shares.host, num * policy.HOST_OPERATOR_S / step_s) if step_s else 0.0
            share = min(1.0, min(moved, seen.kernel_share("elementwise", "optimizer")) + launched)
        else:
            launched = num * policy.HOST_OPERATOR_S / step_s if step_s else 0.0
            share = min(moved + launched, operator_share(seen, _ZEROING.__contains__))
    except Missing as missing:
        share = Unknown(f"{missing.name}: {missing.reason}")
    if not isinstance(share, Unknown) and share < policy.LEAST_SHARE:
        return
    place = known(seen, "live.zero_grad_place")
    yield Finding(
        id="zero-grad-memset",
        severity=severity_of(share, "low"),
        claim="zero_grad(set_to_none=False) fills all gradients with zeros, and the backward pass adds to them.",
        share=share,
        evidence=[f"{num} tensors, {num_bytes / 1e6:,.0f} MB"],
        where=Place(place) if isinstance(place, str) and place else place_of([], main_model(seen)),
        remedy="Leave out set_to_none=False.",
    )


@rule("program", explains=["cublas-env-regex"])
def ul_cublas_env_on_construct(seen: Seen) -> Iterator[Finding]:
    """Ultralytics sets a variable that slows each matrix product.

    Sees: Ultralytics put CUBLAS_WORKSPACE_CONFIG into the environment, it is there still, and torch is older than
    2.13, which reads it with a regular expression at each product.

    Costs: 50 to 150 µs of host time a product; at most the host's own time in products, and what the device waits for
    the host. Any other model in the process pays too.

    Wrong when: deterministic results on several streams are wanted.
    """
    changes = [
        change
        for change in seen.process.environment_changes
        if change.name == WORKSPACE and change.value is not None and "ultralytics" in change.file.lower()
    ]
    if not changes or seen.variable(WORKSPACE) is None:
        return
    if version(str(known(seen, "live.torch_version") or seen.text("torch.version"))) >= READ_ONCE_FROM:
        return
    share: float | Unknown
    try:
        share = host_share(seen, _PRODUCTS.__contains__)
    except Missing as missing:
        share = Unknown(f"{missing.name}: {missing.reason}")
    last = changes[-1]
    yield Finding(
        id="ul-cublas-env-on-construct",
        severity=severity_of(share, "medium"),
        claim=f"Ultralytics set {WORKSPACE}, which costs host time at each matrix product.",
        share=share,
        evidence=[
            f"{WORKSPACE}={last.value}, {seen.who_set(WORKSPACE)}",
            seen.mentions("live.torch_version"),
        ],
        where=Place(f"{last.file}({last.line}): {last.function}"),
        candidates=unset("CUBLAS_WORKSPACE_CONFIG"),
        remedy=f'Call os.environ.pop("{WORKSPACE}") right after YOLO(...), or use torch 2.13 or later.',
    )


@rule("program", explains=["deterministic-algos-on", "cudnn-deterministic-on", "fill-uninitialized"])
def ul_deterministic_default(seen: Seen) -> Iterator[Finding]:
    """Ultralytics trains with results that repeat, by default.

    Sees: a training of an Ultralytics model with deterministic algorithms on.

    Costs: at most what `deterministic-algos-on` and `cudnn-deterministic-on` count; here, half of the time of
    convolutions and that of indexing and sorting.

    Wrong when: results must repeat bit by bit.
    """
    model = next((model for model in seen.models if model.name.startswith("ultralytics.")), None)
    if model is None or not seen.is_training or not seen.truth("live.deterministic_algorithms"):
        return
    share: float | Unknown
    try:
        share = policy.AUTOTUNED * seen.kernel_share("convolution") + seen.kernel_share("index", "sort", "pooling")
    except Missing as missing:
        share = Unknown(f"{missing.name}: {missing.reason}")
    yield Finding(
        id="ul-deterministic-default",
        severity=severity_of(share, "low"),
        claim="Ultralytics trains with deterministic algorithms unless told otherwise.",
        share=share,
        evidence=[seen.mentions("live.deterministic_algorithms"), f"model: {model.name}"],
        where=place_of([], model),
        candidates=[Setting("determinism.algorithms", False), Setting("cudnn.deterministic", False)],
        remedy="Pass deterministic=False to train().",
    )
