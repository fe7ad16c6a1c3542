"""Serve a run's state as a page that refreshes itself, as JSON, and for Prometheus, by Python's own
server."""

import hmac
import ipaddress
import math
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dynotune.report.page import html
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, UsageError, may_fail
from dynotune.watch import columns
from dynotune.watch.prometheus import metrics
from dynotune.watch.watcher import EVERY_S, RunWatcher

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
