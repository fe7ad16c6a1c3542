"""Code patterns: features that programs leave on, leave out, inherit from a library, or that newer versions
removed."""

import msgspec

from dynotune.doctor import bounds, policy
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.hot_lines import steps_thread
from dynotune.doctor.machine import version
from dynotune.doctor.observation_view import ObservationView, or_else, or_unknown
from dynotune.schema.data_file import table
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model, ModelCall
from dynotune.schema.trace_summary import Place

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
READ_ONCE_FROM = (2, 13)
"""Version of torch. Older ones read the variable at each product."""
TEARS_DOWN_SAFELY_FROM = (12, 6)
"""Version of CUDA. In older ones, CUPTI that was taken down and comes back crashes programs with CUDA
graphs."""
_PROFILE_APART = "Profile in a separate run that ends after the profiled steps, and train without a profiler."
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
_ZEROING = ("aten::zero_", "aten::_foreach_zero_", "aten::fill_", "aten::add_")


class RemovedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names that TensorRT's Python API had before version `gone_from`, and what to write in their place."""

    gone_from: str
    names: list[str]
    instead: str
    was_in_cpp: str


class RemovedCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file removed_calls.toml, whose head explains the fields."""

    call: list[RemovedCall]


REMOVED_CALLS = table(__package__, "removed_calls.toml", RemovedCalls)


@rule(family="code")
def profiler_left_on(view: ObservationView) -> Judgements:
    where = view.text("live.profiler_place")
    if not where:
        return
    share = or_else(
        lambda: _of_host(view), Unknown("no trace can be recorded while the program records its own")
    )
    yield Judgement(
        severity="high" if isinstance(share, Unknown) else bounds.at_least(policy.severity(share), "medium"),
        share=share,
        evidence=[f"running in the window: {where}"],
        where=Place(where) if where != "elsewhere" else Place(),
    )


@cuda_rule(family="code")
def cupti_left_attached(view: ObservationView) -> Judgements:
    num = int(view.number("live.profiled_sessions"))
    if num == 0 or view.truth("live.profiled_teardown") or view.text("live.profiler_place"):
        return
    where = view.text("live.profiled_place")
    is_safe = or_else(lambda: version(view.text("torch.cuda")) >= TEARS_DOWN_SAFELY_FROM, False)
    sessions = "one session" if num == 1 else f"{num} sessions"
    yield Judgement(
        share=min(bounds.waits_for_host(view), policy.CUPTI_OF_STEP),
        evidence=[
            f"before the steps were timed, {sessions} of torch's profiler ended",
            f"the last session began at {where or 'an unknown line'}",
            *view.fact_evidence("live.profiled_activities"),
            *view.variable_evidence("TEARDOWN_CUPTI"),
            view.mentions("torch.cuda"),
        ],
        where=Place(where),
        candidates=None if is_safe else [],
        remedy="" if is_safe else _PROFILE_APART,
    )


@rule(family="code")
def inference_mode_absent(view: ObservationView) -> Judgements:
    if view.is_training:
        return
    kept = [model for model in view.models if model.call is not None and _keeps_graph(model)]
    if not kept or bounds.goes_backward(view):
        return
    model = kept[0]
    recording = _of_recording(view)
    little = recording < (policy.LEAST_SHARE if view.uses_cuda else policy.HIGH_SHARE)
    share: float | Unknown = (
        Unknown("a trace does not show the cost of keeping activations") if little else recording
    )
    yield Judgement(
        severity=bounds.at_least(bounds.severity_of(share, "medium"), "medium"),
        share=share,
        evidence=[f"results of {model.name} require gradients; no optimizer stepped, no backward pass ran"],
        model=model,
    )


@rule(family="code")
def gradients_unused(view: ObservationView) -> Judgements:
    if not view.is_training:
        return
    for model in view.models:
        call = model.call
        if (
            call is None
            or not _keeps_graph(model)
            or call.training
            or model.num_updated != 0
            or not model.num_tensors
        ):
            continue
        if call.input_requires_grad is not False:
            continue
        share = _behind(view, call)
        yield Judgement(
            claim=(
                f"{model.name.rpartition('.')[2]} is evaluated with gradients, and no optimizer has its "
                "weights."
            ),
            share=share,
            evidence=[f"{model.num_tensors} tensors, in evaluation mode; its results require gradients"],
            where=call.place,
        )


def _behind(view: ObservationView, call: ModelCall) -> float:
    """Return a bound of the backward pass behind a module's call, by where the thread that makes the steps
    was seen."""
    thread = steps_thread(view)
    forward = sum(line.num for line in thread.lines if line.function == call.place.function) / thread.num
    backward = sum(line.num for line in thread.lines if "_engine_run_backward" in line.leaf) / thread.num
    return min(2 * (call.seen_share or forward), backward)


def _keeps_graph(model: Model) -> bool:
    call = model.call
    return (
        call is not None
        and call.grad_enabled
        and not call.inference_mode
        and call.output_requires_grad is True
    )


def _of_host(view: ObservationView) -> float:
    """Return the device's wait for the host as a share of an unrecorded step; without a device, all of the
    host's time."""
    return bounds.waits_for_host(view) + (0.0 if view.uses_cuda else view.attribution.shares.device)


