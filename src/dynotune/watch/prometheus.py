"""Write a run's metrics in Prometheus' text format, by the official client."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from dynotune.schema.errors import CannotRunHere
from dynotune.watch.gauges import of_run
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
        for gauge in of_run(view):
            family = core.GaugeMetricFamily(
                f"dynotune_{gauge.name}", gauge.help, labels=[gauge.label] if gauge.label else []
            )
            for whose, value in gauge.values.items():
                family.add_metric([whose] if gauge.label else [], value)
            yield family


def buckets(whole: Bin) -> list[tuple[str, float]]:
    """Return cumulative counts of a histogram; each bucket's bound is exact within 4%, the width of a
    class."""
    counts = (whole.counts or {}).items()
    found = [
        (repr(le), float(sum(num for at, num in counts if WIDTH**at <= le * 1.0001))) for le in BUCKETS_S
    ]
    return [*found, ("+Inf", float(whole.num))]
