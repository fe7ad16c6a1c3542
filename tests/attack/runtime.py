"""The standing attack on the runtime: many threads, exceptions, sizes, forks and closing in the middle, for a
while.

All cases run in one process, whose memory must stay flat. With a GPU they use it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader

from dynotune.runtime import ClosedError, DynotuneRuntimeError, Engine, ForkedError, Prefetcher, SourceError
from dynotune.runtime.vision.detector import Detector

from ..runtime.yolo_like import YoloLike, frames
from .counts import Counts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Until a case hangs. No case measures speed.
LONGEST_S = 120.0
# Memory is flat if it grows by less than both, from the second quarter of the samples to the last.
MOST_GROWTH, MOST_GROWTH_BYTES = 0.05, 32 << 20
NUM_SAMPLES = 16
BAD = -1000.0


WHOLE = 1500
"""About half an hour on two cores."""


class Refusing(nn.Module):
    """Rows times two; raises where it is told to by its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and x.min() <= BAD:
            raise ZeroDivisionError("told to")
        return x * 2


class Missing(Exception):
    """A source or a loader that breaks."""


def attack(number: int, seed: int, *, first: int = 0, soak_s: float = 0.0) -> Counts:
    """Run `number` cases, and more of them until `soak_s` has passed.

    Args:
        seed, first: the case of number `i` depends on the seed and `i` alone: `first=i` begins with that one.
    """
    counts, memory, began_s = Counts(), [], time.monotonic()
    at = first
    with _quiet(), contextlib.closing(Shared()) as shared:
        while at < first + number or time.monotonic() - began_s < soak_s:
            case = CASES[at % len(CASES)]
            name = case.__name__.strip("_").replace("_", " ")
            counts.tried[name] += 1
            if failed := _failed(lambda case=case, at=at: case(Random(f"{seed} {at}"), shared)):
                counts.failures.append(f"{name}, --seed {seed} --first {at}: {failed}")
                if "hangs" in failed:
                    break
            else:
                counts.held[name] += 1
            at += 1
            gc.collect()
            memory.append(psutil.Process().memory_info().rss)
        if grown := _growth(memory):
            counts.failures.append(f"memory, --seed {seed} --first {first}: {grown}")
    return counts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Sources that break and shapes without a bucket are logged, and here are many."""
    logger = logging.getLogger("dynotune.runtime")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _growth(memory: list[int]) -> str:
    """What memory did that is not flat; the first quarter, which fills caches and pools, is left out."""
    quarter = len(memory) // 4
    if quarter < NUM_SAMPLES // 4:
        return ""
    before, after = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])
    if after - before <= max(MOST_GROWTH * before, MOST_GROWTH_BYTES):
        return ""
    return f"it grew from {before / 2**20:.0f} to {after / 2**20:.0f} MiB in {len(memory)} cases"


def _failed(case: Callable[[], None]) -> str:
    """Why the case did not hold, in a thread that may hang; empty where it did."""
    said: list[str] = []

    def run() -> None:
        try:
            case()
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            said.append(
                f"{type(error).__name__}: {error} ({', '.join(f'{x.name}:{x.lineno}' for x in frames)})"
            )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    if not thread.is_alive():
        return "".join(said)
    frame = sys._current_frames().get(thread.ident or 0)
    return "it hangs: " + " < ".join(
        f"{each.name}:{each.lineno}" for each in traceback.extract_stack(frame)[-6:]
    )


class Shared:
    """A detector that all cases use, and its answers."""

    def __init__(self) -> None:
        self.detector = Detector(YoloLike(), 64, device=DEVICE, conf=0.5, batch=(1, 4), max_frame=(96, 128))
        self.frames = {size: frames(6, size) for size in ((48, 64), (32, 128), (96, 40))}
        self.rows = {
            size: [x.rows for x in self.detector.predict(many)] for size, many in self.frames.items()
        }

    def close(self) -> None:
        self.detector.close()

    def check(self, size: tuple[int, int], served: Any, at: int) -> None:
        torch.testing.assert_close(served.detections.rows, self.rows[size][at], atol=1e-3, rtol=1e-4)


def _at_once(*works: Callable[[], None]) -> None:
    """Run them in threads, and raise what the first one raised."""
    raised: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_S / 2)
    assert not any(thread.is_alive() for thread in threads), "it hangs in a thread of the case"
    if raised:
        raise raised[0]


def _engine(**more: Any) -> Engine:
    return Engine(Refusing().to(DEVICE).eval(), [(4, 3), (1, 3)], pad="batch", device=DEVICE, **more)


def _ask(engine: Engine, random: Random, *, bad: bool = False) -> None:
    """One call of any size, also of one that there is no bucket for; its answer is checked."""
    rows, value = random.choice((1, 2, 3, 4, 7)), random.uniform(1, 9)
    batch = torch.full((rows, 3), value, device=DEVICE)
    if bad and DEVICE == "cpu":
        try:
            engine(batch.fill_(BAD))
        except (ZeroDivisionError, DynotuneRuntimeError):
            return
        raise AssertionError("the model's own error was lost")
    torch.testing.assert_close(engine(batch), batch * 2)


def _asks(engine: Engine, random: Random, *, num: int = 30, bad: float = 0.0) -> Callable[[], None]:
    own = Random(random.random())

    def work() -> None:
        for _ in range(num):
            _ask(engine, own, bad=own.random() < bad)

    return work


# Cases


def _engine_asked_by_many_threads(random: Random, shared: Shared) -> None:
    with _engine() as engine:
        _at_once(*(_asks(engine, random) for _ in range(random.randint(2, 12))))
        stats = engine.stats()
        assert stats.num_calls == stats.num_hits + stats.num_fallbacks


def _engine_whose_model_raises_in_some_threads(random: Random, shared: Shared) -> None:
    with _engine() as engine:
        _at_once(*(_asks(engine, random, bad=0.3 * (number % 2)) for number in range(6)))
        _ask(engine, random)


def _engine_closed_during_use(random: Random, shared: Shared) -> None:
    engine, closed = _engine(), threading.Event()

    def until_closed(own: Random) -> Callable[[], None]:
        def work() -> None:
            try:
                while True:
                    _ask(engine, own)
            except ClosedError:
                assert closed.is_set()

        return work

    def close() -> None:
        time.sleep(random.random() / 50)
        closed.set()
        engine.close()
        engine.close()

    _at_once(*(until_closed(Random(random.random())) for _ in range(4)), close)


def _engine_in_a_forked_child(random: Random, shared: Shared) -> None:
    with _engine() as engine:
        batch = torch.ones((2, 3), device=DEVICE)  # CUDA itself refuses to make one in a forked child

        def child() -> None:
            with contextlib.suppress(ForkedError):
                engine(batch)
                raise AssertionError("the child was not refused")
            engine.close()

        _at_once(_asks(engine, random), _asks(engine, random), lambda: _forked(child))
        _ask(engine, random)


def _server_and_detector_in_a_forked_child(random: Random, shared: Shared) -> None:
    many = random.choice(list(shared.frames.values()))
    server = shared.detector.serve([iter(many)], max_wait_s=0.0)
    next(server)

    def child() -> None:
        with contextlib.suppress(ForkedError):
            shared.detector.predict(many)
            raise AssertionError("the child was not refused")
        server.close()

    _forked(child)
    assert len(list(server)) == len(many) - 1


def _forked(work: Callable[[], None]) -> None:
    """Do it in a forked child that is not waited for without end."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            work()
            gc.collect()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline_s = time.monotonic() + LONGEST_S / 4
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the forked child hangs")
        time.sleep(0.005)
    assert ended[1] == 0, f"the forked child ended with {ended[1]}"