def _of_recording(view: ObservationView) -> float:
    """Return the share of an unrecorded step that autograd spends on building its graph, over all
    operators."""
    if not view.trace.num_steps or not view.timing.step_s:
        return 0.0
    operators = bounds.operators(view, lambda name: name.startswith("aten::"))
    num = sum(row.num for row in operators) / view.trace.num_steps
    return min(_of_host(view), num * policy.RECORDING_OPERATOR_S / view.timing.step_s)


@rule(family="code")
def model_train_mode_eval(view: ObservationView) -> Judgements:
    if view.is_training:
        return
    model = next((model for model in view.models if model.num_training and model.call is not None), None)
    if model is None or model.call is None or not model.call.training:
        return
    if model.call.grad_enabled and bounds.goes_backward(view):
        return
    yield Judgement(
        severity="high",
        claim=(
            f"{model.num_training} layers of the model (dropout, batch norm) are in training mode during "
            "inference."
        ),
        evidence=[f"{model.name}.training: {model.training}", "no optimizer stepped"],
        model=model,
    )


@rule(family="code")
def zero_grad_memset(view: ObservationView) -> Judgements:
    if not view.is_training or view.fact_or_none("live.zero_grad_sets_none") is not False:
        return
    num = sum(each.num_tensors for each in view.optimizers)
    num_bytes = sum(model.parameter_bytes for model in view.models)
    step_s = view.timing.step_s
    share = or_unknown(lambda: _of_zeroing(view, num, num_bytes, step_s))
    if not isinstance(share, Unknown) and share < policy.LEAST_SHARE:
        return
    place = view.fact_or_none("live.zero_grad_place")
    yield Judgement(
        otherwise="low",
        share=share,
        evidence=[f"{num} tensors, {num_bytes / 1e6:,.0f} MB"],
        where=Place(place) if isinstance(place, str) and place else None,
        model=bounds.main_model(view),
    )


def _of_zeroing(view: ObservationView, num: int, num_bytes: float, step_s: float) -> float:
    """Return a bound of the share of an unrecorded step to write zeros to `num` tensors and to add to
    them."""
    shares = view.attribution.shares
    moved = policy.ZEROED_BYTES * num_bytes / bounds.bytes_per_s(view) / step_s if step_s else 0.0
    launched = num * policy.HOST_OPERATOR_S / step_s if step_s else 0.0
    if view.uses_cuda:
        return min(
            1.0, min(moved, view.kernel_share("elementwise", "optimizer")) + min(shares.host, launched)
        )
    return min(moved + launched, bounds.operator_share(view, _ZEROING.__contains__))


@rule(family="code")
def ul_cublas_env_on_construct(view: ObservationView) -> Judgements:
    changes = [
        change
        for change in view.process.environment_changes
        if change.name == WORKSPACE and change.value is not None and "ultralytics" in change.file.lower()
    ]
    if not changes or view.variable(WORKSPACE) is None:
        return
    if version(str(view.fact_or_none("live.torch_version") or view.text("torch.version"))) >= READ_ONCE_FROM:
        return
    last = changes[-1]
    yield Judgement(
        otherwise="medium",
        claim=f"Ultralytics set {WORKSPACE}, which costs host time at each matrix product.",
        share=or_unknown(lambda: bounds.host_share(view, _PRODUCTS.__contains__)),
        evidence=[
            f"{WORKSPACE}={last.value}, {view.who_set(WORKSPACE)}",
            view.mentions("live.torch_version"),
        ],
        where=Place(f"{last.file}({last.line}): {last.function}"),
        remedy=f'Call os.environ.pop("{WORKSPACE}") right after YOLO(...), or use torch 2.13 or later.',
    )


@rule(family="code")
def ul_deterministic_default(view: ObservationView) -> Judgements:
    model = next((model for model in view.models if model.name.startswith("ultralytics.")), None)
    if model is None or not view.is_training or not view.truth("live.deterministic_algorithms"):
        return
    yield Judgement(
        otherwise="low",
        share=or_unknown(
            lambda: (
                policy.AUTOTUNED * view.kernel_share("convolution")
                + view.kernel_share("index", "sort", "pooling")
            )
        ),
        evidence=[view.mentions("live.deterministic_algorithms"), f"model: {model.name}"],
        model=model,
    )


@rule(family="code")
def trt_removed_api(view: ObservationView) -> Judgements:
    if "live.tensorrt_names" not in view.process.live:
        return
    lines = [one.rpartition(" ")[::2] for one in view.words("live.tensorrt_names")]
    installed = str(view.fact_or_none("package.tensorrt") or "")
    for call in REMOVED_CALLS.call:
        named = [
            (place, name)
            for place, name in lines
            if any(f".{name}".endswith(f".{gone}") for gone in call.names)
        ]
        if not named:
            continue
        since = call.gone_from
        is_gone = bool(installed) and version(installed) >= version(since)
        yield Judgement(
            claim=f"{named[0][1]} is gone from TensorRT {since} on.",
            severity="high" if is_gone else "medium",
            evidence=[*map(" ".join, named), f"TensorRT installed: {installed or 'not known'}"],
            where=Place(named[0][0]),
            remedy=f"Use {call.instead}.",
        )
