"""The view as metrics: names and units by the conventions of Prometheus, the same through OpenTelemetry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import GpuView, View
from dynotune.watch.columns import unit_of
from dynotune.watch.store import WIDTH, Bin

if TYPE_CHECKING:
    from dynotune.watch.watcher import Watcher

BUCKETS_S = tuple(float(f"{mantissa}e{power}") for power in range(-4, 3) for mantissa in (1, 2, 5))
WINDOW_S = 10.0
MISSING = "pip install 'dynotune[watch]'"
OF_RANK = {
    "num_ready": ("batches_ready", "Batches that loader workers have ready."),
    "allocated_bytes": ("allocated_bytes", "Device memory of tensors, by torch."),
    "reserved_bytes": ("reserved_bytes", "Device memory that torch holds."),
}


def families(watcher: Watcher) -> Iterator[Any]:
    """All metrics as they are now, as the official client has them."""
    from prometheus_client import core

    with watcher.lock:
        view, store = watcher.view, watcher.follower.store
        if view is None:
            return
        names = ("step", "wait", "samples")
        ever = {name: {rank: store.of(name, rank).ever for rank in store.whose(name)} for name in names}

        def filled(kind: Any, name: str, text: str, label: str, values: Mapping[str, Any]) -> Any:
            family = kind(f"dynotune_{name}", text, labels=[label] if label else [])
            for whose, value in values.items():
                more = (
                    {"buckets": buckets(value), "sum_value": value.total}
                    if isinstance(value, Bin)
                    else {"value": value}
                )
                family.add_metric([whose] if label else [], **more)
            return family

        yield filled(core.HistogramMetricFamily, "step_seconds", "Time of a step.", "rank", ever["step"])
        for name, text, key in (
            ("input_wait_seconds", "Time that steps waited for the loader.", "wait"),
            ("samples", "Samples trained on.", "samples"),
        ):
            values = {rank: whole.total for rank, whole in ever[key].items()}
            yield filled(core.CounterMetricFamily, name, text, "rank", values)
        for gauge in _gauges(view):
            yield filled(core.GaugeMetricFamily, *gauge)


def _gauges(view: View) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Name, help, label, and values by the label's."""
    yield "running", "1 while the program runs.", "", {"": float(view.state != "ended")}
    yield "bottleneck", "1 for the cause that the last seconds show.", "cause", {view.cause or "none": 1}
    yield "alert", "1 for each alert that holds.", "id", {alert.id: 1 for alert in view.alerts}
    yield "memory_bytes", "Resident memory of all processes.", "", {"": view.memory_bytes}
    yield "cpu_cores", "Cores that the run keeps busy.", "", {} if view.cores is None else {"": view.cores}
    yield "processes", "Processes of the run.", "", {"": view.num_processes}
    for field, (name, text) in OF_RANK.items():
        known = {each.rank: getattr(each, field) for each in view.steps_s}
        yield name, text, "rank", {rank: value for rank, value in known.items() if value is not None}
    gpus = [] if isinstance(view.gpus, Unknown) else view.gpus
    for field in GpuView.__struct_fields__:
        stem, unit = unit_of(field)
        if unit is not None:
            known = {str(gpu.nvml_index): getattr(gpu, field) for gpu in gpus}
            found = {index: value * unit.factor for index, value in known.items() if not isinstance(value, Unknown)}
            yield f"gpu_{stem}_{unit.metric}", f"GPU, {stem.replace('_', ' ')}, by NVML.", "device", found


def buckets(whole: Bin) -> list[tuple[str, float]]:
    """Cumulative counts of a histogram, right within the 4% of a class at each bound."""
    counts = (whole.counts or {}).items()
    found = [(repr(le), float(sum(num for at, num in counts if WIDTH**at <= le * 1.0001))) for le in BUCKETS_S]
    return [*found, ("+Inf", float(whole.num))]


def prometheus(watcher: Watcher) -> Any:
    """The official client's WSGI application that answers with all metrics.

    Raises CannotRunHere: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise CannotRunHere("/metrics needs prometheus-client.", hint=MISSING) from error

    class Families(Collector):
        def collect(self) -> Iterable[Any]:
            return families(watcher)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    return make_wsgi_app(registry)


def push(
    watcher: Watcher, endpoint: str, *, exporter: Any = None, spans: Any = None, every_s: float = WINDOW_S
) -> Callable[[], None]:
    """Send the same to an OpenTelemetry collector by OTLP, and a span for each ten seconds; returns what ends it.

    A histogram goes as two counters, its count and its sum.

    `endpoint`: for example `http://127.0.0.1:4318`. `exporter`, `spans`: used instead of OTLP's exporters.

    Raises CannotRunHere: the packages are not installed.
    """
    try:
        import prometheus_client  # noqa: F401
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise CannotRunHere("--otlp needs the packages of OpenTelemetry.", hint=MISSING) from error
    exporter = exporter or OTLPMetricExporter(f"{endpoint}/v1/metrics")
    spans = spans or OTLPSpanExporter(f"{endpoint}/v1/traces")
    resource = Resource.create({"service.name": "dynotune", "dynotune.run": watcher.follower.folder.name})
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * every_s)
    meters, tracers = MeterProvider([reader], resource=resource), TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(spans))
    meter, tracer, known = meters.get_meter("dynotune"), tracers.get_tracer("dynotune"), set[str]()
    begun_s, begun_at = 0.0, 0

    def samples(name: str) -> list[Observation]:
        found = [sample for family in families(watcher) for sample in family.samples if sample.name == name]
        return [Observation(sample.value, sample.labels) for sample in found]

    def show(view: View) -> None:
        nonlocal begun_s, begun_at
        for family in families(watcher):
            for name in {sample.name for sample in family.samples} - known:
                known.add(name)
                kind = "gauge" if family.type == "gauge" else "counter"
                if not name.endswith("_bucket"):
                    called = name.replace("_", ".", 1).removesuffix("_total")
                    create = getattr(meter, f"create_observable_{kind}")
                    create(called, [lambda _, name=name: samples(name)], description=family.documentation)
        if view.clock_s - begun_s >= WINDOW_S:
            found: Any = {"cause": view.cause, "verdict": view.verdict, "num_steps": view.num_steps - begun_at}
            begin_ns = int(1e9 * (begun_s or view.clock_s - WINDOW_S))
            tracer.start_span("dynotune.window", start_time=begin_ns, attributes=found).end(int(1e9 * view.clock_s))
            begun_s, begun_at = view.clock_s, view.num_steps

    def end() -> None:
        with contextlib.suppress(Exception):
            meters.shutdown()
            tracers.shutdown()

    watcher.show.append(show)
    return end