def _source(many: list[Any], random: Random, *, breaks_at: int = -1, pauses: bool = True) -> Iterator[Any]:
    for at, frame in enumerate(many):
        if at == breaks_at:
            raise Missing("unplugged")
        if pauses and random.random() < 0.3:
            time.sleep(random.random() / 100)
        yield frame


def _sizes(random: Random, num: int) -> dict[str, tuple[int, int]]:
    sizes = [(48, 64), (32, 128), (96, 40)]
    return {f"source {number}": random.choice(sizes) for number in range(num)}


def _server_of_mixed_sizes(random: Random, shared: Shared) -> None:
    sizes = _sizes(random, random.randint(1, 8))
    sources = {name: _source(shared.frames[size], Random(random.random())) for name, size in sizes.items()}
    seen: dict[str, list[int]] = {name: [] for name in sizes}
    with shared.detector.serve(sources, max_wait_s=random.choice((0.0, 0.001, 0.02))) as server:
        for served in server:
            shared.check(sizes[served.source], served, served.index)
            seen[served.source].append(served.index)
    assert all(indices == list(range(6)) for indices in seen.values()), seen


def _server_of_sources_that_break(random: Random, shared: Shared) -> None:
    sizes = _sizes(random, 5)
    breaks = {name: random.choice((-1, 0, 2, 5)) for name in sizes}
    sources = {
        name: _source(shared.frames[size], Random(random.random()), breaks_at=breaks[name])
        for name, size in sizes.items()
    }
    seen: Counter[str] = Counter()
    server = shared.detector.serve(sources, max_wait_s=0.001)
    try:
        for served in server:
            shared.check(sizes[served.source], served, served.index)
            seen[served.source] += 1
        assert all(at < 0 for at in breaks.values()), "a broken source was not said"
    except SourceError:
        assert any(at >= 0 for at in breaks.values())
    assert all(seen[name] == (6 if at < 0 else at) for name, at in breaks.items()), (seen, breaks)


