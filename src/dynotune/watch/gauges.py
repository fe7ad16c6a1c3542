"""Name the numbers of a view, for all that takes metrics of a run: Prometheus, OpenTelemetry, trackers."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dynotune.schema.facts import Unknown
from dynotune.schema.watch import GpuView, StepTimes, View
from dynotune.text import units


class Gauge(NamedTuple):
    """A number that goes up and down, in base units: seconds, bytes, ratios.

    `label`: what distinguishes several values (a rank, a device); "" for one value.
    `values`: from the label's value to the number, without unknown ones.
    """

    name: str
    help: str
    label: str
    values: Mapping[str, float]


def of_run(view: View) -> Iterator[Gauge]:
    """Yield the state of the run, of its processes and of its GPUs."""
    yield Gauge("running", "1 while the program runs.", "", {"": float(view.state != "ended")})
    cause: dict[str, float] = {view.cause or "none": 1.0}
    yield Gauge("bottleneck", "1 for the cause found in the last seconds.", "cause", cause)
    yield Gauge("alert", "1 for each alert that holds.", "id", {alert.id: 1.0 for alert in view.alerts})
    yield Gauge("memory_bytes", "Resident memory of all processes.", "", {"": view.memory_bytes})
    cores = {} if view.cores is None else {"": view.cores}
    yield Gauge("cpu_cores", "Cores that the run keeps busy.", "", cores)
    yield Gauge("processes", "Processes of the run.", "", {"": view.num_processes})
    gpus = [] if isinstance(view.gpus, Unknown) else view.gpus
    for field in GpuView.__struct_fields__:
        stem, unit = units.unit_of(field)
        if unit is not None:
            known = {str(gpu.nvml_index): getattr(gpu, field) for gpu in gpus}
            values = {
                index: value * unit.factor for index, value in known.items() if not isinstance(value, Unknown)
            }
            help_ = f"GPU, {stem.replace('_', ' ')}, by NVML."
            yield Gauge(f"gpu_{stem}_{unit.metric}", help_, "device", values)


def of_steps(view: View) -> Iterator[Gauge]:
    """Yield quantiles and rates of each rank's steps in the last minute. Prometheus derives these from its
    histogram; what takes numbers only needs them ready."""
    for field in StepTimes.__struct_fields__:
        stem, unit = units.unit_of(field)
        if unit is not None:
            known = {rank.rank: getattr(rank, field) for rank in view.steps_s}
            values = {rank: value * unit.factor for rank, value in known.items() if value is not None}
            help_ = f"{stem.replace('_', ' ').capitalize()} of the last minute's steps."
            yield Gauge(f"step_{stem}_{unit.metric}", help_, "rank", values)
