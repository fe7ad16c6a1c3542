"""Streams on the CPU that lag behind the host: work runs when the test, or an event that is waited for, says
so.

A copy reads its source when it runs, not when it is enqueued, as a GPU's does: what is written too early is
seen.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager

import torch

from dynotune.runtime import streams


class DelayedEvent:
    def __init__(self, world):
        self.reached = False
        self._world = world
        self._num_records = 0

    def query(self):
        return self.reached

    def synchronize(self):
        self._world.run_until(lambda: self.reached)

    def record(self, stream):
        self.reached, self._num_records = False, self._num_records + 1
        number = self._num_records
        # Only the newest counts: an older point that is passed says nothing of it.
        stream.work.append((None, lambda: setattr(self, "reached", number == self._num_records)))


class DelayedStream:
    def __init__(self):
        self.work = deque()


class DelayedStreams:
    """As `dynotune.runtime.streams.Streams`, of a device whose memory is the CPU's."""

    device = torch.device("cpu")
    pins = True

    def __init__(self):
        self.main = DelayedStream()
        self.all = [self.main]
        self._current = self.main
        self.kept = []
        self._on_device = []
        self.num_pinned = 0

    def holds(self, tensor):
        return any(tensor is mine for mine in self._on_device)

    def current(self):
        return self._current

    def side(self):
        self.all.append(DelayedStream())
        return self.all[-1]

    @contextmanager
    def on(self, stream):
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def event(self, *, spins=False):
        return DelayedEvent(self)

    def record(self, stream):
        event = self.event()
        event.record(stream)
        return event

    def wait(self, stream, event):
        stream.work.append((event, lambda: None))

    def keep(self, tensor, stream):
        self.kept.append((tensor, stream))

    def copy(self, into, source, stream):
        self._on_device.append(into)
        self.enqueue(stream, lambda: into.copy_(source))

    def pinned(self, num_bytes):
        self.num_pinned += 1
        return torch.empty(num_bytes, dtype=torch.uint8)

    def refuse_capture(self, what):
        pass

    def enqueue(self, stream, work):
        stream.work.append((None, work))

    def step(self, stream):
        """Runs the next piece of work; False where there is none, or it waits for an event."""
        if not stream.work:
            return False
        event, work = stream.work[0]
        if event is not None and not event.reached:
            return False
        stream.work.popleft()
        work()
        return True

    def run(self, stream):
        """Runs `stream` as far as it gets alone."""
        while self.step(stream):
            pass

    def run_until(self, condition):
        while not condition():
            moved = [self.step(stream) for stream in self.all]
            assert any(moved), "every stream waits for another"

    def run_all(self):
        self.run_until(lambda: not any(stream.work for stream in self.all))


def install(monkeypatch):
    """Makes everything that is built from now on use delayed streams; returns them."""
    world = DelayedStreams()
    monkeypatch.setattr(streams, "of", lambda device: world)
    return world
