"""Write a run's state as metrics for Prometheus, with its official client."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import GpuView, View
from dynotune.text import units
from dynotune.watch.store import WIDTH, Bin
from dynotune.watch.watcher import RunWatcher

BUCKETS_S = tuple(float(f"{mantissa}e{power}") for power in range(-4, 3) for mantissa in (1, 2, 5))


def metrics(watcher: RunWatcher) -> bytes:
    """Write all current metrics in Prometheus' format. Raises CannotRunHere: prometheus-client is not
    installed."""
    try:
        from prometheus_client import generate_latest
    except ImportError as error:
        raise CannotRunHere(
            "/metrics needs prometheus-client.", hint="pip install 'dynotune[watch]'"
        ) from error
    registry: Any = SimpleNamespace(collect=lambda: _families(watcher))
    return generate_latest(registry)


def _families(watcher: RunWatcher) -> Iterator[Any]:
    from prometheus_client import core

    with watcher.lock:
        view, store = watcher.view, watcher.follower.store
        if view is None:
            return
        steps = core.HistogramMetricFamily("dynotune_step_seconds", "Time of a step.", labels=["rank"])
        waits = core.CounterMetricFamily(
            "dynotune_input_wait_seconds", "Waits for the loader.", labels=["rank"]
        )
        samples = core.CounterMetricFamily("dynotune_samples", "Samples trained on.", labels=["rank"])
        for rank in store.whose("step"):
            ever = store.of("step", rank).ever
            steps.add_metric([rank], buckets(ever), ever.total)
            waits.add_metric([rank], store.of("wait", rank).ever.total)
        for rank in store.whose("samples"):
            samples.add_metric([rank], store.of("samples", rank).ever.total)
        yield from (steps, waits, samples)
        for name, help_, label, values in _gauges(view):
            gauge = core.GaugeMetricFamily(f"dynotune_{name}", help_, labels=[label] if label else [])
            for whose, value in values.items():
                gauge.add_metric([whose] if label else [], value)
            yield gauge


def _gauges(view: View) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield each metric's name, help text, label, and values by the label's value."""
    yield "running", "1 while the program runs.", "", {"": float(view.state != "ended")}
    yield "bottleneck", "1 for the cause that the last seconds show.", "cause", {view.cause or "none": 1}
    yield "alert", "1 for each alert that holds.", "id", {alert.id: 1 for alert in view.alerts}
    yield "memory_bytes", "Resident memory of all processes.", "", {"": view.memory_bytes}
    yield "cpu_cores", "Cores that the run keeps busy.", "", {} if view.cores is None else {"": view.cores}
    yield "processes", "Processes of the run.", "", {"": view.num_processes}
    gpus = [] if isinstance(view.gpus, Unknown) else view.gpus
    for field in GpuView.__struct_fields__:
        stem, unit = units.unit_of(field)
        if unit is not None:
            known = {str(gpu.nvml_index): getattr(gpu, field) for gpu in gpus}
            found = {
                index: value * unit.factor for index, value in known.items() if not isinstance(value, Unknown)
            }
            yield f"gpu_{stem}_{unit.metric}", f"GPU, {stem.replace('_', ' ')}, by NVML.", "device", found


def buckets(whole: Bin) -> list[tuple[str, float]]:
    """Return cumulative counts of a histogram; each bucket's bound is exact within 4%, the width of a
    class."""
    counts = (whole.counts or {}).items()
    found = [
        (repr(le), float(sum(num for at, num in counts if WIDTH**at <= le * 1.0001))) for le in BUCKETS_S
    ]
    return [*found, ("+Inf", float(whole.num))]
