"""What a live page shows: the newest state of a run, or the newest document of a study or a comparison."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from dynotune.report import Report, layout_of, live_document
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere
from dynotune.watch import prometheus
from dynotune.watch.document_watcher import DocumentWatcher
from dynotune.watch.watcher import EVERY_S, RunWatcher

SLOWLY_S = 2.0
"""Seconds between two looks at a document: whoever measures has the cores until then."""


class State(NamedTuple):
    """The newest state.

    Args:
        version, story_version: texts that change with anything of the report, and with its sections.
        at_s, clock_s: one moment, as times of `series` and in seconds since 1970.
        marks_s: moments at which what limits the steps changed.
        again_s: seconds after which there may be something new.
    """

    report: Report
    record: msgspec.Struct
    version: str
    story_version: str
    at_s: float
    clock_s: float
    marks_s: list[float]
    is_over: bool
    again_s: float


class Source(Protocol):
    def state(self) -> State | None:
        """Return the newest state; None if there is none yet."""

    def series(self, since_s: float) -> dict[str, Any]:
        """Return values from a time on: name, owner, and (time, mean, maximum) of each second."""

    def metrics(self) -> bytes:
        """Write metrics for Prometheus. Raises CannotRunHere: there are none."""


class RunSource:
    """The state of a run, second by second."""

    def __init__(self, watcher: RunWatcher) -> None:
        self._watcher = watcher

    def state(self) -> State | None:
        if self._watcher.view is None:
            return None
        view = document.without_secrets(self._watcher.view)
        version = f"{view.at_s}"
        marks = [mark.at_s for mark in view.marks if mark.kind == "bottleneck"]
        is_over = view.state == "ended"
        report = layout_of(view)
        return State(report, view, version, version, view.at_s, view.clock_s, marks, is_over, EVERY_S)

    def series(self, since_s: float) -> dict[str, Any]:
        return self._watcher.series(since_s)

    def metrics(self) -> bytes:
        return prometheus.metrics(self._watcher)


class DocumentSource:
    """A study or a comparison, run by run.

    Args:
        find: returns the watcher of the document; None as long as there is no document.
    """

    def __init__(self, find: Callable[[], DocumentWatcher | None]) -> None:
        self._find = find
        self._watcher: DocumentWatcher | None = None

    def state(self) -> State | None:
        watcher = self._watcher = self._watcher or self._find()
        if watcher is None:
            return None
        found = document.without_secrets(watcher.document())
        doing, now, is_over = watcher.doing(), time.time(), watcher.is_over
        story = f"{watcher.version} {is_over}"
        version = f"{story} {doing.what} {math.floor(now)}"
        report = live_document.layout(found, doing)
        return State(report, found, version, story, now, now, [], is_over, SLOWLY_S)

    def series(self, since_s: float) -> dict[str, Any]:
        return {}

    def metrics(self) -> bytes:
        raise CannotRunHere("A study or a comparison has no metrics.", hint="dynotune watch serves them.")
