"""Send a watched run's metrics to a collector by OTLP over HTTP, with OpenTelemetry's own SDK."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.watch import View
from dynotune.watch import gauges
from dynotune.watch.gauges import Gauge
from dynotune.watch.watcher import RunWatcher

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

EVERY_S, TIMEOUT_S = 5.0, 5.0
PATH = "/v1/metrics"
OWN_SERIES = {"step": ("step_time", "Time of all steps."), "wait": ("input_wait", "Waits for the loader.")}


class Otlp:
    """A display whose view is sent every five seconds, and when the run has ended.

    Args:
        endpoint: address of a collector, `http://127.0.0.1:4318`; without a path, that of metrics is added.
            Headers, certificates and attributes are those of OpenTelemetry's own variables (`OTEL_…`).

    Raises:
        UsageError: the endpoint is no address.
        CannotRunHere: the SDK is not installed.
    """

    def __init__(self, endpoint: str, watcher: RunWatcher) -> None:
        place = _address(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise CannotRunHere(
                "--otlp needs OpenTelemetry's SDK.", hint="pip install 'dynotune[otlp]'"
            ) from error
        # The terminal is the command's: a collector that does not answer is told once, at the end.
        logging.getLogger("opentelemetry").addHandler(failures := _Failures())
        logging.getLogger("opentelemetry").propagate = False
        self.name = urlunsplit(place if place.path.strip("/") else place._replace(path=PATH))
        self._failures, self._watcher = failures, watcher
        self._view: View | None = None
        self._is_taken = False

        class Exporter(OTLPMetricExporter):  # type: ignore[misc]
            """Knows whether the collector took what was sent last: the SDK does not say so when it ends."""

            def export(exporter, *values: Any, **options: Any) -> MetricExportResult:
                self._is_taken = False
                result = super().export(*values, **options)
                self._is_taken = result is MetricExportResult.SUCCESS
                return result

        exporter = Exporter(endpoint=self.name, timeout=TIMEOUT_S)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EVERY_S * 1e3)
        resource = Resource.create({"service.name": "dynotune", "dynotune.run": watcher.follower.folder.name})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)

    def __call__(self, view: View) -> None:
        is_first, self._view = self._view is None, view
        if is_first:
            self._declare(view)

    def close(self) -> str:
        """Send the last view. Return why the collector did not take it; "" if it did."""
        self._failures.last, self._is_taken = "", False
        self._provider.shutdown(timeout_millis=TIMEOUT_S * 1e3)
        if self._is_taken or self._view is None:
            return ""
        why = self._failures.last or f"no answer within {TIMEOUT_S:.0f} s"
        return f"the last values did not arrive: {why}"

    def _declare(self, view: View) -> None:
        meter = self._provider.get_meter("dynotune")
        for gauge in _all(view):
            meter.create_observable_gauge(
                f"dynotune_{gauge.name}", [self._observed(gauge.name)], description=gauge.help
            )
        for name, (counter, help_) in OWN_SERIES.items():
            callback = self._counted(name, lambda ever: ever.total)
            meter.create_observable_counter(f"dynotune_{counter}", [callback], unit="s", description=help_)
        steps, samples = (
            self._counted("step", lambda ever: ever.num),
            self._counted("samples", lambda ever: ever.total),
        )
        meter.create_observable_counter("dynotune_steps", [steps], description="Steps that ended.")
        meter.create_observable_counter("dynotune_samples", [samples], description="Samples trained on.")

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for gauge in _all(self._view) if self._view is not None else ():
                if gauge.name == name:
                    for whose, value in gauge.values.items():
                        yield Observation(value, {gauge.label: whose} if gauge.label else {})

        return observe

    def _counted(
        self, name: str, count: Callable[[Any], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            store = self._watcher.follower.store
            with self._watcher.lock:
                found = {rank: count(store.of(name, rank).ever) for rank in store.whose(name)}
            return [Observation(value, {"rank": rank}) for rank, value in found.items()]

        return observe


def _address(endpoint: str) -> SplitResult:
    try:
        place = urlsplit(endpoint)
        if place.scheme in ("http", "https") and place.hostname and place.port != 0:
            return place
    except ValueError:  # a bracket without its other half, a port that is no number
        pass
    raise UsageError(f"--otlp {endpoint} is no address.", hint="For example --otlp http://127.0.0.1:4318")


def _all(view: View) -> list[Gauge]:
    return [*gauges.of_steps(view), *gauges.of_run(view)]


class _Failures(logging.Handler):
    """Keeps the last warning of the SDK."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
