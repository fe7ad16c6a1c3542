"""What the program has already, as knobs name it: a setting that changes nothing is no candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dynotune.launch.process import ALLOC_CONF_NAMES, split_alloc_conf
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Scalar
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.setting import UNSET, Setting

_LIVE = {
    "host.num_threads": "live.num_threads",
    "host.interop_threads": "live.num_interop_threads",
    "cudnn.benchmark": "live.cudnn_benchmark",
    "cudnn.deterministic": "live.cudnn_deterministic",
    "determinism.algorithms": "live.deterministic_algorithms",
}
_LOADER = {
    "loader.num_workers": "num_workers",
    "loader.pin_memory": "pin_memory",
    "loader.persistent_workers": "persistent_workers",
    "loader.prefetch_factor": "prefetch_factor",
    "loader.in_order": "in_order",
    "loader.multiprocessing_context": "context",
}
_FP32 = {"ieee": "highest", "none": "highest", "tf32": "high", "bf16": "medium"}
_AUTOCAST = {"bfloat16": "bf16", "float16": "fp16"}

Present = dict[str, Scalar]
"""Knob to value, of those that are known to have one value throughout the program."""


def present(observation: Observation, env: Mapping[str, str]) -> Present:
    """What the first rank was seen to have; `env`: what the command inherits."""
    found: Present = {}
    processes = observation.processes
    if not isinstance(processes, Unknown) and processes:
        found |= _of_process(processes[0])
    return found | _of_allocator(env)


def has(setting: Setting, present: Present, env: Mapping[str, str]) -> bool:
    """Whether the program has it, as far as is known."""
    if setting.knob.startswith("env."):
        return env.get(setting.knob.removeprefix("env."), UNSET) == setting.value
    if setting.knob not in present:
        return False
    now = present[setting.knob]
    return now == setting.value and isinstance(now, bool) == isinstance(setting.value, bool)


def _of_process(process: ProcessState) -> Present:
    found: Present = {}
    for knob, fact in _LIVE.items():
        _add(found, knob, [process.live.get(fact)])
    for knob, argument in _LOADER.items():
        _add(found, knob, [getattr(loader, argument) for loader in process.loaders])
    _add(found, "matmul.fp32_precision", [_FP32.get(str(process.live.get("live.matmul_fp32_precision")))])
    _add(found, "optimizer.fused", [bool(optimizer.fused) for optimizer in process.optimizers])
    _add(found, "precision.autocast", _autocast(process.live))
    _add(found, "layout.channels_last", [_is_channels_last(model.channels_last_share) for model in process.models])
    if process.models and not any(model.compiled for model in process.models):
        found["compile.mode"] = "off"
    elif not isinstance(process.compilation, Unknown) and process.models:
        _add(found, "compile.mode", [mode or "default" for mode in process.compilation.modes])
    return found


def _add(found: Present, knob: str, values: Iterable[object]) -> None:
    """Only where all of the program agrees."""
    known = list(values)
    first = known[0] if known else None
    if isinstance(first, bool | int | float | str) and all(value == first for value in known):
        found[knob] = first


def _autocast(live: Facts) -> list[str | None]:
    dtypes = live.get("live.autocast_dtypes")
    if not isinstance(dtypes, list):
        return []
    return [_AUTOCAST.get(str(dtype).removeprefix("torch.")) for dtype in dtypes] or ["off"]


def _is_channels_last(share: float | None) -> bool | None:
    """None where it has no such weights, or some of either."""
    return {0.0: False, 1.0: True}.get(share) if share is not None else None


def _of_allocator(env: Mapping[str, str]) -> Present:
    conf = next((env[name] for name in ALLOC_CONF_NAMES if env.get(name)), "")
    words = {"True": True, "False": False}
    return {f"alloc.{key}": words.get(text, _number(text)) for key, text in split_alloc_conf(conf).items()}


def _number(text: str) -> Scalar:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
