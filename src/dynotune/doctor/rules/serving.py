"""Serving frames of streams: threads that call models, frames that wait, and work beside the model.

Who calls which model, and for how long, was recorded before the steps were timed; frames that the program
marks by `dynotune.frame_done` also while they were. A step of such a program is a call of any thread, so a
share of a step says nothing of a frame's latency, and findings on threads have none.
"""

import re
from collections.abc import Callable

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.hot_lines import Seen, of_thread, place, told, within
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line
from dynotune.schema.model import Model
from dynotune.schema.serving import Serving
from dynotune.text import words

OVERLAP = Unknown("calls of several threads overlap, so a share of a step says nothing of a frame's latency")
_DECODES = re.compile(
    r"cv2\.(imdecode|VideoCapture)\(|\b\w*(cap|capture|video|camera|stream|reader)\w*\.(read|retrieve|grab)\(\)|"
    r"(decode_jpeg|decode_image|decode_png|read_video|read_image)\(|\.to_ndarray\(|Image\.open\("
)
_IN_DECODERS = re.compile(r"/(av|decord|torchcodec|torchvision/io|imageio|PIL)/")
_LETTERBOXES = re.compile(
    r"cv2\.(resize|copyMakeBorder|warpAffine|cvtColor|dnn\.blobFromImages?)\(|\bletter_?box\w*\("
)
_IN_LETTERBOX = re.compile(r"(?i): (letter_?box\w*|pre_?transform)$", re.MULTILINE)
_IMAGE_DIMS = 4


@rule(family="serving")
def model_shared_by_threads(view: ObservationView) -> Judgements:
    serving = _threads(view)
    if serving is None or serving.num_models > 1:
        return
    slower = _slower(serving)
    if slower < policy.CALLS_SLOWER:
        return
    yield Judgement(
        claim=(
            f"{serving.num_threads} threads call one model at once, and each call takes {slower:.1f} times "
            "as long."
        ),
        share=OVERLAP,
        severity="high" if slower >= policy.CALLS_MUCH_SLOWER else "medium",
        evidence=_of_calls(serving),
        model=_model(view),
    )


@rule(family="serving")
def stream_per_thread(view: ObservationView) -> Judgements:
    serving = _threads(view)
    if serving is None or serving.num_models < 2 or serving.samples_per_call > 1:
        return
    slower = _slower(serving)
    if slower < policy.CALLS_SLOWER:
        return
    yield Judgement(
        claim=(
            f"{serving.num_threads} threads call {serving.num_models} models with one frame at a time, and "
            f"each call takes {slower:.1f} times as long."
        ),
        share=OVERLAP,
        severity="medium",
        evidence=_of_calls(serving),
        model=_model(view),
    )


@rule(family="serving")
def model_per_request(view: ObservationView) -> Judgements:
    serving = _serving(view)
    if serving is None or serving.models_per_call < policy.MODELS_PER_CALL:
        return
    yield Judgement(
        claim=f"A model is made for every {_every(serving.models_per_call)}.",
        share=Unknown("making a model happens between the calls that are timed"),
        severity="high",
        evidence=[
            f"{serving.num_models} models were called so far, {serving.models_per_call:.2f} new ones per call"
        ],
        model=_model(view),
    )


@rule(family="serving")
def frames_queue(view: ObservationView) -> Judgements:
    serving = _serving(view)
    if serving is None or serving.growth_low_s is None or serving.growth_s is None:
        return
    if serving.growth_low_s < policy.LATENCY_GROWS:
        return
    yield Judgement(
        claim=f"The latency of frames grows by {words.duration(serving.growth_s)} in each second.",
        share=Unknown("the frames that wait take no time of a step"),
        severity="high",
        evidence=[
            f"at least {words.duration(serving.growth_low_s)} in each second (95%)",
            f"{serving.frames_per_s:.3g} frames were done per second, of {serving.num_streams} streams",
        ],
    )


