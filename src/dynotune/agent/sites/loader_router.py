"""Replace a loader of the program for a while by a second loader over the same dataset and sampler.

Both loaders draw their indices from one iterator of the sampler, so each sample still comes once in an epoch.
Batches that a loader has ready when the other loader takes over stay until that loader's next turn, or the
epoch's end. Workers of the replaced loader finish their present batches, and meanwhile compete with the other
workers for cores; the batches that they have not begun are held back until that loader's next turn.
"""

from __future__ import annotations

import os
import weakref
from contextlib import nullcontext, suppress
from queue import Empty
from threading import get_ident

from .site import NotSwitched, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from ..core.program import Program

    class Decoder(Protocol):
        """A site that decodes in workers: `counts` of all workers, and `covering`, within which they are
        forked."""

        counts: Any

        def covering(self) -> AbstractContextManager[None]: ...

    Options = tuple[tuple[str, Any], ...]
    Used = dict[tuple[Options, str], set[str]]
    """By options and the name of a loader's argument, the values with which iterators work, as text."""

DECODE = "decode.backend"
"""Name of the option by which workers decode; the other options are named as the loader's arguments."""
NEEDS_WORKERS = "%s needs loading processes (num_workers above 0), and the loader has none"
_FROM_WORKERS = ("prefetch_factor", "in_order", "multiprocessing_context", DECODE)


def router_of(program: Program) -> Router:
    """Return the program's only router, because candidates share their ready batches at the end of an
    epoch."""
    if program.loader_router is None:
        program.loader_router = Router(program)
        program.loaders.draw_through(program.loader_router.around)
    router: Router = program.loader_router
    return router


class Router:
    """Route each draw of a batch to the program's own iterator, or to an iterator with the options
    `active`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._thread = get_ident()  # the thread in which steps end
        self.active: Options | None = None
        self.decoders: dict[Options, Decoder] = {}
        """Decoders of the workers, for options that have one."""
        self.failure = ""
        self.num_drained = (
            0  # draws at epochs' ends, of batches that were ready and that no new batch replaced
        )
        self._seen: dict[int, _Sources] = {}
        self._used: Used = {}

    def turn_on(self, options: dict[str, Any]) -> None:
        """Draw with these options too, beside those that are on already."""
        self.active = tuple(sorted({**dict(self.active or ()), **options}.items()))

    def turn_off(self, options: dict[str, Any]) -> None:
        """Draw without these options.

        The workers of the program's own iterators go on, whoever draws from these iterators next.
        """
        self.active = tuple(option for option in self.active or () if option[0] not in options) or None
        for sources in list(self._seen.values()):
            sources.release_own()

    def used(self, name: str) -> set[str]:
        """Return the values of a loader's argument, as text, in iterators with the present options."""
        return set() if self.active is None else self._used.get((self.active, name), set())

    def num_queued(self, options: dict[str, Any]) -> int:
        """Return the largest number of batches that an iterator with the given options may have ready."""
        return max([0, *(sources.num_queued(options) for sources in self._seen.values())])

    def waiting(self) -> tuple[bool, bool, int]:
        """Return whether workers of unused iterators are idle, whether queues of used ones are empty or full,
        and the number of batches ready to be drawn.
        """
        found = [sources.waiting(self.active) for sources in list(self._seen.values())]
        idle, steady, ready = zip(*found) if found else ((), (), (0,))
        return all(idle), all(steady), max(ready)

    @property
    def sees_loaders(self) -> bool:
        """Tell whether it knows the steps' loaders; batches may be drawn in another thread, where it knows
        nothing."""
        return bool(self._seen) and not self.failure

    def num_ready(self) -> int:
        """Return the number of batches ready to be drawn, of all loaders of the steps together."""
        return sum(sources.waiting(self.active)[2] for sources in list(self._seen.values()))

    def busy_share(self) -> float | None:
        """Return the largest share of a loader's workers that may have been busy in a step; None without
        workers.

        No more workers than cores make batches at a time.

        Batches that were asked for and are not ready are being made, or wait for a worker: then the share
        exceeds 1. One more may have been made since the step drew its batch.
        """
        found = [sources.busy_share(self.active) for sources in list(self._seen.values())]
        return max((share for share in found if share is not None), default=None)

    def cannot(self, options: dict[str, Any]) -> str:
        """Return why no loader of the steps can give batches with these options, beside those on already."""
        if self.failure:
            return self.failure
        if not self._seen:
            return "the steps draw from no DataLoader of torch"
        options = {**dict(self.active or ()), **options}
        return next(filter(None, (sources.cannot(options) for sources in list(self._seen.values()))), "")

    def has_already(self, options: dict[str, Any]) -> bool:
        """Tell whether a loader of the steps has the given options of its own accord."""
        return any(sources.has_already(options) for sources in list(self._seen.values()))

    def check(self) -> None:
        """Raise NotSwitched if a loader with other options could not be made."""
        if self.failure:
            raise NotSwitched(self.failure)

    def around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __next__(iterator: Any) -> Any:
            sources = self._sources(iterator)
            if sources is None:
                return original(iterator)
            try:
                source = sources.turn(iterator, self.active, self.decoders, self._used)
            except Exception as error:
                self.failure = "the loader could not be made: %s: %s" % (type(error).__name__, error)
                source = iterator
            num_asked = sources.num_asked
            batch = sources.draw(original, iterator, source)
            self.num_drained += sources.has_others and sources.num_asked < num_asked
            return batch

        return __next__

    def _sources(self, iterator: Any) -> _Sources | None:
        """Return the `_Sources` of an iterator whose batches belong to the steps; None for other
        iterators."""
        try:
            found = self._seen.get(id(iterator))
            if found is not None and found.is_of_this_epoch(iterator):
                return found
            if not self._program.steps.counts(iterator._dynotune[0]):
                return None
            if get_ident() != self._thread:
                self.failure = "batches are drawn in another thread than steps are made in"
                return None
            made = self._seen[id(iterator)] = _Sources(
                iterator, self._program, lambda one: self._seen.pop(one, None)
            )
            return made
        except Exception as error:
            self._program.log("loader switch", error)
            return None


