"""Counts the program's steps: searches the cycle, fixes it, then looks at what ends a step and nothing else."""

import weakref
from time import perf_counter

from . import cycle as cycles
from . import samples

_MAX_EVENTS = 1 << 20
# Loaders are drawn from ahead of use by a batch or so (Lightning, accelerate).
_MAX_AHEAD = 4
# An exception inside an optimizer's step leaves it open; after this many events it is taken for closed.
_MAX_INSIDE_OPTIMIZER = 4096


class Steps:
    """Events in, steps out.

    Args:
        grad_enabled: tells whether gradients are recorded now.
        ended: called as `ended(index, end_s, wait_s, num_samples, epoch, live)` for each step in order; `epoch`
            says that a loader was begun anew in it; `live` is false
            for those that had passed when the cycle was found.
        fixed: called as `fixed(description, begin_s, classes, num_superseded)` when a cycle was found, with the classes
            of modules still needed and how many of the first steps are none after all.
    """

    def __init__(self, grad_enabled, ended, fixed):
        self._grad_enabled = grad_enabled
        self._ended, self._fixed = ended, fixed
        self._tokens, self._numbers = [], {}
        self._classes = {}
        self._events, self._times, self._waits, self._sizes, self._begins = [], [], [], [], []
        self._begun, self._epoch = set(), False
        self._datasets = {}
        self._next_check = 3
        self._optimizers = weakref.WeakSet()
        self._inside_optimizer = 0
        self._cycle = None
        self._sampler = None
        self._anchor, self._per_step, self._loaders = -1, 1, frozenset()
        self._marked = False
        self._began_s, self._num_superseded = None, 0
        self.index = 0
        self._seen = 0
        self._draws_per_step = None

    @property
    def num_events(self):
        return len(self._events)

    # What happens in the program

    def optimizer_built(self, optimizer):
        self._optimizers.add(optimizer)

    def optimizer_entered(self):
        self._inside_optimizer = _MAX_INSIDE_OPTIMIZER

    def iterator_made(self, key, dataset):
        """A loader is begun anew: with the first batch from it an epoch begins."""
        self._begun.add(key)
        if key not in self._numbers:
            self._take_over(key)
        try:
            self._datasets[key] = weakref.ref(dataset)
        except TypeError:  # a list: whether it is dead cannot be known
            self._datasets.pop(key, None)

    def _take_over(self, key):
        """Give a loader of new data the number of one just like it whose data have died, as of an earlier fold."""
        for other, dataset in self._datasets.items():
            if dataset() is None and (other[0], other[2:]) == (key[0], key[2:]) and other in self._numbers:
                self._numbers[key] = self._numbers.pop(other)
                del self._datasets[other]
                return

    def drawn(self, key, batch_size, begin_s, end_s, batch):
        self._inside_optimizer = 0
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._new(cycles.DRAW, key[0].__name__)
        if self._cycle is None or number in self._loaders:
            begins = key in self._begun
            self._begun.discard(key)
            self._happened(number, end_s, end_s - begin_s, samples.in_batch(batch, batch_size), begins)

    def called(self, module, args, kwargs):
        if self._inside_optimizer:
            self._inside_optimizer -= 1
            return
        number = self._number(cycles.CALL, module, self._grad_enabled())
        if self._cycle is None:
            self._happened(number, perf_counter(), 0.0, samples.in_call(args, kwargs))
            return
        if number == self._sampler:
            self._waits.append(0.0)
            self._sizes.append(samples.in_call(args, kwargs))
        if number == self._anchor:
            self._tick(perf_counter(), True)

    def stepped(self, optimizer):
        self._inside_optimizer = 0
        number = self._number(cycles.STEP, optimizer, False)
        if number == self._anchor or self._cycle is None:
            self._happened(number, perf_counter(), 0.0, None)

    def replayed(self, graph):
        number = self._number(cycles.REPLAY, graph, False)
        if number == self._anchor or self._cycle is None:
            self._happened(number, perf_counter(), 0.0, None)

    def marked(self):
        """The program, or a function that the user named, says that a step has ended."""
        now = perf_counter()
        if not self._marked:
            self._begin_marked(now)
        self._end_step(now, True)

    def search_again(self):
        """Another training begins, with a step of its own; whether there is anything to search.

        What was repeated before by a program that trains, and trained nothing, was no step: a look at the data, an
        evaluation.
        """
        if self._cycle is None or self._marked:
            return False
        if not any(self._tokens[n].kind in (cycles.STEP, cycles.REPLAY) for n in self._cycle.sequence):
            self._num_superseded = self.index
        self._cycle, self._seen, self._next_check = None, 0, 3
        self._sizes, self._waits = [], []
        self._optimizers.clear()
        return True

    def ignore(self):
        """Count nothing from here on."""
        self._cycle = cycles.Cycle([], -1, 1, set())
        self._anchor, self._loaders, self._sampler = -1, frozenset(), None

    # From events to steps

    def _happened(self, number, now, wait_s, size, begins=False):
        if self._cycle is not None:
            self._count(number, now, wait_s, size, begins, True)
            return
        self._events.append(number)
        self._times.append(now)
        self._waits.append(wait_s)
        self._sizes.append(size)
        self._begins.append(begins)
        size = len(self._events)
        if self._next_check <= size < _MAX_EVENTS:
            # Every event at first, then ever more rarely: looking costs as much as there is to look at.
            self._next_check = size + 1 + size // 32
            found = cycles.find(self._events, self._times, self._tokens, len(self._optimizers))
            if found is not None:
                self._fix(found)

    def _fix(self, found):
        self._cycle = found
        self._anchor, self._per_step, self._loaders = found.anchor, found.per_step, frozenset(found.loaders)
        calls = [n for n in found.sequence if self._tokens[n].kind == cycles.CALL]
        self._sampler = calls[0] if calls and not self._loaders else None
        self._draws_per_step = sum(n in self._loaders or n == self._sampler for n in found.sequence)
        needed = {self._classes[n] for n in {self._sampler, self._anchor} & set(calls)}
        if self._num_superseded:
            self.index, self._began_s = 0, None
        if self._began_s is None:
            self._began_s = self._begin_s()
        self._catch_up()
        num_superseded, self._num_superseded = self._num_superseded, 0
        self._fixed(found.describe(self._tokens), self._began_s, needed, num_superseded)

    def _catch_up(self):
        """Count what happened while the step was searched for."""
        past = list(zip(self._events, self._times, self._waits, self._sizes, self._begins))
        self._events, self._times, self._waits, self._sizes, self._begins = [], [], [], [], []
        for event in past:
            self._count(*event, False)

    def _begin_s(self):
        """When the first step began: with the wait for the first thing that counts in it."""
        for number, time_s, wait_s in zip(self._events, self._times, self._waits):
            if number in self._cycle.sequence:
                return time_s - wait_s
        return self._times[0]

    def _count(self, number, now, wait_s, size, begins, live):
        if number in self._loaders or number == self._sampler:
            self._waits.append(wait_s)
            self._sizes.append(size)
            self._epoch = self._epoch or begins
        if number == self._anchor:
            self._tick(now, live)

    def _tick(self, now, live):
        self._seen += 1
        if self._seen == self._per_step:
            self._seen = 0
            self._end_step(now, live)

    def _end_step(self, now, live):
        sizes, waits = self._sizes, self._waits
        if len(sizes) == len(waits) == self._draws_per_step == 1:
            num_samples, wait_s = sizes[0], waits[0]
            self._sizes, self._waits = [], []
        else:
            num_samples, wait_s = self._take_batches()
        index, epoch = self.index, self._epoch
        self.index = index + 1
        self._epoch = False
        self._ended(index, now, wait_s, -1 if num_samples is None else num_samples, epoch, live)

    def _take_batches(self):
        """Samples (None unknown) and loader wait of the step that ends now."""
        drawn, per_step = len(self._sizes), self._draws_per_step or len(self._sizes)
        if drawn > per_step + (_MAX_AHEAD if self._loaders else 0):
            # Far more than the cycle has: an evaluation on the same data came in between. The last ones are the step's.
            # Where there is no loader, calls are counted, and none is made ahead.
            del self._sizes[: drawn - per_step], self._waits[: drawn - per_step]
        wait_s = sum(self._waits)
        self._waits = []
        # Batches drawn ahead wait for the step that uses them.
        used, self._sizes = self._sizes[:per_step], self._sizes[per_step:]
        return (sum(used) if used and None not in used else None), wait_s

    def _begin_marked(self, now):
        """Steps are marked from now on: what the loaders drew so far belongs to the first."""
        self._marked = True
        self._cycle = cycles.Cycle([], -1, 1, set())
        self._anchor = -1
        self._loaders = _Every(self._tokens)
        begin = self._times[0] - self._waits[0] if self._times else now
        self._catch_up()
        self._fixed("marked by the program", begin, set(), 0)

    # Names for objects

    def _number(self, kind, thing, with_grad):
        entry = self._numbers.get((kind, id(thing), with_grad))
        if entry is not None and entry[0]() is thing:
            return entry[1]
        return self._meet(kind, thing, with_grad)

    def _meet(self, kind, thing, with_grad):
        """A number for a thing not seen before; it takes over the number of one of its class that has died."""
        number = None
        for (other_kind, _, other_grad), (reference, other) in self._things():
            same = (other_kind, other_grad, self._classes[other]) == (kind, with_grad, type(thing))
            if same and reference() is None:
                number = other
                break
        if number is None:
            number = self._new(kind, type(thing).__name__, with_grad)
            self._classes[number] = type(thing)
        self._numbers[(kind, id(thing), with_grad)] = weakref.ref(thing), number
        return number

    def _things(self):
        return [(key, value) for key, value in self._numbers.items() if isinstance(value, tuple)]

    def _new(self, kind, name, with_grad=False):
        self._tokens.append(cycles.Token(kind, name, with_grad))
        return len(self._tokens) - 1


class _Every:
    """All loaders' numbers: where steps are marked by hand every draw counts."""

    def __init__(self, tokens):
        self._tokens = tokens

    def __contains__(self, number):
        return self._tokens[number].kind == cycles.DRAW

    def __bool__(self):
        return any(token.kind == cycles.DRAW for token in self._tokens)
