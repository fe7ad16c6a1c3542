"""The view as a page that follows by server-sent events, as JSON, and for Prometheus: standard library's server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import math
import socket
import threading
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from dynotune.schema import document, redaction
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.watch import View
from dynotune.watch import metrics
from dynotune.watch.watcher import Watcher

MOST_LISTENERS = 32
PATIENCE_S = 20.0
LAST_WORD_S = 2.0
LATE_S = 5.0
"""Steps of a rank may be written so much later than those of another."""


class Server:
    """Serves a watcher's view at `address`, HOST:PORT; port 0 takes a free one, see `url`.

    It answers its own four paths, and only where the request's Host is the address that was asked for: a page from
    elsewhere cannot read it through a name of its own. Beyond loopback every request needs the token.

    Raises:
        UsageError: no such address, or one beyond loopback without a token.
        CannotRunHere: the port is taken, or may not be listened to.
    """

    def __init__(self, address: str, watcher: Watcher, *, token: str | None = None) -> None:
        self.host, _, port = address.rpartition(":")
        self.host = self.host.strip("[]")
        if not port.isdigit() or int(port) > 65535 or not self.host:
            raise UsageError(f"--serve {address} is no address.", hint="For example --serve 127.0.0.1:8000.")
        if not _is_loopback(self.host) and token is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, and there is no token.",
                hint="Give --token WORD, or serve 127.0.0.1 and reach it through ssh -L.",
            )
        self.token, self.watcher, self.condition = token, watcher, threading.Condition()
        self.body, self.number, self.ended, self.num_listeners = b"{}", 0, False, 0
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        more = {"daemon_threads": True, "block_on_close": False, "address_family": family}
        kind: type[ThreadingHTTPServer] = type("_Bound", (_Server,), more)
        try:
            self._http = kind((self.host, int(port)), type("_Bound", (_Handler,), {"owner": self}))
        except OSError as error:
            raise CannotRunHere(
                f"Cannot serve {address}: {error.strerror or error}.",
                hint="Another program has this port: take another one, or 0 for any that is free.",
            ) from error
        self.port = int(self._http.server_address[1])
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http://{shown}:{self.port}/" + (f"?token={token}" if token else "")
        self._thread = threading.Thread(target=self._http.serve_forever, name="dynotune-serve", daemon=True)
        self._thread.start()

    def __call__(self, view: View) -> None:
        with self.condition:
            self.body = document.encode(document.without_secrets(view), indent=0)
            self.number += 1
            self.ended = view.state == "ended"
            self.condition.notify_all()

    def wait(self, seen: int) -> tuple[int, bytes, bool]:
        """The number of the view after `seen`, the view, and whether it is the last; the same again after a while."""
        with self.condition:
            self.condition.wait_for(lambda: self.number != seen or self.ended, timeout=PATIENCE_S / 2)
            return self.number, self.body, self.ended

    def close(self) -> None:
        """End after the listeners have had the last view."""
        with self.condition:
            self.ended = True
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.num_listeners == 0, timeout=LAST_WORD_S)
        self._http.shutdown()
        self._http.server_close()

    @cached_property
    def page(self) -> tuple[bytes, str]:
        """The page, and the policy that lets nothing but its own script run and ask this server alone."""
        text = files("dynotune.watch").joinpath("page.html").read_text(encoding="utf-8")
        script = text.partition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
        return (
            text.encode(),
            f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone, or asked nonsense; the terminal is the command's."""


class _Handler(BaseHTTPRequestHandler):
    owner: Server
    timeout = PATIENCE_S
    server_version, sys_version = "dynotune", ""

    def do_GET(self) -> None:
        owner, asked = self.owner, urlsplit(self.path)
        if (refused := self._refused(parse_qs(asked.query))) is not None:
            self._answer(403, "text/plain", refused.encode())
        elif asked.path == "/":
            body, policy = owner.page
            self._answer(200, "text/html; charset=utf-8", body, {"Content-Security-Policy": policy})
        elif asked.path == "/view.json":
            self._answer(200, "application/json", owner.body)
        elif asked.path == "/events":
            self._follow()
        elif asked.path == "/metrics":
            try:
                kind, body = metrics.exposition(owner.watcher, self.headers.get("Accept", ""))
                self._answer(200, kind, body)
            except CannotRunHere as error:
                self._answer(501, "text/plain", f"{error.message} {error.hint}\n".encode())
        else:
            self._answer(404, "text/plain", b"There are /, /view.json, /events and /metrics.\n")

    def _refused(self, query: dict[str, list[str]]) -> str | None:
        owner, host = self.owner, self.headers.get("Host", "")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        known = {owner.host, *(("localhost", "127.0.0.1", "::1") if _is_loopback(owner.host) else ())}
        if owner.token is None and name not in known:
            return "This host name is not the one that is served.\n"
        given = self.headers.get("Authorization", "").removeprefix("Bearer ") or query.get("token", [""])[0]
        if owner.token is not None and not hmac.compare_digest(given.encode(), owner.token.encode()):
            return "The token is missing or wrong: ?token=WORD, or Authorization: Bearer WORD.\n"
        return None

    def _answer(self, code: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}
        for name, value in {**headers, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _follow(self) -> None:
        owner = self.owner
        with owner.condition:
            if owner.num_listeners >= MOST_LISTENERS:
                self._answer(503, "text/plain", b"Too many pages are open.\n")
                return
            owner.num_listeners += 1
        self.close_connection = True
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            seen, ended, since_s = -1, False, -math.inf
            while not ended:
                more = owner.watcher.series(since_s)
                since_s = max(
                    (rows[-1][0] for all_ in more.values() for rows in all_.values() if rows), default=since_s
                )
                since_s -= LATE_S
                self._send("series", json.dumps(more, separators=(",", ":")).encode())
                seen, body, ended = owner.wait(seen)
                self._send("view", body)
        except OSError:
            pass  # the page was closed
        finally:
            with owner.condition:
                owner.num_listeners -= 1
                owner.condition.notify_all()

    def _send(self, event: str, data: bytes) -> None:
        self.wfile.write(
            b"event: " + event.encode() + b"\ndata: " + redaction.redacted(data.decode()).encode() + b"\n\n"
        )
        self.wfile.flush()

    def log_message(self, *args: object) -> None:
        """The terminal is the command's."""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
