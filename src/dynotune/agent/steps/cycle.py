"""Find the step: the shortest cycle that a program's events repeat.

Events are draws of a batch, calls of an outermost module and steps of an optimizer. Each event has a token, a
small number that stands for the object and, for modules, for gradients on or off. These functions are pure
and know nothing of torch.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DRAW = "draw"
CALL = "call"
STEP = "step"
REPLAY = "replay"
TRAINING, INFERENCE = "training", "inference"

# Number of repetitions that a cycle needs before it is accepted.
_MIN_REPEATS = 3
# The same for draws alone: a thread may draw some batches before the first call.
_MIN_DRAWS = 16
# Required length of the tail if the cycle leaves out an event seen before: text encoder, 50 × denoiser,
# decoder is not a program that only calls a denoiser.
_MIN_TAIL = 256
# The same length if an optimizer exists that has not stepped: gradients may accumulate over very many
# batches.
_MIN_TAIL_WITHOUT_STEP = 4096
# In slow programs, this time replaces waiting for hundreds of events.
_PATIENCE_S = 20.0
_MIN_PATIENT_REPEATS = 10

Token = namedtuple("Token", ("kind", "name", "with_grad"), defaults=(False,))
"""The meaning of one number in the list of events."""


class Cycle:
    """A repeating sequence of tokens, rotated so that the sequence begins where the program began.

    The token `anchor` ends a step at every `per_step`-th occurrence.
    """

    def __init__(self, sequence: list[int], anchor: int, per_step: int, loaders: set[int]) -> None:
        self.sequence, self.anchor, self.per_step, self.loaders = sequence, anchor, per_step, loaders

    def ending_in_anchor(self) -> Cycle:
        """Return this cycle for a program that was joined in the middle of a step: it begins after its
        anchor."""
        at = len(self.sequence) - self.sequence[::-1].index(self.anchor)
        rotated = self.sequence[at:] + self.sequence[:at]
        return Cycle(rotated, self.anchor, self.per_step, self.loaders)

    def parts(self, tokens: list[Token]) -> list[dict[str, Any]]:
        """Return the events of the cycle in order, with the fields of `schema.cycle.CyclePart`; repeats are
        counted."""
        parts: list[dict[str, Any]] = []
        for number in self.sequence:
            kind, name = tokens[number].kind, tokens[number].name
            if parts and (parts[-1]["kind"], parts[-1]["name"]) == (kind, name):
                parts[-1]["num"] += 1
            else:
                parts.append({"kind": kind, "name": name, "num": 1})
        return parts


def find(
    events: list[int], times: list[float], tokens: list[Token], num_optimizers: int, phase: str | None = None
) -> Cycle | None:
    """Find the cycle that `events` repeat at their end, or None if no cycle is certain yet.

    Args:
        events: numbers of tokens in order of time. `times`: time of each event in seconds.
        num_optimizers: number of optimizers; a program with optimizers trains, and each should step in a
            cycle.
    """
    relevant, when = _relevant(events, times, tokens, phase)
    tail = _tail_period(relevant)
    if tail is None:
        return None
    period, length = tail
    sequence = relevant[-period:]
    if all(tokens[n].kind == DRAW for n in sequence) and (phase == INFERENCE or length < _MIN_DRAWS):
        return None  # draws without calls come from a program that is about to train, or that draws ahead
    if not _explains(relevant, when, tokens, sequence, length, num_optimizers):
        return None
    sequence = _rotate(sequence, relevant)
    anchor, per_step = _anchor(sequence, tokens)
    return Cycle(sequence, anchor, per_step, {n for n in sequence if tokens[n].kind == DRAW})


def _relevant(
    events: list[int], times: list[float], tokens: list[Token], phase: str | None
) -> tuple[list[int], list[float]]:
    """Return optimizer steps, calls with gradients and the draws before such calls; for inference, the other
    events.

    Events of an evaluation during training would otherwise become part of the cycle, or hide the cycle.
    """
    if phase != INFERENCE and not any(tokens[n].kind == STEP for n in set(events)):
        return ([], []) if phase == TRAINING else (events, times)
    votes: dict[int, int] = {}
    trains = drawing = False
    for number in reversed(events):
        token = tokens[number]
        if token.kind == DRAW:
            votes[number] = votes.get(number, 0) + (1 if trains else -1)
        elif drawing:  # the run of events after the preceding draws is over
            trains = False
        drawing = token.kind == DRAW
        trains = trains or token.kind == STEP or token.with_grad
    keep = {
        n
        for n in set(events)
        if tokens[n].kind in (STEP, REPLAY) or tokens[n].with_grad or votes.get(n, 0) > 0
    }
    if phase == INFERENCE:
        keep = {n for n in set(events) if n not in keep or tokens[n].kind == REPLAY}
    kept = [(n, t) for n, t in zip(events, times) if n in keep]
    return [n for n, _ in kept], [t for _, t in kept]


def _tail_period(events: list[int]) -> tuple[int, int] | None:
    """Return the shortest period that repeats at the list's end, and its repeats' length; None with too few
    repeats."""
    size = len(events)
    last = events[-1] if events else None
    for period in range(1, size // _MIN_REPEATS + 1):
        if events[size - 1 - period] != last:
            continue
        block = events[size - period :]
        if all(events[size - (k + 1) * period : size - k * period] == block for k in range(1, _MIN_REPEATS)):
            return period, _periodic_length(events, period)
    return None


def _periodic_length(events: list[int], period: int) -> int:
    start = len(events) - period
    while start > 0 and events[start - 1] == events[start - 1 + period]:
        start -= 1
    return len(events) - start


def _explains(
    events: list[int],
    times: list[float],
    tokens: list[Token],
    sequence: list[int],
    length: int,
    num_optimizers: int,
) -> bool:
    """Tell whether the cycle is acceptable although the cycle lacks an event that occurred before or is
    expected."""
    # An event that occurred before the first update and never again served to build the model.
    begin = next((position for position, n in enumerate(events) if tokens[n].kind == STEP), 0)
    missing = set(events[begin:]) - set(sequence)
    num_stepping = len({n for n in sequence if tokens[n].kind == STEP})
    if not missing and num_stepping >= num_optimizers:
        return True
    needed, patience_s = max([_MIN_TAIL] + [4 * _longest_gap(events, n) for n in missing]), _PATIENCE_S
    if num_optimizers and not any(tokens[n].kind in (STEP, REPLAY) for n in set(events)):
        needed, patience_s = _MIN_TAIL_WITHOUT_STEP, 3 * _PATIENCE_S
    if length >= needed:
        return True
    return times[-1] - times[-length] >= patience_s and length >= _MIN_PATIENT_REPEATS * len(sequence)


def _longest_gap(events: list[int], number: int) -> int:
    """Return the largest number of events between two occurrences of token `number`, or before its first
    occurrence."""
    longest, previous = 0, -1
    for position, event in enumerate(events):
        if event == number:
            longest = max(longest, position - previous)
            previous = position
    return longest


def _rotate(sequence: list[int], events: list[int]) -> list[int]:
    """Rotate the cycle to begin with the token that came first in the program."""
    first: dict[int, int] = {}
    for position, number in enumerate(events):
        first.setdefault(number, position)
    earliest = min(set(sequence), key=first.__getitem__)
    # If the token has several places, take the one after the longest gap, where a run of it begins.
    places = [i for i, n in enumerate(sequence) if n == earliest]
    size = len(sequence)
    start = max(places, key=lambda i: (i - max((p for p in places if p < i), default=places[-1] - size), -i))
    return sequence[start:] + sequence[:start]


def _anchor(sequence: list[int], tokens: list[Token]) -> tuple[int, int]:
    """Return the rarest token, which ends the step; of equally rare tokens an optimizer's, else the last
    token."""
    rank = {STEP: 2, CALL: 1, REPLAY: 1, DRAW: 0}
    counts = {n: sequence.count(n) for n in set(sequence)}
    rarest = min(counts.values())
    candidates = [n for n in counts if counts[n] == rarest]
    best = max(rank[tokens[n].kind] for n in candidates)
    ending = {n for n in candidates if rank[tokens[n].kind] == best}
    return next(n for n in reversed(sequence) if n in ending), rarest


class AllDraws:
    """The numbers of all loaders: if the program marks its steps, every draw of a batch counts."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._tokens[number].kind == DRAW

    def __len__(self) -> int:
        return sum(token.kind == DRAW for token in self._tokens)
