"""Tell what the main thread did at each sample of its stack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from dynotune.launch.records import VALIDATION, Record
from dynotune.schema.account import Activity
from dynotune.schema.data_file import table
from dynotune.schema.errors import RecordError
from dynotune.schema.events import StacksSampled, StartSpan

VALIDATING = re.compile(VALIDATION)
_FUNCTION = re.compile(r"\): (.*)$")
_WAITS = re.compile(r"\.(item|tolist|cpu|numpy)\(\)|synchronize\(\)")
"""Source lines that wait for the device."""
_MODEL_WORK = ("backward", "optimizer")
_MOST_EVALUATING = 0.2


class _Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    activity: Activity
    pattern: str
    whole: bool = False
    leaf: bool = False
    within: Literal["", "compile"] = ""


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file stacks.toml, whose head explains the fields."""

    rule: list[_Rule]


_MAKES_DATA = _Rule(activity="data_set", pattern="", whole=True)


@dataclass(frozen=True, slots=True)
class Stack:
    """What a stack says.

    Args:
        activity: what the thread did; None if no frame of the stack tells.
        compiling: what the thread did if torch.compile was compiling.
        place: number of the frame that the activity is shown at: the program's innermost line, for a
            validation the function that validates.
        validates: whether a function on the stack has a validation's name.
    """

    activity: Activity | None
    compiling: Activity
    place: int | None
    validates: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample, which counts for the time from `begin_s` to `end_s` (CLOCK_MONOTONIC)."""

    begin_s: float
    end_s: float
    stack: int
    evaluates: bool


class Samples:
    """The samples of one process.

    Attributes:
        samples: in order of time, without gaps.
        frames, texts: by number of frame.
        stacks: by number of stack.
        numbers: frames of each stack.
        knows_evaluation: whether the model's mode tells validation from training.

    Raises RecordError: the samples name a stack or a frame that they do not have.
    """

    def __init__(self, record: Record) -> None:
        self.samples: list[Sample] = []
        self.frames: list[str] = []
        self.texts: list[str] = []
        self.numbers: list[list[int]] = []
        self._own: set[int] = set()
        self._makes_data: set[int] = set()
        self._has_device = any(span.phase == "cuda_start" for span in record.all(StartSpan))
        for event in record.all(StacksSampled):
            self._add(event)
        if any(not 0 <= at < len(self.frames) for stack in self.numbers for at in stack) or any(
            not 0 <= sample.stack < len(self.numbers) for sample in self.samples
        ):
            raise RecordError(f"{record.path} is damaged: a stack is not as dynotune's agent writes stacks.")
        self.stacks = [self._told(stack) for stack in self.numbers]
        self.knows_evaluation = self._knows_evaluation()

    def _add(self, event: StacksSampled) -> None:
        self.frames += event.frames
        self.texts += event.texts
        self.numbers += event.stacks
        self._own.update(event.own)
        self._makes_data.update(event.makes_data)
        last_s = self.samples[-1].end_s if self.samples else event.begin_s
        for end_s, stack, evaluates in event.seen:
            if end_s > last_s:
                self.samples.append(Sample(last_s, end_s, stack, bool(evaluates)))
                last_s = end_s

    def _told(self, stack: list[int]) -> Stack:
        activity: Activity | None = None
        compiling: Activity = "dynamo"
        own = next((at for at in reversed(stack) if at in self._own), None)
        own_place = len(stack) - 1 - stack[::-1].index(own) if own is not None else -1
        for place, at in enumerate(stack):
            told, compiles = self._of_frame(at)
            compiling = compiles or compiling
            if told is not None and not (told.leaf and place < own_place):
                activity = told.activity
                if told.whole:
                    break
        validating = next((at for at in stack if self._validates(at)), None)
        inner = own if own is not None else (stack[-1] if stack else None)
        if activity is None and own is not None:
            waits = self._has_device and own == stack[-1] and _WAITS.search(self.texts[own])
            activity = "device_wait" if waits else "own"
        return Stack(
            activity=activity,
            compiling=compiling,
            place=inner if validating is None else validating,
            validates=validating is not None,
        )

    def _of_frame(self, at: int) -> tuple[_Rule | None, Activity | None]:
        """Return the rule for a frame, and what the frame does while something is compiled."""
        return (_MAKES_DATA, None) if at in self._makes_data else _told_by(self.frames[at])

    def _validates(self, at: int) -> bool:
        if "/torch/" in self.frames[at] and at not in self._own:
            return False
        function = _FUNCTION.search(self.frames[at])
        return function is not None and VALIDATING.search(function[1]) is not None

    def _knows_evaluation(self) -> bool:
        """Tell whether the model's mode tells validation from training: some programs train in evaluation
        mode."""
        modes = [
            sample.evaluates for sample in self.samples if self.stacks[sample.stack].activity in _MODEL_WORK
        ]
        return sum(modes) <= _MOST_EVALUATING * len(modes)

    def name(self, at: int) -> tuple[str, str]:
        """Return the place of a frame and the text of its line."""
        return self.frames[at], self.texts[at]


@cache
def _rules() -> list[tuple[re.Pattern[str], _Rule]]:
    rules = table(__package__, "stacks.toml", _Rules)
    return [(re.compile(rule.pattern), rule) for rule in rules.rule]


@cache
def _told_by(frame: str) -> tuple[_Rule | None, Activity | None]:
    """Return the first rule for a frame, and what the frame does while something is compiled."""
    matching = [rule for pattern, rule in _rules() if pattern.search(frame)]
    told = next((rule for rule in matching if not rule.within), None)
    compiles = next((rule.activity for rule in matching if rule.within), None)
    return told, compiles


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of time with its sample, None outside samples. `number`: of the next sample to look at."""

    at_s: float
    until_s: float
    sample: Sample | None
    number: int


def pieces(samples: Sequence[Sample], begin_s: float, end_s: float, first: int = 0) -> Iterator[Piece]:
    """Cut the time from `begin_s` to `end_s` at the ends of samples.

    `first`: number of a sample at or before `begin_s`; `number` of the last piece of an earlier time.
    """
    at, at_s = first, begin_s
    while at_s < end_s:
        while at < len(samples) and samples[at].end_s <= at_s:
            at += 1
        sample = samples[at] if at < len(samples) else None
        if sample is None or sample.begin_s >= end_s:
            until_s, sample = end_s, None
        elif sample.begin_s > at_s:
            until_s, sample = sample.begin_s, None
        else:
            until_s = min(sample.end_s, end_s)
        yield Piece(at_s, until_s, sample, at)
        at_s = until_s
