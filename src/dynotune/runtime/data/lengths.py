"""Make batches of sequences that have similar lengths."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Sampler

from dynotune.runtime.errors import InputError, TooLargeError

__all__ = ["LengthBatchSampler"]

_BUCKET = math.log(1.1)
"""A bucket holds lengths within a tenth of each other; in it, order is random."""


class LengthBatchSampler(Sampler):  # type: ignore[misc]
    """Yields batches of indices of sequences with similar lengths; each sequence once per epoch, on one rank.

    For `DataLoader(dataset, batch_sampler=…)`. All ranks get equally many batches, of similar cost in each
    step: large batches are halved until the numbers match. If each holds one sequence, some are repeated, or
    left out with `drop_last`. A complete iteration begins the next epoch; `len()` is then that epoch's.

    Args:
        lengths: lengths of all sequences, in tokens.
        batch_size: largest number of sequences in a batch.
        max_tokens: most tokens in a batch: its size times its longest sequence, or their sum with `packed`.
        packed: make batches for `pack`, which mix sequences of all lengths.
        rank, num_ranks: this process's rank, and how many there are; by default those of `torch.distributed`.
        drop_last: with `batch_size` alone, leave out some sequences in each epoch instead of making a smaller
            batch.

    Raises:
        InputError: if there is no limit, a limit is below 1, a length is negative, or the rank does not
            exist.
        TooLargeError: if a sequence is longer than `max_tokens`.
    """

    def __init__(
        self, lengths: Sequence[int], *, batch_size: int | None = None, max_tokens: int | None = None,
        packed: bool = False, shuffle: bool = True, seed: int = 0, rank: int | None = None,
        num_ranks: int | None = None, drop_last: bool = False,
    ) -> None:  # fmt: skip
        limits = [limit for limit in (batch_size, max_tokens) if limit is not None]
        lengths = [int(length) for length in lengths]
        if not limits or min(limits) < 1 or min(lengths, default=0) < 0:
            raise InputError("batch_size or max_tokens must be given, 1 or more, and lengths be 0 or more.")
        over = [length for length in lengths if max_tokens is not None and length > max_tokens]
        if over:
            raise TooLargeError(
                f"{len(over)} sequences are longer than max_tokens={max_tokens}; the longest has "
                f"{max(over)}.",
                hint="Cut them, or leave them out.",
            )
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._num_ranks = num_ranks or (torch.distributed.get_world_size() if is_distributed else 1)
        self._rank = rank if rank is not None else torch.distributed.get_rank() if is_distributed else 0
        if not 0 <= self._rank < self._num_ranks:
            raise InputError(f"Rank {self._rank} is none of {self._num_ranks} ranks.")
        self.batch_size, self.drop_last, self.epoch = batch_size, drop_last, 0
        self._lengths, self._max_tokens, self._packed, self._shuffle = lengths, max_tokens, packed, shuffle
        self._seed = seed
        self._bucket = torch.tensor(
            [0 if packed else int(math.log(max(1, each)) / _BUCKET) for each in lengths]
        )
        self._begin, self._num_drawn = 0, 0
        self._planned: tuple[int, list[list[int]]] = -1, []

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and so the order, of the next iteration."""
        self._begin = self._begin if epoch == self.epoch else 0
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        begin, self._begin = self._begin, 0
        self._num_drawn = begin
        for batch in self._batches()[begin:]:
            self._num_drawn += 1
            yield batch
        self.epoch, self._num_drawn = self.epoch + 1, 0

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the state to save. `num_batches`: batches of this epoch used so far (workers draw ahead)."""
        done = self._num_drawn if num_batches is None else num_batches
        return {"epoch": self.epoch, "num_batches": done, "plan": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the next iteration from a saved state; InputError if the saved sampler drew other
        batches."""
        names = ("plan", "epoch", "num_batches")
        known: list[Any] = [state.get(name) for name in names] if isinstance(state, Mapping) else []
        if not known or not all(isinstance(value, int) and value >= 0 for value in known):
            raise InputError(
                "This is no state of a LengthBatchSampler.", hint="Give what state_dict() returned."
            )
        if known[0] != self._identity():
            raise InputError("The state is of a sampler with other lengths, limits, ranks or another seed.")
        self.epoch, self._begin = int(state["epoch"]), int(state["num_batches"])

    def _identity(self) -> int:
        plan = (self._lengths, self.batch_size, self._max_tokens, self._packed, self._shuffle, self._seed)
        return zlib.crc32(repr((plan, self._num_ranks, self.drop_last)).encode())

    def _batches(self) -> list[list[int]]:
        """Return this rank's batches of this epoch."""
        if self._planned[0] != self.epoch:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self.epoch) % 2**63)
            every = self._even(self._cut(self._order(generator)), generator)
            steps = torch.arange(len(every) // self._num_ranks)
            if self._shuffle:
                steps = torch.randperm(len(steps), generator=generator)
            self._planned = (
                self.epoch,
                [every[step * self._num_ranks + self._rank] for step in steps.tolist()],
            )
        return self._planned[1]

    def _order(self, generator: torch.Generator) -> list[int]:
        number = len(self._lengths)
        order = torch.randperm(number, generator=generator) if self._shuffle else torch.arange(number)
        if self.drop_last and self.batch_size:
            order = order[: number - number % (self.batch_size * self._num_ranks)]
        return order[torch.argsort(self._bucket[order], stable=True)].tolist()  # type: ignore[no-any-return]

    def _cut(self, order: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        most_tokens, longest, total = self._max_tokens or math.inf, 0, 0
        for index in order:
            length, size = self._lengths[index], len(batches[-1]) if batches else 0
            longest, total = max(longest, length), total + length
            num_tokens = total if self._packed else longest * (size + 1)
            if not batches or size == self.batch_size or num_tokens > most_tokens:
                batches.append([])
                longest = total = length
            batches[-1].append(index)
        return batches

    def _even(self, batches: list[list[int]], generator: torch.Generator) -> list[list[int]]:
        """Return the same number of batches for each rank."""
        while batches and (over := len(batches) % self._num_ranks):
            at = max(range(len(batches)), key=lambda each: len(batches[each]))
            if self.drop_last:
                del batches[int(torch.randint(len(batches), (1,), generator=generator))]
            elif len(largest := batches[at]) > 1:
                batches[at : at + 1] = largest[: len(largest) // 2], largest[len(largest) // 2 :]
            else:
                batches += batches[: self._num_ranks - over]
        return batches
