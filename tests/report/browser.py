"""Chromium, driven over a pipe by the DevTools protocol, for the tests of pages."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
LONGEST_S = 60.0


class Browser:
    """One browser with one page; what it says is kept in `events`."""

    def __init__(self, profile: Path) -> None:
        read, self._to = os.pipe()
        self._from, written = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4: ours are neither, lest one be lost in the
        # exchange.
        to_browser, from_browser = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, written))
        line = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", line, "bash", str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (read, written, to_browser, from_browser):
            os.close(end)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Asked to close, it ends its own processes before itself.
        os.write(self._to, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self._process.wait(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers; what it says meanwhile goes to `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") != self._number:
                self.events.append(said)
                continue
            assert "error" not in said, f"{method}: {said['error']}"
            result: dict[str, Any] = said["result"]
            return result

    def show(self, path: Path, *, width: int, dark: bool = False, height: int = 900) -> None:
        """Open a page at a width, and wait until its own script has drawn what it draws."""
        self.events.clear()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def wait_for(self, event: str) -> None:
        while not any(said.get("method") == event for said in self.events):
            self.events.append(self._next())

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, when it is kept."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def said(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def photograph(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + LONGEST_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser said nothing for too long"
            chunk = os.read(self._from, 1 << 16)
            assert chunk, f"the browser ended: {self._process.wait()}"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        return said
