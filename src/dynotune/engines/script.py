"""Write the script that builds an engine by a plan, compares it with ONNX Runtime and times it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2

from dynotune.engines.profiles import holds
from dynotune.schema.engine_plan import Batch, EnginePlan, Profile, Shapes
from dynotune.schema.facts import Unknown
from dynotune.text import words

NUMBERS_OF_STREAMS = (1, 2, 4)
"""Numbers of streams with which the engine is timed."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as options of trtexec. `shapes` is "" for a model of fixed sizes."""

    inputs: str
    outputs: str
    shapes: str


@dataclass(frozen=True, slots=True)
class ProfileView:
    """A profile as options of the tools.

    Args:
        least, usual, largest: shapes for trtexec; `usual_for_polygraphy`: the usual ones for Polygraphy.
        context_mib: memory of one context; None if unmeasured.
        batches: batches of the command that the profile holds.
    """

    index: int
    num_calls: int
    least: str
    usual: str
    largest: str
    usual_for_polygraphy: str
    context_mib: int | None
    batches: list[BatchView]


def build_script(plan: EnginePlan, *, is_dynamic: bool, model: str = "model.onnx") -> str:
    """Return the bash script that builds an engine by a plan, compares it with ONNX Runtime and times it.

    Options are those of trtexec in TensorRT 11.1 (`help` in
    https://github.com/NVIDIA/TensorRT/blob/v11.1/samples/common/sampleOptions.cpp; networks are strongly
    typed there, and `--stronglyTyped` does nothing), of `polygraphy run --help` in Polygraphy 0.53.6, and of
    `Input` in torch_tensorrt 2.14
    (https://github.com/pytorch/TensorRT/blob/main/py/torch_tensorrt/_Input.py).

    `is_dynamic`: the model's sizes vary; a model of fixed sizes takes no shape options.
    """
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, finalize=_on_one_line, undefined=jinja2.StrictUndefined
    )
    source = files("dynotune.engines").joinpath("build.sh.jinja").read_text(encoding="utf-8")
    histogram = plan.histogram
    batches = [] if isinstance(plan.onnx, Unknown) else plan.onnx.batches
    workspace = plan.workspace_bytes
    return environment.from_string(source).render(
        plan=plan,
        model=words.command([model]),
        module=histogram.module or "the model",
        num_calls=sum(call.num for call in histogram.calls),
        num_shapes=len(histogram.calls),
        inputs=[_input(plan, name) for name in plan.profiles[0].opt],
        compared=_compared(plan),
        dynamic=is_dynamic,
        has_several=len(plan.profiles) > 1,
        profiles=[
            _profile(index, profile, batches, is_dynamic) for index, profile in enumerate(plan.profiles)
        ],
        unlimited=workspace.reason if isinstance(workspace, Unknown) else "",
        workspace_mib=0 if isinstance(workspace, Unknown) else max(1, workspace >> 20),
        decibels=round(-20 * math.log10(plan.most_error)),
        allowed=f"{100 * plan.most_error:.2g}%",
        most_loss=f"{plan.most_error**2 / 2:.3g}",
        numbers_of_streams=NUMBERS_OF_STREAMS,
    )


def _input(plan: EnginePlan, name: str) -> str:
    """Write an input for torch_tensorrt, with the shapes of each profile."""
    profiles = [
        {f"{end}_shape": tuple(getattr(profile, end)[name]) for end in ("min", "opt", "max")}
        for profile in plan.profiles
    ]
    shapes = ", ".join(f"{key}={value}" for key, value in profiles[0].items())
    if len(profiles) > 1:
        shapes = f"profiles={profiles}"
    dtype = plan.histogram.dtypes.get(name)
    of_type = f", dtype=torch.{dtype}" if dtype is not None else ""
    return f"torch_tensorrt.Input({shapes}{of_type}, name={name!r})"


def _compared(plan: EnginePlan) -> list[str]:
    """Say how the exported model compares with the module, one line each."""
    check = plan.onnx
    if isinstance(check, Unknown):
        return [f"Not compared with the module in ONNX Runtime: {check.reason}"]
    typical = f"Typical errors of {check.num_values} outputs are {check.error:.2g}, those"
    return [
        f"In ONNX Runtime ({check.provider}), against the module: {check.verdict}. {typical}",
        f"of the module itself {check.own_error:.2g}, both against it in float64.",
    ]


def _profile(index: int, profile: Profile, batches: Sequence[Batch], is_dynamic: bool) -> ProfileView:
    held = [batch for batch in batches if holds(batch.shapes, profile)]
    return ProfileView(
        index=index,
        num_calls=profile.num_calls,
        least=_trtexec(profile.min),
        usual=_trtexec(profile.opt),
        largest=_trtexec(profile.max),
        usual_for_polygraphy=_polygraphy(profile.opt),
        context_mib=None if profile.context_bytes is None else round(profile.context_bytes / 2**20),
        batches=[
            BatchView(
                _files(batch.inputs), _files(batch.outputs), _trtexec(batch.shapes) if is_dynamic else ""
            )
            for batch in held
        ],
    )


def _on_one_line(value: object) -> object:
    """Escape line breaks and control characters, so that no name ends a comment or hides in the terminal."""
    return words.plain(value, longest=100_000) if isinstance(value, str) else value


def _trtexec(shapes: Shapes) -> str:
    """Write shapes as `x:1x3x224x224,y:scalar`: the last colon separates a name from its sizes."""
    sized = (f"{name}:{'x'.join(map(str, sizes)) or 'scalar'}" for name, sizes in shapes.items())
    return words.command([",".join(sized)])


def _polygraphy(shapes: Shapes) -> str:
    return words.command([f"{name}:[{','.join(map(str, sizes))}]" for name, sizes in shapes.items()])


def _files(of: dict[str, str]) -> str:
    return words.command([",".join(f"{name}:{file}" for name, file in of.items())])
