"""The view as a page that follows by server-sent events, as JSON, and for Prometheus: the standard library's server."""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import math
import socket
import threading
from collections.abc import Iterator
from functools import cached_property
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs, urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from dynotune.report.page import html
from dynotune.schema import document, redaction
from dynotune.schema.errors import CannotRunHere, UsageError, may_fail
from dynotune.schema.watch import View
from dynotune.watch import columns, metrics
from dynotune.watch.watcher import Watcher

MOST_LISTENERS = 32
PATIENCE_S, LAST_WORD_S = 20.0, 2.0
LATE_S = 5.0
"""Steps of a rank may be written so much later than those of another."""
ALWAYS = [
    ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "frame-ancestors 'none'"),
]  # fmt: skip


class Server:
    """Serves a watcher's view at `address`, HOST:PORT; port 0 takes a free one, see `url`.

    It answers its own four paths, and only where the request's Host is the address that was asked for: a page from
    elsewhere cannot read it through a name of its own. Beyond loopback every request needs the token.

    Raises:
        UsageError: no such address, or one beyond loopback without a token.
        CannotRunHere: the port is taken, or may not be listened to.
    """

    def __init__(self, address: str, watcher: Watcher, *, token: str | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.host = host.strip("[]")
        if not port.isdigit() or int(port) > 65535 or not self.host:
            raise UsageError(f"--serve {address} is no address.", hint="For example --serve 127.0.0.1:8000.")
        if not _is_loopback(self.host) and token is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, and there is no token.",
                hint="Give --token WORD, or serve 127.0.0.1 and reach it through ssh -L.",
            )
        self._token, self._watcher, self._condition = token, watcher, threading.Condition()
        self._body, self._tables, self._number, self._ended, self._num_listeners = b"{}", b"[]", 0, False, 0
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        kind: type[WSGIServer] = type("_Bound", (_Http,), {"address_family": family})
        taken = "Another program has this port: take another one, or 0 for any that is free."
        with may_fail(f"serve {address}", taken):
            self._http: WSGIServer = make_server(self.host, int(port), self._answer, kind, _Request)
        self.port = int(self._http.server_address[1])
        self.url = f"http://{host}:{self.port}/" + (f"?token={token}" if token else "")
        threading.Thread(target=self._http.serve_forever, name="dynotune-serve", daemon=True).start()

    def __call__(self, view: View) -> None:
        view = document.without_secrets(view)
        tables = {"tables": columns.tables(view), "unknown": columns.unknown(view)}
        with self._condition:
            self._body, self._tables = document.encode(view, indent=0), json.dumps(tables).encode()
            self._number, self._ended = self._number + 1, view.state == "ended"
            self._condition.notify_all()

    def close(self) -> None:
        """End after the listeners have had the last view."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._num_listeners == 0, timeout=LAST_WORD_S)
        self._http.shutdown()
        self._http.server_close()

    @cached_property
    def _page(self) -> bytes:
        return html.live().encode()

    @cached_property
    def _metrics(self) -> Any:
        return metrics.prometheus(self._watcher)

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        """One request, by WSGI."""
        path, refused = environ["PATH_INFO"], self._refused(environ)
        status, kind, body = "200 OK", "text/plain; charset=utf-8", b""
        if refused or environ["REQUEST_METHOD"] != "GET":
            status, body = "403 Forbidden", (refused or "This server is read only.\n").encode()
        elif path == "/":
            kind, body = "text/html; charset=utf-8", self._page
        elif path == "/view.json":
            kind, body = "application/json", self._body
        elif path == "/events" and self._num_listeners < MOST_LISTENERS:
            start(status, [("Content-Type", "text/event-stream"), *ALWAYS])
            return self._events()
        elif path == "/metrics":
            try:
                return self._metrics(environ, start)
            except CannotRunHere as error:
                status, body = "501 Not Implemented", f"{error.message} {error.hint}\n".encode()
        else:
            status, body = "404 Not Found", b"There are /, /view.json, /events and /metrics.\n"
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *ALWAYS])
        return [body]

    def _refused(self, environ: dict[str, Any]) -> str:
        """Why the request is not answered; may be empty."""
        if self._token is not None:
            asked = parse_qs(environ.get("QUERY_STRING", "")).get("token", [""])[0]
            given = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ") or asked
            right = hmac.compare_digest(given.encode(), self._token.encode())
            return "" if right else "The token is missing or wrong: ?token=WORD, or Authorization: Bearer WORD.\n"
        try:
            name = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname
        except ValueError:
            name = None
        known = {self.host, *(("localhost", "127.0.0.1", "::1") if _is_loopback(self.host) else ())}
        return "" if name in known else "This host name is not the one that is served.\n"

    def _events(self) -> Iterator[bytes]:
        """All that is plotted, then each second what is new, until the end or until nobody listens."""
        seen, since_s, is_last = -1, -math.inf, False
        with self._condition:
            self._num_listeners += 1
        try:
            while not is_last:
                series = self._watcher.series(since_s)
                ends = [rows[-1][0] for all_ in series.values() for rows in all_.values() if rows]
                since_s = max(ends, default=since_s) - LATE_S
                with self._condition:
                    if self._number == seen and not self._ended:
                        self._condition.wait(PATIENCE_S / 2)
                    seen, is_last, view, tables = self._number, self._ended, self._body, self._tables
                for name, data in (("series", json.dumps(series).encode()), ("tables", tables), ("view", view)):
                    yield f"event: {name}\ndata: {redaction.redacted(data.decode())}\n\n".encode()
        finally:
            with self._condition:
                self._num_listeners -= 1
                self._condition.notify_all()


class _Http(ThreadingMixIn, WSGIServer):
    daemon_threads, block_on_close = True, False

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone, or asked nonsense; the terminal is the command's."""


class _Request(WSGIRequestHandler):
    timeout = PATIENCE_S

    def get_stderr(self) -> Any:
        return io.StringIO()

    def log_message(self, *args: object) -> None:
        """The terminal is the command's."""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
