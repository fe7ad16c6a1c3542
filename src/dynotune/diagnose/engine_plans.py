"""Plan a TensorRT engine: shapes of a live run, profiles that cover them, and a script for the tools that
build it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune import engines
from dynotune.launch import new_run_folder
from dynotune.measure.checks import NO_WORSE, check_onnx
from dynotune.measure.live import Watcher, facts_of, machine_lock, refuse_rejected, run_settings
from dynotune.schema import atomic, document
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.engine_plan import EnginePlan, ShapeHistogram
from dynotune.schema.errors import CannotRunHere, may_fail
from dynotune.schema.events import ShapesCounted
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import RankMemory
from dynotune.schema.precision import Precision
from dynotune.schema.run import LIMIT_S, RunSpec
from dynotune.schema.task import RecordShapes

NUM_CALLS = 10_000


def live_shapes(
    run: RunSpec, watcher: Watcher, most_s: float, *, onnx: bool = False
) -> tuple[ShapeHistogram, Path, str]:
    """Run the command, and count the input shapes of its largest module for `most_s` seconds after the first
    call.

    If `onnx` is true, export that module to `model.onnx` in the run's folder afterwards.

    Returns: the shapes, the run's folder (which holds them as `shapes.json`), and why the export failed, or
        "".

    Raises CommandFailed and CannotRunHere: as `run_settings`; or no module is called with tensors.
    """
    folder = new_run_folder(run.base)
    watcher.running("the command, and counting shapes")
    with machine_lock(run, watcher):
        outcome = run_settings(
            run,
            run.settings,
            label="the run whose shapes are counted",
            cache_folder=folder / "caches",
            folder=folder,
            purpose="results",
            facts=facts_of(run),
            limit_s=run.timeout_s or LIMIT_S,
            enough=lambda records: bool(records) and all(record.last(ShapesCounted) for record in records),
            results=RecordShapes(num_calls=NUM_CALLS, most_s=most_s, onnx=onnx),
        )
    refuse_rejected(outcome, "in the run whose shapes are counted")
    events = [event for record in outcome.records if (event := record.last(ShapesCounted)) is not None]
    seen = [one for event in events for one in event.modules if any(call.shapes for call in one.calls)]
    if not seen:
        raise CannotRunHere(
            "No module of the command was called with tensors.", hint=f"The run is in {folder}."
        )
    largest = max(seen, key=lambda one: (one.num_parameters, sum(call.num for call in one.calls)))
    ranks = [
        one for one in seen if (one.module, one.num_parameters) == (largest.module, largest.num_parameters)
    ]
    found = msgspec.structs.replace(largest, calls=[call for one in ranks for call in one.calls])
    document.write(folder / "shapes.json", found)
    exports = [event.onnx for event in events if event.onnx is not None]
    return found, folder, exports[0].error if exports else "no batch was kept"


def plan_engine(
    histogram: ShapeHistogram,
    folder: Path,
    *,
    num_profiles: int | None = None,
    memory: Path | None = None,
    precision: Path | None = None,
    model: str = "model.onnx",
    is_dynamic: bool | None = None,
    onnx: str | None = None,
) -> EnginePlan:
    """Make the plan, and write it into `folder` as `plan.json` and `build.sh`.

    Args:
        memory: path of `memory.json`, which has the memory that others leave free and the memory of a step.
        precision: path of `precision.json`, which has the error of TF32 against float64 in the command.
        is_dynamic: whether input sizes of the model vary; None to decide by the shapes.
        onnx: why `folder` has no `model.onnx`; "" if it has one, None if no export was asked for.

    Raises RecordError: no engine can be planned for these shapes.
    """
    plan = engines.plan_profiles(histogram, num_profiles)
    if memory is not None:
        plan = _within(plan, document.read(memory, MemoryAccount).ranks, memory)
    if precision is not None:
        plan = _as_exact(plan, document.read(precision, Precision), precision)
    if onnx is not None:
        check = (
            check_onnx(folder / "model.onnx", sorted(folder.glob("onnx-*.npz")))
            if not onnx
            else Unknown(onnx)
        )
        plan = msgspec.structs.replace(plan, onnx=check)
    varies = len(plan.histogram.calls) > 1 if is_dynamic is None else is_dynamic
    plan = msgspec.structs.replace(plan, script=engines.build_script(plan, is_dynamic=varies, model=model))
    document.write(folder / "plan.json", plan)
    with may_fail(f"write {folder / 'build.sh'}"):
        atomic.write(folder / "build.sh", plan.script.encode())
    return plan


def _within(plan: EnginePlan, ranks: Sequence[RankMemory], file: Path) -> EnginePlan:
    """Limit the workspace to the card's free memory, and scale a step's memory, without weights, to each
    profile."""
    known = [(one.total_bytes, one.others_bytes) for one in ranks]
    left = [total - others for total, others in known if total and not isinstance(others, Unknown)]
    peaks = [one.peak for one in ranks if one.trains is False and not isinstance(one.peak, Unknown)]
    step = max(
        (one.of("inputs") + one.of("activations") + one.of("temporary") for one in peaks), default=None
    )
    largest = max(engines.num_elements(call.shapes) for call in plan.histogram.calls)
    sized = [
        msgspec.structs.replace(
            one, context_bytes=step * engines.num_elements(one.max) // largest if step else None
        )
        for one in plan.profiles
    ]
    workspace = min(left) if left else Unknown(f"{file} does not say what others hold")
    return msgspec.structs.replace(plan, profiles=sized, workspace_bytes=workspace)


def _as_exact(plan: EnginePlan, measured: Precision, file: Path) -> EnginePlan:
    """Set the engine's error tolerance to a multiple of the measured error of TF32."""
    results = [
        arm.results for arm in measured.arms if arm.results and arm.results.reference and arm.name == "tf32"
    ]
    noise = max(
        [one.difference for one in results] + [one.baseline_error or 0.0 for one in results], default=0.0
    )
    if not 0 < noise * NO_WORSE < 1:
        note = f"{file} has no error of TF32 in outputs: the usual tolerance applies."
        return msgspec.structs.replace(plan, notes=[*plan.notes, note])
    source = f"{NO_WORSE:g} times the error of TF32 in the command, by {file}"
    return msgspec.structs.replace(plan, most_error=noise * NO_WORSE, error_from=source)
