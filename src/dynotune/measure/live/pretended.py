"""Runs the command on a pretended GPU, for what it would allocate there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dynotune import memory
from dynotune.measure.live.launch_plan import launch_plan
from dynotune.measure.live.live_run import LiveRun
from dynotune.measure.live.outcome import Outcome, refuse_failed
from dynotune.memory import Allocations
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts
from dynotune.schema.memory_prediction import GpuModel
from dynotune.schema.run import PretendedGpu, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.task import NoteAllocations

NUM_STEPS = 3
"""One that warms up, in which optimizers make their states, and two more."""
# For a size alone: what most programs ask for is there from this generation on.
_ANY_CAPABILITY, _ANY_MULTIPROCESSORS = (8, 0), 100
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocations(
    run: RunSpec, settings: Sequence[Setting], gpu: GpuModel, *, folder: Path, facts: Facts, limit_s: float
) -> tuple[Allocations, memory.AllocatorSettings]:
    """Start the command in `folder`, which exists, and end it after some steps.

    Gives what it allocated, and the allocator's settings that it would have had.

    Raises:
        CommandFailed: it ended with an error before that.
        CannotRunHere: it did nothing with torch, or took longer than `limit_s`.
    """
    launch = launch_plan(
        run,
        settings,
        folder=folder,
        label="the run on a pretended GPU",
        purpose="pilot",
        facts=facts,
        # A GPU that is there would be found by torch's own code.
        more_env={"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"},
        tasks=[NoteAllocations(at_step=1, num_steps=NUM_STEPS)],
        run_to_end=False,
    )
    plan = PretendedGpu(
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        compute_capability=gpu.compute_capability or _ANY_CAPABILITY,
        num_multiprocessors=gpu.num_multiprocessors or _ANY_MULTIPROCESSORS,
    )
    launch = replace(launch, plan=replace(launch.plan, pretend=plan))
    with LiveRun(launch, folder=folder, limit_s=limit_s) as live:
        live.until_said("allocations")
        if any(event.get("at_exit") for event in _said(live.outcome())):
            live.until(lambda _: False)  # it ends by itself, and how says whether this is all
        outcome = live.end()
    found = [memory.read(folder / str(event["name"])) for event in _said(outcome)]
    if not found:
        refuse_failed(outcome, launch, limit_s)
        raise CannotRunHere(
            "The command wrote nothing of what it allocates.", hint=f"All that it printed is in {folder}."
        )
    most = max(found, key=lambda one: (bool(one.reason), len(one.events)))
    if not most.reason and outcome.run.exit_code and outcome.run.ended_by == "command":
        refuse_failed(outcome, launch, limit_s)
    text = next((launch.env[name] for name in _ALLOCATOR if launch.env.get(name)), "")
    return most, memory.AllocatorSettings.parse(text)


def _said(outcome: Outcome) -> list[dict[str, Any]]:
    found = (record.last("allocations") for record in outcome.all_records)
    return [event for event in found if event is not None]
