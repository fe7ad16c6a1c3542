"""Plan a TensorRT engine: shapes of a live run, profiles that cover them, and a script for the tools that build it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynotune import engines
from dynotune.launch import new_run_folder
from dynotune.measure.live import Watcher, facts_of, machine_lock, refuse_rejected, run_settings
from dynotune.schema import atomic, document
from dynotune.schema.engine_plan import EnginePlan, ShapeHistogram
from dynotune.schema.errors import CannotRunHere, from_elsewhere, may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_account import MemoryAccount
from dynotune.schema.run import RunSpec
from dynotune.schema.task import RecordShapes

NUM_CALLS, LIMIT_S = 10_000, 900.0


def live_shapes(run: RunSpec, watcher: Watcher, most_s: float) -> tuple[ShapeHistogram, Path]:
    """Run the command, and count the shapes that its largest module gets within `most_s` of the first call.

    Returns: the shapes, and the run's folder, where they are kept as `shapes.json`.

    Raises CommandFailed, CannotRunHere: as `run_settings`, or no module is called with tensors.
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
            enough=lambda records: bool(records) and all(record.last("shapes") for record in records),
            results=RecordShapes(num_calls=NUM_CALLS, most_s=most_s),
        )
    refuse_rejected(outcome, "in the run whose shapes are counted")
    with from_elsewhere(folder):
        told = [one for record in outcome.records for one in (record.last("shapes") or {}).get("modules", [])]
        seen = [document.convert(one, ShapeHistogram) for one in told if any(call["shapes"] for call in one["calls"])]
    if not seen:
        raise CannotRunHere("No module of the command was called with tensors.", hint=f"The run is in {folder}.")
    largest = max(seen, key=lambda one: (one.num_parameters, sum(call.num for call in one.calls)))
    ranks = [one for one in seen if (one.module, one.num_parameters) == (largest.module, largest.num_parameters)]
    found = msgspec.structs.replace(largest, calls=[call for one in ranks for call in one.calls])
    document.write(folder / "shapes.json", found)
    return found, folder


def plan_engine(
    histogram: ShapeHistogram, folder: Path, *, memory: Path | None, num_profiles: int | None
) -> EnginePlan:
    """Make the plan, and write it into `folder` as `plan.json` and `build.sh`.

    `memory`: `memory.json`, which says what others leave of the card.

    Raises RecordError: nothing can be planned with the shapes.
    """
    plan = engines.plan_profiles(histogram, num_profiles)
    if memory is not None:
        ranks = [(one.total_bytes, one.others_bytes) for one in document.read(memory, MemoryAccount).ranks]
        left = [total - others for total, others in ranks if total and not isinstance(others, Unknown)]
        unknown = Unknown(f"{memory} does not say what others hold")
        plan = msgspec.structs.replace(plan, workspace_bytes=min(left) if left else unknown)
    plan = msgspec.structs.replace(plan, script=engines.build_script(plan, is_dynamic=len(plan.histogram.calls) > 1))
    document.write(folder / "plan.json", plan)
    with may_fail(f"write {folder / 'build.sh'}"):
        atomic.write(folder / "build.sh", plan.script.encode())
    return plan