class _Sources:
    """Iterators that share the sampler of one of the program's iterators in one epoch, and die with that
    iterator."""

    def __init__(self, own: Any, program: Program, forget: Callable[[int], Any]) -> None:
        identity = id(own)
        self._own = weakref.ref(own, lambda _: forget(identity))
        self._program = program
        self._indices = own._sampler_iter
        self._others: dict[Options, Any] = {}
        self._drawn: Options | None = None
        self._held: dict[int, list[tuple[Any, Any]]] = {}
        """For an iterator, by its identity, tasks that its workers have not begun, each with its worker's
        queue."""

    @property
    def has_others(self) -> bool:
        return bool(self._others)

    def is_of_this_epoch(self, iterator: Any) -> bool:
        """Tell whether the iterator belongs to this epoch: persistent workers keep an iterator, and restart
        it."""
        return self._own() is iterator and getattr(iterator, "_sampler_iter", None) is self._indices

    def num_queued(self, options: dict[str, Any]) -> int:
        workers = int(options.get("num_workers", self._has("num_workers") or 0))
        return workers * int(options.get("prefetch_factor", self._has("prefetch_factor")) or 2)

    def has_already(self, options: dict[str, Any]) -> bool:
        return all(self._has(name) == value for name, value in options.items())

    def cannot(self, options: dict[str, Any]) -> str:
        own = self._own()
        if own is None:
            return ""
        if isinstance(own._dataset, self._program.torch.utils.data.IterableDataset):
            return "the dataset is iterable: two loaders would each yield all of its samples"
        if not hasattr(own, "_dynotune_loader"):
            return "another library's iterator cannot be made again"
        if self.has_already(options):
            return ""
        if not options.get("num_workers", own._num_workers):
            for name in set(options) & set(_FROM_WORKERS):
                return NEEDS_WORKERS % (name if name == DECODE else "loader." + name)
        import multiprocessing  # see `core.fetch_delay`

        context = own._dynotune_loader[1].get("_DataLoader__multiprocessing_context") or multiprocessing
        if DECODE in options and options.get("multiprocessing_context", context.get_start_method()) != "fork":
            return "workers that are not forked keep their decoder"
        return ""

    def waiting(self, options: Options | None) -> tuple[bool, bool, int]:
        """Return the same as `Router.waiting`."""
        own = self._own()
        drawn = own if options is None else self._others.get(options)
        ready, asked = _done(drawn)
        is_idle, is_steady = True, ready == 0 or asked - ready <= getattr(drawn, "_num_workers", 0)
        for idle in (own, *self._others.values()):
            if idle is not drawn:
                made, wanted = _done(idle)
                is_idle &= made >= wanted - len(self._held.get(id(idle), ()))
        return is_idle, is_steady, ready

    def busy_share(self, options: Options | None) -> float | None:
        """Return the same as `Router.busy_share`, of the iterator that is drawn from."""
        drawn = self._own() if options is None else self._others.get(options)
        num_workers = getattr(drawn, "_num_workers", 0)
        ready, asked = _done(drawn)
        at_a_time = min(num_workers, len(os.sched_getaffinity(0)))
        return (asked - ready + 1) / at_a_time if num_workers else None

    @property
    def num_asked(self) -> int:
        """Return the number of batches that were requested from all workers and are not drawn yet."""
        return sum(_done(each)[1] for each in (self._own(), *self._others.values()))

    def _has(self, name: str) -> Any:
        return getattr(self._own(), "_" + name, None)

    def turn(self, own: Any, options: Options | None, decoders: dict[Options, Decoder], used: Used) -> Any:
        """Return the iterator that gives the next batch; `used` receives the arguments of a new iterator."""
        if options is not None and options not in self._others:
            made = self._others[options] = self._made(own, dict(options), decoders.get(options))
            for name, value in _arguments(made).items():
                used.setdefault((options, name), set()).add(text(value))
        if options != self._drawn:
            before, self._drawn = self._drawn, options
            self._hold(own if before is None else self._others.get(before))
        return own if options is None else self._others[options]

    def _hold(self, iterator: Any) -> None:
        """Take back the tasks that the iterator's workers have not begun."""
        held = self._held.setdefault(id(iterator), [])
        for queue in getattr(iterator, "_index_queues", ()):
            try:
                while True:
                    held.append((queue, queue.get_nowait()))
            except (Empty, ValueError, OSError):  # an iterator that has ended has closed its queues
                continue

    def release_own(self) -> None:
        own = self._own()
        if own is not None and self.is_of_this_epoch(own):
            self._release(own)

    def _release(self, iterator: Any) -> None:
        for queue, task in self._held.pop(id(iterator), ()):
            with suppress(ValueError, OSError):
                queue.put(task)

    def draw(self, original: Callable[[Any], Any], own: Any, source: Any) -> Any:
        """Draw a batch of `source`; once the sampler is exhausted, draw a batch that another iterator has
        left."""
        self._release(source)
        try:
            return original(source)
        except StopIteration:
            if not self._others:
                raise
        for other in [own, *self._others.values()]:
            if other is not source:
                self._release(other)
                try:
                    return original(other)
                except StopIteration:
                    continue
        self._others = {}
        raise StopIteration

    def _made(self, own: Any, options: dict[str, Any], decoder: Decoder | None) -> Any:
        """Create an iterator over a copy of the loader, without changing the program's random numbers."""
        torch = self._program.torch
        loader_class, fields = own._dynotune_loader
        options.pop(DECODE, None)
        fields = {**fields, **options, "persistent_workers": False, "_iterator": None}
        context = fields.pop("multiprocessing_context", None)
        if not fields["num_workers"]:
            fields.update(prefetch_factor=None, timeout=0)
        elif fields.get("prefetch_factor") is None:
            fields["prefetch_factor"] = 2
        indices = _Shared(self._indices, own._index_sampler)
        fields["batch_sampler" if own._auto_collation else "sampler"] = indices
        # Bypass the constructor, which would create samplers, and the refusal to change such fields.
        twin = loader_class.__new__(loader_class)
        twin.__dict__.update(fields)
        if fields["num_workers"] and context is not None:
            twin.multiprocessing_context = context
        generators = [None, *(each for each in (fields.get("generator"),) if each is not None)]
        states = [each.get_state() if each is not None else torch.get_rng_state() for each in generators]
        with self._program.loaders.unseen(), nullcontext() if decoder is None else decoder.covering():
            try:
                return twin._get_iterator()
            finally:
                for each, state in zip(generators, states):
                    torch.set_rng_state(state) if each is None else each.set_state(state)