@rule(family="serving")
def frame_sizes_unequal(view: ObservationView) -> Judgements:
    serving, model = _serving(view), _model(view)
    if serving is None or model is None or model.call is None or serving.samples_per_call > 1:
        return
    sizes = model.call.num_input_shapes
    is_of_images = any(len(tensor.shape) == _IMAGE_DIMS for tensor in model.call.inputs)
    has_streams = serving.source == "marks" or serving.num_threads > 1
    if sizes is None or sizes < 2 or not is_of_images or not has_streams:
        return
    yield Judgement(
        claim=f"The model gets frames of {sizes} sizes, one at a time.",
        share=OVERLAP,
        severity="low",
        evidence=[f"{model.name}: {sizes} shapes of inputs, {serving.samples_per_call:g} frame a call"],
        model=model,
    )


@rule(family="serving")
def frames_decoded_in_step(view: ObservationView) -> Judgements:
    yield from _of_lines(view, "Decoding frames", lambda line: _is_at(line, _DECODES, _IN_DECODERS))


@rule(family="serving")
def letterbox_on_cpu(view: ObservationView) -> Judgements:
    yield from _of_lines(view, "Resizing frames", lambda line: _is_at(line, _LETTERBOXES, _IN_LETTERBOX))


def _of_lines(view: ObservationView, what: str, chosen: Callable[[Line], bool]) -> Judgements:
    """Judge lines of the thread that calls the model, in a program that does not train.

    A library such as OpenCV works in threads of its own, for which the line waits: so its whole time counts.
    """
    if view.is_training:
        return
    most = view.attribution.shares.host if view.uses_cuda else 1.0
    lines: list[Seen] = within(of_thread(view, chosen), most)
    share = sum(part for _, part in lines)
    if share < policy.LEAST_SHARE:
        return
    yield Judgement(
        claim=f"{what} takes {share:.0%} of a step, in the thread that calls the model.",
        share=share,
        evidence=told(lines),
        where=place(lines),
    )


def _is_at(line: Line, text: re.Pattern[str], callee: re.Pattern[str]) -> bool:
    called = f"{line.callee}\n{line.leaf}"
    return text.search(line.text) is not None or callee.search(called) is not None


def _serving(view: ObservationView) -> Serving | None:
    """Return how a program that does not train serves frames; None if it trains or too little was seen."""
    serving = view.process.serving
    if view.is_training or serving is None:
        return None
    return serving if serving.num_calls >= policy.FEWEST_CALLS or serving.growth_s is not None else None


def _threads(view: ObservationView) -> Serving | None:
    """Return how several threads call models at once; None if they do not, or make the models anew."""
    serving = _serving(view)
    if serving is None or serving.num_threads < 2 or serving.calls_at_once < policy.CALLS_AT_ONCE:
        return None
    return serving if serving.models_per_call < policy.MODELS_PER_CALL else None


def _slower(serving: Serving) -> float:
    """Return how many times as long a call takes beside others: against calls alone, else against its own
    work."""
    if serving.alone_s and serving.together_s:
        return serving.together_s / serving.alone_s
    return serving.call_s / serving.call_cpu_s if serving.call_cpu_s > policy.LEAST_CALL_CPU_S else 1.0


def _of_calls(serving: Serving) -> list[str]:
    whole, computes = words.duration(serving.call_s), words.duration(serving.call_cpu_s)
    lines = [
        f"{serving.calls_at_once:.1f} calls under way at once, of {serving.num_threads} threads",
        f"{whole} a call, of which its thread computes for {computes}",
    ]
    if serving.alone_s is not None and serving.together_s is not None:
        alone, together = words.duration(serving.alone_s), words.duration(serving.together_s)
        lines.append(f"a call alone takes {alone}, one beside others {together} (means)")
    return lines


def _model(view: ObservationView) -> Model | None:
    return next((model for model in view.models if model.call is not None), None)


def _every(models_per_call: float) -> str:
    num = round(1 / models_per_call)
    return "call" if num <= 1 else f"{num} calls"
