"""The view as metrics: names and units by the conventions of Prometheus, the same through OpenTelemetry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import View
from dynotune.watch.store import WIDTH, Bin

if TYPE_CHECKING:
    from dynotune.watch.watcher import Watcher

BUCKETS_S = tuple(float(f"{mantissa}e{power}") for power in range(-4, 3) for mantissa in (1, 2, 5))
GPU_METRICS = (
    ("utilisation_percent", "kernel_running_ratio", "Share of time in which any kernel ran (NVML utilisation).", 0.01),
    ("sm_active_percent", "sm_active_ratio", "Share of time that multiprocessors had a warp (NVML GPM).", 0.01),
    ("tensor_active_percent", "tensor_active_ratio", "Share of time that tensor cores were at work (NVML GPM).", 0.01),
    ("memory_used_bytes", "memory_used_bytes", "Device memory in use, by all processes.", 1),
    ("power_w", "power_watts", "Power draw.", 1),
    ("sm_clock_mhz", "sm_clock_hertz", "Clock of the multiprocessors.", 1e6),
    ("temperature_c", "temperature_celsius", "Temperature.", 1),
    ("pcie_rx_bytes_per_s", "pcie_receive_bytes_per_second", "Into the GPU over PCIe, in 20 ms.", 1),
    ("pcie_tx_bytes_per_s", "pcie_transmit_bytes_per_second", "Out of the GPU over PCIe, in 20 ms.", 1),
)
MISSING = "pip install 'dynotune[watch]'"


class Times(NamedTuple):
    """A histogram: cumulative counts by their upper bounds, the number of steps and their time."""

    buckets: list[tuple[str, float]]
    num: int
    total_s: float


class Metric(NamedTuple):
    """One metric with the values of its labels; of a histogram they are `Times`."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    label: str
    values: list[tuple[str, Any]]


def collect(watcher: Watcher) -> list[Metric]:
    """All metrics as they are now."""
    with watcher.lock:
        return list(_collect(watcher))


def _collect(watcher: Watcher) -> Iterator[Metric]:
    view, store = watcher.view, watcher.follower.store
    if view is None:
        return
    ever = {
        name: [(rank, store.of(name, rank).ever) for rank in store.whose(name)] for name in ("step", "wait", "samples")
    }
    steps = [(rank, Times(buckets(each), each.num, each.total)) for rank, each in ever["step"]]
    yield Metric("step_seconds", "histogram", "Time of a step.", "rank", steps)
    waits = [(rank, each.total) for rank, each in ever["wait"]]
    yield Metric("input_wait_seconds", "counter", "Time that steps waited for the loader.", "rank", waits)
    yield Metric(
        "samples", "counter", "Samples trained on.", "rank", [(rank, each.total) for rank, each in ever["samples"]]
    )
    yield from _gauges(view)
    for field, name, text, factor in GPU_METRICS:
        gpus = [] if isinstance(view.gpus, Unknown) else view.gpus
        known = [(str(gpu.nvml_index), getattr(gpu, field)) for gpu in gpus]
        values = [(index, value * factor) for index, value in known if not isinstance(value, Unknown)]
        yield Metric(f"gpu_{name}", "gauge", text, "device", values)


def _gauges(view: View) -> Iterator[Metric]:
    yield Metric("running", "gauge", "1 while the program runs.", "", [("", float(view.state != "ended"))])
    yield Metric(
        "bottleneck", "gauge", "1 for the cause that the last seconds show.", "cause", [(view.cause or "none", 1)]
    )
    yield Metric(
        "alert", "gauge", "1 for each alert that holds.", "id", [(id_, 1) for id_ in {a.id for a in view.alerts}]
    )
    yield Metric(
        "memory_bytes",
        "gauge",
        "Resident memory of all processes.",
        "",
        [("", view.memory_bytes)] if view.memory_bytes else [],
    )
    yield Metric(
        "cpu_cores", "gauge", "Cores that the run keeps busy.", "", [] if view.cores is None else [("", view.cores)]
    )
    yield Metric("processes", "gauge", "Processes of the run.", "", [("", view.num_processes)])


def buckets(whole: Bin) -> list[tuple[str, float]]:
    """Cumulative counts of a histogram, right within the 4% of a class at each bound."""
    counts = whole.counts or {}
    found = [(repr(le), float(sum(num for at, num in counts.items() if WIDTH**at <= le * 1.0001))) for le in BUCKETS_S]
    return [*found, ("+Inf", float(whole.num))]


def exposition(watcher: Watcher, accept: str) -> tuple[str, bytes]:
    """Text for Prometheus by its official client: content type and body, OpenMetrics where the scraper asks for it.

    Raises:
        CannotRunHere: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise CannotRunHere("/metrics needs prometheus-client.", hint=MISSING) from error

    class Collector:
        def collect(self) -> Iterable[Any]:
            for metric in collect(watcher):
                labels = [metric.label] if metric.label else []
                families = {
                    "gauge": GaugeMetricFamily,
                    "counter": CounterMetricFamily,
                    "histogram": HistogramMetricFamily,
                }
                family = families[metric.kind](f"dynotune_{metric.name}", metric.help, labels=labels)
                for whose, value in metric.values:
                    of = [whose] if labels else []
                    if isinstance(value, Times):
                        family.add_metric(of, value.buckets, sum_value=value.total_s)
                    else:
                        family.add_metric(of, value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    encode, kind = choose_encoder(accept)
    return kind, encode(registry)


def push(watcher: Watcher, endpoint: str, *, exporter: Any = None, every_s: float = 10.0) -> Callable[[], None]:
    """Send the same metrics to an OpenTelemetry collector by OTLP; returns what sends the last of them and ends it.

    A histogram goes as two counters, its count and its sum.

    Args:
        endpoint: for example `http://127.0.0.1:4318/v1/metrics`.
        exporter: used instead of OTLP's.

    Raises:
        CannotRunHere: the packages are not installed.
    """
    try:
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            exporter = OTLPMetricExporter(endpoint=endpoint)
    except ImportError as error:
        raise CannotRunHere("--otlp needs the packages of OpenTelemetry.", hint=MISSING) from error
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * every_s)
    resource = Resource.create({"service.name": "dynotune", "dynotune.run": watcher.follower.folder.name})
    provider = MeterProvider(metric_readers=[reader], resource=resource)
    meter = provider.get_meter("dynotune")

    def observe(name: str, read: Callable[[Any], float]) -> Callable[[Any], Iterable[Observation]]:
        def asked(_: Any) -> Iterable[Observation]:
            for metric in collect(watcher):
                if metric.name == name:
                    for whose, value in metric.values:
                        yield Observation(read(value), {metric.label: whose} if metric.label else {})

        return asked

    meter.create_observable_counter("dynotune.steps", [observe("step_seconds", lambda each: each.num)])
    meter.create_observable_counter(
        "dynotune.step_time", [observe("step_seconds", lambda each: each.total_s)], unit="s"
    )
    for name in ("input_wait_seconds", "samples"):
        meter.create_observable_counter(f"dynotune.{name}", [observe(name, float)])
    for name in ("running", "bottleneck", "alert", "memory_bytes", "cpu_cores", "processes"):
        meter.create_observable_gauge(f"dynotune.{name}", [observe(name, float)])
    for _, name, text, _ in GPU_METRICS:
        meter.create_observable_gauge(f"dynotune.gpu_{name}", [observe(f"gpu_{name}", float)], description=text)

    def end() -> None:
        with contextlib.suppress(Exception):
            provider.shutdown()

    return end