def _arguments(iterator: Any) -> dict[str, Any]:
    """Return the loader's arguments with which its iterator really works, by name; None for those it
    lacks."""
    workers = getattr(iterator, "_workers", ())
    return {
        "num_workers": len(workers),
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
        "pin_memory": getattr(iterator, "_pin_memory", None),
        "in_order": getattr(iterator, "_in_order", None),
        "multiprocessing_context": getattr(workers[0], "_start_method", None) if workers else None,
    }


def _done(iterator: Any) -> tuple[int, int]:
    """Count the batches that workers have ready, and the batches that were requested from workers."""
    try:
        stored = sum(len(info) > 1 for info in iterator._task_info.values())
        # Batches that come before their turn are stored, and no longer outstanding.
        return stored + iterator._data_queue.qsize(), stored + iterator._tasks_outstanding
    except (AttributeError, NotImplementedError, OSError):
        if not getattr(iterator, "_num_workers", 0):
            return 0, 0
        # This version of torch does not report it, so as many steps are left out as there may be batches.
        most = iterator._num_workers * (getattr(iterator, "_prefetch_factor", None) or 2)
        return most, most


class _Shared:
    """A sampler whose iterator is shared with another loader."""

    def __init__(self, indices: Iterator[Any], sampler: Any) -> None:
        self._indices, self._sampler = indices, sampler

    def __iter__(self) -> Iterator[Any]:
        return self._indices

    def __len__(self) -> int:
        return len(self._sampler)
