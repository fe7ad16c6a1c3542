"""Engines: calls of TensorRT that its newer versions have removed."""

import tomllib
from importlib.resources import files

from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.machine import version
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.trace_summary import Place

_CALLS = tomllib.loads(files(__package__).joinpath("removed_calls.toml").read_text(encoding="utf-8"))["call"]


@rule()
def trt_removed_api(view: ObservationView) -> Judgements:
    if "live.tensorrt_names" not in view.process.live:
        return
    lines = [one.rpartition(" ")[::2] for one in view.words("live.tensorrt_names")]
    installed = str(view.fact_or_none("package.tensorrt") or "")
    for call in _CALLS:
        named = [
            (place, name) for place, name in lines if any(f".{name}".endswith(f".{gone}") for gone in call["names"])
        ]
        if not named:
            continue
        since = call["gone_from"]
        is_gone = bool(installed) and version(installed) >= version(since)
        yield Judgement(
            claim=f"{named[0][1]} is gone from TensorRT {since} on.",
            severity="high" if is_gone else "medium",
            evidence=[*map(" ".join, named), f"TensorRT installed: {installed or 'not known'}"],
            where=Place(named[0][0]),
            remedy=f"Use {call['instead']}.",
        )
