"""What only some steps do, and are longer for: from where the thread of the steps was seen in each of them."""

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dynotune.schema.observation import PeriodicKind, PeriodicWork

LONGER = 1.3
"""Over the median: a step that may have more to do."""
EXCLUSIVE = 0.15
"""Of how often it was seen in a second of long steps: what is seen less often in the others belongs to these."""
FEWEST = 4
"""Times that it was seen: one more or less is a quarter of it."""
LEAST_SHARE = 0.01
MOST = 5
DEEPEST = 64
"""Frames of a stack that are looked at, from outside: no program begins its work deeper."""

Stack = tuple[int, ...]

_KINDS: tuple[tuple[PeriodicKind, str], ...] = (
    ("checkpoint", r"/torch/serialization\.py\(|/safetensors/|save_checkpoint|save_pretrained|torch\.save\("),
    ("validation", r"(?<![a-z])(valid|validat\w*|val|eval|evaluat\w*|test)(?![a-z])(?!\.py)"),
    ("epoch", r"/torch/utils/data/"),
)


def periodic_work(
    moments: dict[str, Any], step_s: Sequence[float], first_step: int
) -> tuple[list[PeriodicWork], set[int]]:
    """Return the work that long steps alone do, the largest first, and the steps, within the window, that do it.

    Of each stack the outermost frame counts that is seen in long steps and hardly in others: the line at which the
    program begins that work.

    Args:
        moments: as the agent says them, see `agent.facts.lines.Moments`.
        step_s: of the steps within the window, the first of which has the number `first_step`.

    Raises KeyError, IndexError, TypeError, ValueError: the agent does not write them so.
    """
    usual_s = statistics.median(step_s)
    is_long = [took_s > LONGER * usual_s for took_s in step_s]
    num_long = sum(is_long)
    if not num_long or 2 * num_long > len(step_s):
        return [], set()
    stacks = [tuple(map(int, stack[:DEEPEST])) for stack in moments["stacks"]]
    seen = [(stacks[stack], step - first_step) for stack, step in moments["seen"]]
    seen = [(stack, step) for stack, step in seen if 0 <= step < len(step_s)]
    in_long, in_others = Counter[Stack](), Counter[Stack]()
    for stack, step in seen:
        counter = in_long if is_long[step] else in_others
        counter.update(stack[:depth] for depth in range(len(stack) + 1))
    long_s = sum(took_s for took_s, long in zip(step_s, is_long, strict=True) if long)
    others_s = sum(step_s) - long_s

    def exclusive(stack: Stack) -> bool:
        return in_others[stack] * long_s <= EXCLUSIVE * in_long[stack] * others_s

    # Nothing is known to be of long steps alone where the others were hardly seen at all.
    if exclusive(()):
        return [], set()
    found: dict[Stack, list[tuple[Stack, int]]] = {}
    for stack, step in seen:
        begun = next((stack[:depth] for depth in range(1, len(stack) + 1) if exclusive(stack[:depth])), None)
        if begun is not None:
            found.setdefault(begun, []).append((stack, step))
    rows, steps = [], set[int]()
    for begun, own in found.items():
        steps_of = sorted({step for _, step in own if is_long[step]})
        beyond = sum(step_s[step] - usual_s for step in steps_of) / sum(step_s)
        share = min(len(own) / len(seen), beyond)
        if len(own) >= FEWEST and share >= LEAST_SHARE:
            rows.append(_row(begun, [stack for stack, _ in own], steps_of, moments, share))
            steps |= set(steps_of)
    return sorted(rows, key=lambda row: -row.share)[:MOST], steps


def seen_inside(moments: dict[str, Any], function: str) -> float | None:
    """Return the part of the looks that had this line of a function on the stack; None if nobody looked.

    Raises KeyError, IndexError, TypeError: as `periodic_work`.
    """
    frames = moments["frames"]
    having = {number for number, stack in enumerate(moments["stacks"]) if any(frames[at] == function for at in stack)}
    seen = [stack in having for stack, _ in moments["seen"]]
    return sum(seen) / len(seen) if seen else None


def _row(
    begun: Stack, own: Sequence[Stack], steps: Sequence[int], moments: dict[str, Any], share: float
) -> PeriodicWork:
    frames, texts = moments["frames"], moments["texts"]
    apart = [later - earlier for earlier, later in itertools.pairwise(steps)]
    below = Counter(frame for stack in own for frame in set(stack[len(begun) :]))
    deep = max(own, key=lambda stack: sum(2 * below[frame] > len(own) for frame in stack[len(begun) :]))
    inner = next((frames[frame] for frame in reversed(deep[len(begun) :]) if 2 * below[frame] > len(own)), "")
    return PeriodicWork(
        kind=_kind([_words(begun[-1:] + stack[len(begun) :], frames, texts) for stack in own]),
        function=str(frames[begun[-1]]),
        text=str(texts[begun[-1]]),
        callee=str(inner),
        num_steps=len(steps),
        every=round(statistics.median(apart)) if apart else None,
        share=share,
    )


def _words(stack: Stack, frames: Sequence[str], texts: Sequence[str]) -> str:
    return "\n".join(word for frame in stack for word in (frames[frame], texts[frame]))


def _kind(words: Sequence[str]) -> PeriodicKind:
    said = ((kind, sum(re.search(pattern, each) is not None for each in words)) for kind, pattern in _KINDS)
    return next((kind for kind, num in said if 2 * num > len(words)), "other")
