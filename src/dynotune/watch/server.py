"""Serve a run's state as a page that refreshes itself, as JSON, and for Prometheus, by Python's own
server."""

import hmac
import ipaddress
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dynotune.report.page import html
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, UsageError, may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import GpuView, View
from dynotune.watch import columns
from dynotune.watch.store import WIDTH, Bin
from dynotune.watch.watcher import EVERY_S, RunWatcher

BUCKETS_S = tuple(float(f"{mantissa}e{power}") for power in range(-4, 3) for mantissa in (1, 2, 5))
PATIENCE_S, LAST_WORD_S = 20.0, 1.5 * EVERY_S
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class Server:
    """Server of a watcher's view at `address`, HOST:PORT; port 0 takes a free one, see `url`.

    The server answers only its own four paths, and only if the request's Host is the served address: so a
    foreign page cannot read the state through a domain name of its own. Beyond loopback every request needs
    the token.

    Raises:
        UsageError: no such address, or an address beyond loopback without a token.
        CannotRunHere: the port is taken or not permitted.
    """

    def __init__(self, address: str, watcher: RunWatcher, *, token: str | None = None) -> None:
        host, port = _parsed(address)
        self.host = host
        if token is not None and not token.strip():
            raise UsageError("The token is empty.", hint="Give a word that nobody guesses.")
        if not _is_loopback(self.host) and token is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, and there is no token.",
                hint='Add --token "$(openssl rand -hex 16)", or serve 127.0.0.1 and reach it through ssh -L.',
            )
        self._token, self._watcher, self._asked_s = token, watcher, -math.inf
        request: Any = type("_Asked", (_Request,), {"answer": staticmethod(self._answer)})
        taken = "Another program has this port: take another one, or 0 for any that is free."
        with may_fail(f"serve {address}", taken):
            self._http = (_Http6 if ":" in host else _Http)((host, port), request)
        self.port = int(self._http.server_address[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/" + (f"?token={token}" if token else "")
        threading.Thread(target=self._http.serve_forever, name="dynotune-serve", daemon=True).start()

    def close(self) -> None:
        """End after open pages have had time to request the last view."""
        if time.monotonic() - self._asked_s < PATIENCE_S:
            time.sleep(LAST_WORD_S)
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, path: str, headers: Any) -> tuple[int, str, bytes]:
        """Return status, type and body for one request."""
        path, _, query_text = path.partition("?")
        query = parse_qs(query_text)
        if refused := self._refused(query, headers):
            return 403, "text/plain", refused.encode()
        if path == "/":
            return 200, "text/html", html.live().encode()
        if path in ("/view.json", "/page.json"):
            try:
                since_s = float(query.get("since", ["-inf"])[0])
            except ValueError:
                return 400, "text/plain", b"since is a time in seconds.\n"
            return 200, "application/json", self._json(since_s if path == "/page.json" else None)
        if path == "/metrics":
            try:
                return 200, "text/plain; version=0.0.4", metrics(self._watcher)
            except CannotRunHere as error:
                return 501, "text/plain", f"{error.message} {error.hint}\n".encode()
        return 404, "text/plain", b"There are /, /view.json, /page.json and /metrics.\n"

    def _json(self, since_s: float | None) -> bytes:
        """Write the view; for a page, with its tables and the values to plot from `since_s` on."""
        if self._watcher.view is None:
            return b"{}"
        found: Any = document.without_secrets(self._watcher.view)
        if since_s is not None:
            self._asked_s, series = time.monotonic(), self._watcher.series(since_s)
            shown = {"tables": columns.tables(found), "unknown": columns.unknown(found)}
            found = {"view": found, "series": series, **shown}
        return document.encode(found, indent=0)

    def _refused(self, query: dict[str, list[str]], headers: Any) -> str:
        """Return why the request is refused; "" for an accepted request."""
        if self._token is not None:
            given = headers.get("Authorization", "").removeprefix("Bearer ") or query.get("token", [""])[0]
            right = hmac.compare_digest(given.encode(), self._token.encode())
            return (
                ""
                if right
                else "The token is missing or wrong: ?token=WORD, or Authorization: Bearer WORD.\n"
            )
        try:
            name = urlsplit(f"//{headers.get('Host', '')}").hostname
        except ValueError:
            name = None
        known = {self.host, *(("localhost", "127.0.0.1", "::1") if _is_loopback(self.host) else ())}
        return "" if name in known else "This host name is not the one that is served.\n"


class _Http(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnected or sent nonsense; the terminal is the command's."""


class _Http6(_Http):
    address_family = socket.AF_INET6


class _Request(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    answer: Any

    def do_GET(self) -> None:
        status, kind, body = self.answer(self.path, self.headers)
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": len(body),
            **HEADERS,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Print nothing: the terminal is the command's."""


def _parsed(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, [HOST]:PORT for IPv6. Raises UsageError: it is neither."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:]+)):([0-9]{1,5})", address, re.ASCII)
    if found is None or int(found[3]) > 65535:
        raise UsageError(
            f"--serve {address} is no address.",
            hint="For example --serve 127.0.0.1:8000, or --serve '[::1]:8000'.",
        )
    return found[1] or found[2], int(found[3])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
        stem, unit = columns.unit_of(field)
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
