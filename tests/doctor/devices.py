"""Observations of programs on a GPU and on the CPU, for rules on what a device or the host works on."""

from __future__ import annotations

from typing import Any

from dynotune.doctor import ObservationView, examine
from dynotune.schema.attribution import LostTime
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Facts
from dynotune.schema.model import Model, ModelCall, Optimizer
from dynotune.schema.observation import Observation
from dynotune.schema.trace_summary import (
    Calls,
    DeviceTime,
    KernelClass,
    Kernels,
    Operator,
    Place,
    TraceSummary,
)

from .observations import attribution, loss, observed, timing

AT = Place("train.py(31): step", "aten::linear")
LIVE: Facts = {
    "live.torch_version": "2.11.0+cu130",
    "live.compute_capability": "9.0",
    "live.num_threads": 8,
    "live.cudnn_benchmark": True,
    "live.cudnn_benchmark_limit": 10,
    "live.cudnn_deterministic": False,
    "live.deterministic_algorithms": False,
    "live.deterministic_warn_only": False,
    "live.fill_uninitialized_memory": True,
    "live.matmul_fp32_precision": "ieee",
    "live.grad_scaler": False,
    "live.autocast_dtypes": [],
    "live.profiler_place": "",
    "live.profiled_sessions": 0,
    "live.profiled_place": "",
    "live.profiled_activities": [],
    "live.profiled_teardown": False,
    "live.zero_grad_sets_none": True,
    "live.zero_grad_place": "",
}
FACTS: Facts = {"host.num_cores": 8, "window.tree_cpu_s_per_s": 7.5, "host.container": None}
CALLED = Place("train.py(12): step")
BOTH = ("on_gpu", "on_cpu")


def lost(id_: str, share: float, **fields: Any) -> LostTime:
    return loss(id_, share, **({"where": AT, "evidence": ["what was seen"]} | fields))


def model(device: str = "cuda:0", **fields: Any) -> Model:
    """A thousand float32 parameters in training. `call` holds fields of the call."""
    training = fields.get("training", True)
    call: dict[str, Any] = {
        "grad_enabled": training,
        "inference_mode": False,
        "training": training,
        "place": CALLED,
    }
    usual: dict[str, Any] = {
        "name": "model.Net",
        "num_parameters": 1000,
        "parameter_bytes": 4000,
        "channels_last_share": 0.0,
        "num_tensors": 20,
        "dtypes": {"float32": 1000},
        "devices": {device: 1000},
        "training": training,
    }
    return Model(**(usual | fields | {"call": ModelCall(**(call | fields.get("call", {})))}))


def optimizer(device: str = "cuda:0", **fields: Any) -> Optimizer:
    return Optimizer(**({"name": "torch.optim.adamw.AdamW", "devices": [device], "num_tensors": 20} | fields))


def kernels(mean_s: float = 1e-4, in_graphs: int = 0, num: int = 1000, **shares: float) -> Kernels:
    """Kernels by class; underscores in names are dashes. `num` of each class."""
    classes = [
        KernelClass(name=name.replace("_", "-"), num=num, total_s=share, share=share)
        for name, share in shares.items()
    ]
    return Kernels(
        rank=None,
        num=num,
        total_s=1.0,
        mean_s=mean_s,
        median_s=mean_s,
        per_s=1.0,
        per_step=num / 10,
        num_launches=num,
        in_graphs=in_graphs,
        mean_queue_depth=None,
        max_queue_depth=None,
        tensor_core_share=None,
        classes=classes,
    )


def operator(name: str, num: int, self_s: float, **fields: Any) -> Operator:
    return Operator(name=name, num=num, self_s=self_s, **fields)


def waits(total_s: float) -> Calls:
    return Calls(rank=None, call="cudaStreamSynchronize", num=10, total_s=total_s)


def trace(*, device: bool, **fields: Any) -> TraceSummary:
    """Ten steps of 0.1 s."""
    row = DeviceTime(
        rank=None,
        device=0,
        window_s=1.0,
        busy_s=1.0,
        compute_s=1.0,
        copy_s=0.0,
        communication_s=0.0,
        idle_s=0.0,
    )
    usual: dict[str, Any] = {
        "files": [],
        "recorder": "",
        "verdict": "",
        "window_s": 1.0,
        "num_steps": 10,
        "step_source": "profiler",
        "shares": None,
        "causes": [],
        "devices": [row] if device else [],
        "gaps": [],
        "copies": [],
        "syncs": [],
        "allocations": [],
        "kernels": [kernels(matmul=1.0)] if device else [],
        "communication": [],
        "ranks": None,
        "operators": [],
    }
    return TraceSummary(**(usual | fields))


def on_gpu(
    *losses: LostTime,
    shares: dict[str, float] | None = None,
    traced: dict[str, Any] | None = None,
    live: Facts | None = None,
    facts: Facts | None = None,
    without: dict[str, float] | None = None,
    **process: Any,
) -> Observation:
    """A training on one H200 that keeps the device busy."""
    parts = shares or {}
    busy = 1.0 - parts.get("host", 0.0) - parts.get("input", 0.0)
    usual: dict[str, Any] = {"timed": timing(), "models": [model()], "optimizers": [optimizer()]}
    return observed(
        facts=FACTS | (facts or {}),
        attributed=attribution(*losses, busy_share=busy, without=without, **parts),
        trace=trace(device=True, **(traced or {})),
        live=LIVE | (live or {}),
        **(usual | process),
    )


def on_cpu(
    *losses: LostTime,
    shares: dict[str, float] | None = None,
    traced: dict[str, Any] | None = None,
    live: Facts | None = None,
    facts: Facts | None = None,
    **process: Any,
) -> Observation:
    """A training on eight cores."""
    usual: dict[str, Any] = {"timed": timing(), "models": [model("cpu")], "optimizers": [optimizer("cpu")]}
    return observed(
        facts=FACTS | (facts or {}),
        attributed=attribution(*losses, **(shares or {})),
        trace=trace(device=False, **(traced or {})),
        live=LIVE | (live or {}),
        **(usual | process),
    )


def found(observation: Observation) -> dict[str, Finding]:
    """Findings about the program by id."""
    return {finding.id: finding for finding in examine(ObservationView(observation), "program")[0]}


def lacks(observation: Observation, id_: str) -> list[str]:
    """What this rule lacks to judge; empty where it judges."""
    return [row.missing for row in examine(ObservationView(observation), "program")[1] if row.id == id_]


def settings(finding: Finding) -> list[str]:
    return [str(setting) for setting in finding.candidates]
