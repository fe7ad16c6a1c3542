"""Diagnose why a command is slow: one live run, timed and recorded, becomes an observation and then a
diagnosis.

`LiveDiagnosis` runs the command: `window` times a plain window, `profiled` records steps, `step_parts`
rescales the trace to the length of an unrecorded step, `attribute` states what each cause costs of it,
`upper_bounds` times the loader and the computation alone, `forecast` predicts the step time with another
loader, `fresh_caches` names compile caches that each run begins anew, and `object_growth` counts what steps
leave behind in a program whose memory grows. `observed` does all this for `dynotune diagnose`. `live_memory`
accounts for device memory and predicts what fits. `live_shapes` counts the input shapes of a model, and
`plan_engine` plans a TensorRT engine for them. `conclude` asks the rules of `doctor` and names the
bottleneck.

Elsewhere: `doctor` decides what a finding is, `measure.live` controls a live run, `trace` summarises a trace.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.diagnose.conclusions import conclude
    from dynotune.diagnose.engine_plans import live_shapes, plan_engine
    from dynotune.diagnose.forecast import forecast_loader
    from dynotune.diagnose.live_diagnosis import Joining, LiveDiagnosis, gather, observed, replayed
    from dynotune.diagnose.memory_runs import live_memory
    from dynotune.diagnose.rank_attribution import attributed

__all__ = [
    "Joining",
    "LiveDiagnosis",
    "attributed",
    "conclude",
    "forecast_loader",
    "gather",
    "live_memory",
    "live_shapes",
    "observed",
    "plan_engine",
    "replayed",
]

_HOMES = {
    "live_diagnosis": "Joining LiveDiagnosis gather observed replayed",
    "conclusions": "conclude",
    "forecast": "forecast_loader",
    "memory_runs": "live_memory",
    "rank_attribution": "attributed",
    "engine_plans": "live_shapes plan_engine",
}

__getattr__ = lazy_face(__name__, _HOMES)
