"""Serve a live page, its values as JSON, and metrics for Prometheus, by Python's own server."""

import hmac
import io
import ipaddress
import math
import re
import secrets
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode

from dynotune.report.page import html
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, DynotuneError, UsageError, may_fail
from dynotune.watch.sources import Source, State
from dynotune.watch.watcher import EVERY_S

PATIENCE_S = 20.0
LAST_WORD = 1.5
"""How long the end waits for a page that is open, in times between two of its requests."""
HEAD_S = 5.0
"""How long the whole head of a request may take, so that a connection that drips a header loses its place."""
MOST_AT_ONCE = 16
"""Requests that are answered at once; further connections are closed."""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class Server:
    """Server of a live page at `address`, HOST:PORT; port 0 takes a free one, see `url`.

    The server answers only its own four paths, and only requests with the token: other users of the machine
    reach a loopback port, too, and a foreign page reaches it through a domain name of its own.

    Args:
        token: what requests have to contain; by default a word that nobody guesses.

    Raises:
        UsageError: no such address, an empty token, or an address beyond loopback without a token.
        CannotRunHere: the port is taken or not permitted.
    """

    def __init__(self, address: str, source: Source, *, token: str | None = None) -> None:
        self.host, port = _parsed(address)
        if token is not None and not token.strip():
            raise UsageError("The token is empty.", hint="Give a word that nobody guesses.")
        if not _is_loopback(self.host) and token is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, but no token protects the page.",
                hint='Add --token "$(openssl rand -hex 16)", or serve 127.0.0.1 and reach it through ssh -L.',
            )
        self.token = token or secrets.token_urlsafe(16)
        self._pages = _Pages(source)
        self._source, self._asked_s = source, -math.inf
        self._ends, self._end_is_told = False, threading.Event()
        own = {"answer": staticmethod(self._answer), "written": staticmethod(self._written)}
        request: Any = type("_Asked", (_Request,), own)
        taken = "Another program uses this port. Give another port, or 0 for any free one."
        with may_fail(f"serve {address}", taken):
            self._http = (_Http6 if ":" in self.host else _Http)((self.host, port), request)
        self.port = int(self._http.server_address[1])
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.place = f"http://{shown}:{self.port}/"
        self.url = self.place + "?" + urlencode({"token": self.token})
        threading.Thread(target=self._http.serve_forever, name="dynotune-serve", daemon=True).start()

    def close(self) -> None:
        """End after an open page has got the last state, or had time to ask for it."""
        if time.monotonic() - self._asked_s < PATIENCE_S:
            self._end_is_told.wait(LAST_WORD * self._pages.again_s)
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, path: str, headers: Any) -> tuple[int, str, bytes]:
        """Return status, type and body for one request."""
        path, _, query_text = path.partition("?")
        query = parse_qs(query_text)
        if not self._is_known(query, headers):
            refused = "The token is missing or wrong: add it to the address as the query's token, or send it "
            refused += "as a bearer.\n"
            return 403, "text/plain", refused.encode()
        try:
            if path == "/":
                return 200, "text/html", self._pages.whole()
            if path == "/view.json":
                return 200, "application/json", self._pages.record()
            if path == "/page.json":
                return self._parts(query)
            if path == "/metrics":
                return 200, "text/plain; version=0.0.4", self._source.metrics()
        except CannotRunHere as error:
            return 501, "text/plain", f"{error.message} {error.hint}\n".encode()
        except DynotuneError as error:
            return 503, "text/plain", f"{error.message}\n".encode()
        return 404, "text/plain", b"There are /, /view.json, /page.json and /metrics.\n"

    def _parts(self, query: dict[str, list[str]]) -> tuple[int, str, bytes]:
        try:
            since_s = float(query.get("since", ["-inf"])[0])
        except ValueError:
            return 400, "text/plain", b"since is a time in seconds.\n"
        self._asked_s = time.monotonic()
        told, self._ends = self._pages.parts(since_s, query.get("story", [""])[0])
        return 200, "application/json", told

    def _written(self) -> None:
        """Learn that an answer was written: once the last state was among them, the server may end."""
        if self._ends:
            self._end_is_told.set()

    def _is_known(self, query: dict[str, list[str]], headers: Any) -> bool:
        # A proxy in front may have a login of its own in the header.
        given = [headers.get("Authorization", "").removeprefix("Bearer "), *query.get("token", [])[:1]]
        return any(hmac.compare_digest(word.encode(errors="replace"), self.token.encode()) for word in given)


class _Pages:
    """What is written of the newest state, once for all who ask."""

    def __init__(self, source: Source) -> None:
        self._source, self._lock = source, threading.Lock()
        self._state: State | None = None
        self._parts: html.LiveParts | None = None

    def _newest(self) -> tuple[State | None, html.LiveParts | None]:
        """Return the newest state and its parts. They are made by one thread at a time."""
        with self._lock:
            state = self._source.state()
            if state is not None and (self._state is None or state.version != self._state.version):
                self._parts = html.live_parts(state.report)
                self._state = state
            return self._state, self._parts

    @property
    def again_s(self) -> float:
        return EVERY_S if self._state is None else self._state.again_s

    def whole(self) -> bytes:
        state, _ = self._newest()
        return (html.live(state.report) if state is not None else html.waiting()).encode()

    def record(self) -> bytes:
        state, _ = self._newest()
        return b"{}" if state is None else document.encode(state.record, indent=0)

    def parts(self, since_s: float, known: str) -> tuple[bytes, bool]:
        """Write what changed since a page asked; and return whether that was the last state.

        Args:
            since_s: values to plot are told from this time on.
            known: version of the sections that the page has.
        """
        state, parts = self._newest()
        if state is None or parts is None:
            return b"{}", False
        is_known = known == state.story_version
        told = {
            "at_s": state.at_s,
            "clock_s": state.clock_s,
            "marks_s": state.marks_s,
            "is_over": state.is_over,
            "again_s": state.again_s,
            "story_version": state.story_version,
            "header": parts.header,
            "nav": None if is_known else parts.nav,
            "story": None if is_known else parts.story,
            "series": self._source.series(since_s),
        }
        return document.encode(told, indent=0), state.is_over


class _Http(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, *given: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnected or sent nonsense; the terminal is the command's."""


class _Http6(_Http):
    address_family = socket.AF_INET6


class _Request(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    answer: Any
    written: Any

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Head(self.connection))

    def do_GET(self) -> None:
        self.connection.settimeout(PATIENCE_S)
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
        self.written()

    def log_message(self, *args: object) -> None:
        """Print nothing: the terminal is the command's."""


class _Head(io.RawIOBase):
    """What a connection sends until its deadline. Without a body, that is the head of a request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._deadline_s = connection, time.monotonic() + HEAD_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(0.001, self._deadline_s - time.monotonic()))
        return self._connection.recv_into(buffer)


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
