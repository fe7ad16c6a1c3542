"""Detect alerts when they begin, and start the user's command for each."""

import os
import subprocess
from typing import IO

import msgspec

from dynotune.schema import document
from dynotune.schema.watch import Alert, View

MOST_AT_ONCE, MOST_DETAILS = 4, 64


class Begun:
    """Filter for alerts that the previous state did not have."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def of(self, view: View) -> list[Alert]:
        known, self._known = self._known, {(alert.id, alert.whose) for alert in view.alerts}
        return [alert for alert in view.alerts if (alert.id, alert.whose) not in known]


class Commands:
    """Shell commands, started without waiting for each alert that begins.

    The command gets the alert as JSON (`schema.watch.Alert`) on its input: text that programs chose, such as names, is
    never part of the command itself. At most four commands run at once; meanwhile further alerts start no command. The
    commands' output goes to `output`.
    """

    def __init__(self, command: str, output: IO[str]) -> None:
        self._command, self._output = command, output
        self._begun = Begun()
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(self, view: View) -> None:
        self._running = [one for one in self._running if one.poll() is None]
        for alert in self._begun.of(view):
            if len(self._running) < MOST_AT_ONCE:
                self._start(alert)

    def _start(self, alert: Alert) -> None:
        started = subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            env={**os.environ, "DYNOTUNE_ALERT": alert.id},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        self._running.append(started)
        assert started.stdin is not None
        try:
            # No more than a pipe can hold, so that a command that does not read blocks nobody.
            told = document.without_secrets(msgspec.structs.replace(alert, details=alert.details[:MOST_DETAILS]))
            started.stdin.write(msgspec.json.encode(told))
            started.stdin.close()
        except BrokenPipeError:
            pass
