"""Settings that facts name where no finding does: compiling, of which several small costs make one large gain."""

from __future__ import annotations

import msgspec

from dynotune.doctor import Missing, ObservationView, bound_of_compiling, policy
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Attribution, Compilation, Observation
from dynotune.schema.setting import Setting
from dynotune.search.present import Present
from dynotune.search.values import COMPILED, GRAPHS

MUCH_HOST = 0.25
"""Of a step: where the device waits so long for the host, graphs that are replayed spare more than fused kernels do."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        why: facts by their names in the trace and the diagnosis.
        bound: of a step, the largest share that it can save; `bound_by`: what of, in words.
    """

    setting: Setting
    why: list[str]
    bound: float
    bound_by: str


def named_by_facts(observation: Observation, present: Present) -> list[Named]:
    """Compiling, where a model runs on a CUDA device, nothing is compiled, and much could be saved."""
    seen = ObservationView(observation)
    if present.get(COMPILED.knob) != "off" or not seen.uses_cuda or _compiles(observation):
        return []
    try:
        bound = bound_of_compiling(seen)
    except Missing:
        return []
    if bound < policy.MUCH_TO_COMPILE:
        return []
    by = "what fusing kernels and launching fewer could spare"
    waits = isinstance(observation.attribution, Attribution) and observation.attribution.shares.host >= MUCH_HOST
    modes = [GRAPHS, COMPILED] if waits else [COMPILED]
    why = ["kernels.fusable_s", "shares.host"]
    return [Named(setting=mode, why=why, bound=bound, bound_by=by) for mode in modes]


def _compiles(observation: Observation) -> bool:
    """Whether any process compiled anything, as far as is known."""
    processes = observation.processes
    if isinstance(processes, Unknown):
        return False
    compiled = [model.compiled for process in processes for model in process.models]
    return any(compiled) or any(isinstance(process.compilation, Compilation) for process in processes)
