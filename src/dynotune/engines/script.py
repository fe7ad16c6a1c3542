"""Write the script that builds an engine by a plan, compares it with ONNX Runtime and times it."""

import math
from importlib.resources import files

import jinja2

from dynotune.engines.profiles import holds
from dynotune.schema.engine_plan import EnginePlan, Shapes
from dynotune.schema.facts import Unknown
from dynotune.text import words


def build_script(plan: EnginePlan, *, is_dynamic: bool, model: str = "model.onnx") -> str:
    """Return the bash script that builds an engine by a plan, compares it with ONNX Runtime and times it.

    Options are those of trtexec in TensorRT 11.1 (`help` in
    https://github.com/NVIDIA/TensorRT/blob/v11.1/samples/common/sampleOptions.cpp; networks are strongly typed there,
    and `--stronglyTyped` does nothing), of `polygraphy run --help` in Polygraphy 0.53.6, and of `Input` in
    torch_tensorrt 2.14 (https://github.com/pytorch/TensorRT/blob/main/py/torch_tensorrt/_Input.py).

    `is_dynamic`: the model's sizes vary; a model of fixed sizes takes no shape options.
    """

    def inputs(name: str) -> str:
        rows = [{f"{at}_shape": tuple(getattr(one, at)[name]) for at in ("min", "opt", "max")} for one in plan.profiles]
        shape = f"profiles={rows}" if rows[1:] else ", ".join(f"{key}={value}" for key, value in rows[0].items())
        return shape + f", dtype=torch.{plan.histogram.dtypes.get(name)}" * (name in plan.histogram.dtypes)

    made = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, finalize=_on_one_line)
    made.filters |= {"repr": repr, "trtexec": _trtexec, "polygraphy": _polygraphy, "files": _files, "fit": holds}
    template = made.from_string(files("dynotune.engines").joinpath("build.sh.jinja").read_text(encoding="utf-8"))
    return template.render(
        plan=plan,
        model=words.command([model]),
        num_calls=sum(call.num for call in plan.histogram.calls),
        inputs=inputs,
        dynamic=is_dynamic,
        workspace_mib=0 if isinstance(plan.workspace_bytes, Unknown) else max(1, plan.workspace_bytes >> 20),
        decibels=round(-20 * math.log10(plan.most_error)),
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