def _server_closed_during_use(random: Random, shared: Shared) -> None:
    sizes = _sizes(random, 4)

    def endless(size: tuple[int, int]) -> Iterator[Any]:
        while True:
            yield from shared.frames[size]

    server = shared.detector.serve({name: endless(size) for name, size in sizes.items()}, queue=2)

    def take() -> None:
        for served in server:
            shared.check(sizes[served.source], served, served.index % 6)

    def close() -> None:
        time.sleep(random.random() / 20)
        server.close()

    _at_once(take, close)
    for stats in server.stats().values():
        assert stats.num_read == stats.num_served + stats.num_dropped + stats.num_discarded, stats


def _server_that_is_fair(random: Random, shared: Shared) -> None:
    """Sources that always have a frame, one of another size: none gets further ahead of another than its
    queue."""
    num, odd = random.randint(2, 6), random.choice((True, False))
    sizes = {str(number): (32, 128) if odd and number == 0 else (48, 64) for number in range(num)}
    filled = [threading.Event() for _ in sizes]

    def full(size: tuple[int, int], event: threading.Event) -> Iterator[Any]:
        for at in range(60):
            if at == 8:
                event.set()
            yield shared.frames[size][at % 6]

    sources = {name: full(size, event) for (name, size), event in zip(sizes.items(), filled, strict=True)}
    seen: Counter[str] = Counter(dict.fromkeys(sizes, 0))
    furthest = 0
    with shared.detector.serve(sources, queue=8, max_batch=4, depth=1, max_wait_s=0.0) as server:
        for event in filled:
            event.wait(LONGEST_S / 4)
        for served in server:
            seen[served.source] += 1
            if max(seen.values()) < 50:
                furthest = max(furthest, max(seen.values()) - min(seen.values()))
    assert all(count == 60 for count in seen.values()), seen
    # What is on its way, and what one queue holds while a reader's thread has no turn.
    assert furthest <= 8 + 4 * num, (furthest, sizes)


def _prefetcher_of_mixed_sizes_that_breaks(random: Random, shared: Shared) -> None:
    sizes = [random.randint(1, 5000) for _ in range(12)]
    breaks_at = random.choice((-1, 0, 5))

    def loader() -> Iterator[Any]:
        for at, size in enumerate(sizes):
            if at == breaks_at:
                raise Missing("gone")
            yield {"x": torch.full((size,), float(at)), "name": str(at)}

    seen = 0
    try:
        for at, batch in enumerate(Prefetcher(loader(), DEVICE, random.randint(0, 4))):
            assert batch["x"].shape == (sizes[at],) and batch["name"] == str(at)
            assert bool((batch["x"] == at).all())
            seen += 1
    except Missing:
        assert breaks_at >= 0
    assert seen == (len(sizes) if breaks_at < 0 else breaks_at), (seen, breaks_at)


def _prefetchers_in_many_threads_left_early(random: Random, shared: Shared) -> None:
    loader = DataLoader([torch.full((8,), float(at)) for at in range(40)], batch_size=2)

    def work() -> None:
        own = Random(random.random())
        for _ in range(4):
            until = own.randint(1, 20)
            for at, batch in enumerate(Prefetcher(loader, DEVICE, own.randint(0, 3))):
                assert batch[:, 0].tolist() == [2.0 * at, 2.0 * at + 1]
                if at == until:
                    break

    _at_once(*(work for _ in range(5)))


CASES = (
    _engine_asked_by_many_threads,
    _server_of_mixed_sizes,
    _prefetcher_of_mixed_sizes_that_breaks,
    _engine_whose_model_raises_in_some_threads,
    _server_closed_during_use,
    _engine_closed_during_use,
    _server_of_sources_that_break,
    _prefetchers_in_many_threads_left_early,
    _server_that_is_fair,
    _engine_in_a_forked_child,
    _server_and_detector_in_a_forked_child,
)
