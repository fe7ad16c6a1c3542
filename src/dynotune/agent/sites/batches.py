"""Apply `loader.batches=by-length`: group sequences from the program's sampler into batches of similar
length.

A forked process reads the lengths once and ends after a few seconds, so the program's random numbers and open
files do not change. A loader keeps its order if lengths are equal or unknown, or if the loader does not
shuffle.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from array import array
from itertools import count, islice

from ..core.covers import covers
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

_READING_S = 5.0
_NUM_BATCHES = 50
"""Number of batches that are sorted together: enough to find similar lengths, and few compared with an
epoch."""


class BatchesSite(Site):
    """Give another batch sampler to loaders that shuffle, including the loaders of Transformers' Trainer."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._num, self._refused = 0, ""

    def constructing(self) -> None:
        data, site = self.torch.utils.data, self
        original = data.DataLoader.__init__

        class ByLength(data.BatchSampler):  # type: ignore[misc, name-defined]
            lengths: Any = None
            dataset: Any = None  # of a loader that a framework creates again

            def __iter__(self) -> Iterator[list[int]]:
                if self.lengths is None and self.dataset is not None:
                    self.lengths = site._lengths(self.dataset)
                return sorted_batches(self, self.lengths) if self.lengths else super().__iter__()

            def __reduce__(self) -> Any:
                return data.BatchSampler, (self.sampler, self.batch_size, self.drop_last)

        @covers(data.DataLoader, "__init__")
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            plain: Any = getattr(loader, "batch_sampler", None)
            if type(plain) is not data.BatchSampler or isinstance(loader.dataset, data.IterableDataset):
                return
            if plain.batch_size < 2 or isinstance(plain.sampler, data.SequentialSampler):
                return
            batches = ByLength(plain.sampler, plain.batch_size, plain.drop_last)
            batches.dataset = loader.dataset
            loader.__dict__["batch_sampler"] = batches  # bypass DataLoader's refusal to change this attribute

    def _lengths(self, dataset: Any) -> array[int]:
        """Return the lengths of all samples; None if lengths cannot be read or do not help."""
        try:
            lengths = read_lengths(dataset)
            if len(set(lengths)) < 2:
                raise ValueError("all samples are equally long")
        except Exception as error:
            self._refused = str(error)
            return array("q")
        self._num += 1
        return lengths

    def read_one(self, setting: Planned) -> Answer:
        witness = "batch samplers of the loaders drawn from"
        if self._num:
            return answer(setting, self.value, witness, True, self._refused)
        nothing = "the program drew from no DataLoader that shuffles and makes batches of several samples"
        return answer(setting, None, witness, False, self._refused or nothing)


def sorted_batches(batches: Any, lengths: array[int]) -> Iterator[list[int]]:
    """Yield batches of indices, each of samples of similar length. Each index of the sampler is yielded once.
    If some are left at the sampler's end, they form a smaller last batch, whatever the samples' lengths."""
    size, indices = batches.batch_size, iter(batches.sampler)
    rest: list[int] = []
    for number in count():
        window = rest + list(islice(indices, size * _NUM_BATCHES))
        whole = len(window) // size * size
        found, rest = window[:whole], window[whole:]
        with contextlib.suppress(
            IndexError, TypeError
        ):  # later samples have no known length and keep their order
            found = sorted(found, key=lengths.__getitem__)
        cut = [found[at : at + size] for at in range(0, whole, size)]
        random.Random(number).shuffle(cut)
        yield from cut
        if len(window) < size * _NUM_BATCHES:
            break
    if rest and not batches.drop_last:
        yield rest


def read_lengths(dataset: Any) -> array[int]:
    """Read the lengths of all samples, one after another, in a separate process.

    Raises:
        ValueError: the lengths cannot be read, or not in time.
    """
    context = importlib.import_module("multiprocessing").get_context("fork")  # rarely needed
    receives, sends = context.Pipe(duplex=False)
    child = context.Process(target=_tell_lengths, args=(dataset, sends))
    child.start()
    sends.close()
    try:
        if not receives.poll(_READING_S):
            late = "reading the lengths of its %d samples takes longer than %g s" % (len(dataset), _READING_S)
            raise ValueError(late)
        found = receives.recv()
    except EOFError:
        raise ValueError("the process that read the lengths of its samples crashed") from None
    finally:
        child.kill()  # run no handler of the program in the forked process
        child.join()
    if isinstance(found, str):
        raise ValueError(found)
    return found  # type: ignore[no-any-return]


def _tell_lengths(dataset: Any, sends: Any) -> None:
    try:
        sends.send(array("q", (_length(dataset[index]) for index in range(len(dataset)))))
    except Exception as error:
        sends.send(str(error))


def _length(sample: Any) -> int:
    if hasattr(sample, "keys"):
        sample = sample["input_ids"]
    elif isinstance(sample, (tuple, list)) and sample and hasattr(sample[0], "__len__"):
        sample = sample[0]
    if isinstance(sample, str) or len(getattr(sample, "shape", (0,))) != 1:
        raise TypeError("its samples are no sequences, nor hold input_ids")
    return len(sample)
