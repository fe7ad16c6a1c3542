"""Find work that only some steps do and that makes them longer, from stack samples of the thread running the
steps."""

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Sequence

from dynotune.schema.events import Moments
from dynotune.schema.timing import PeriodicKind, PeriodicWork

LONGER = 1.3
"""Factor over the median from which a step is long and may do extra work."""
EXCLUSIVE = 0.15
"""A frame belongs to long steps if it has less than this share of their samples per second in other steps."""
FEWEST = 4
"""Fewest samples of a frame: with four, one sample more or less changes the result by a quarter."""
LEAST_SHARE = 0.01
MOST = 5
DEEPEST = 64
"""Number of outermost frames of a stack that are compared; no program begins its work deeper."""

Stack = tuple[int, ...]

VALIDATION = r"(?<![a-z])(valid|validat\w*|val|eval|evaluat\w*|test)(?![a-z])(?!\.py)"
"""What names of functions that validate have in them."""
_KINDS: tuple[tuple[PeriodicKind, str], ...] = (
    ("checkpoint", r"/torch/serialization\.py\(|/safetensors/|save_checkpoint|save_pretrained|torch\.save\("),
    ("validation", VALIDATION),
    ("epoch", r"/torch/utils/data/"),
)


def periodic_work(
    moments: Moments, step_s: Sequence[float], first_step: int
) -> tuple[list[PeriodicWork], set[int]]:
    """Return the work that only long steps do, the longest work first, with the steps of the window that do
    the work.

    In each stack, the relevant frame is the outermost frame that is frequent in long steps and rare in
    others: the source line at which the program begins the extra work.

    Args:
        moments: stack samples of the thread that runs the steps.
        step_s: seconds of each step in the window; `first_step` is the number of the window's first step.

    Raises IndexError: the samples contradict each other.
    """
    usual_s = statistics.median(step_s)
    is_long = [took_s > LONGER * usual_s for took_s in step_s]
    num_long = sum(is_long)
    if not num_long or 2 * num_long > len(step_s):
        return [], set()
    stacks = [tuple(stack[:DEEPEST]) for stack in moments.stacks]
    seen = [(stacks[stack], step - first_step) for stack, step in moments.seen]
    seen = [(stack, step) for stack, step in seen if 0 <= step < len(step_s)]
    in_long, in_others = Counter[Stack](), Counter[Stack]()
    for stack, step in seen:
        counter = in_long if is_long[step] else in_others
        counter.update(stack[:depth] for depth in range(len(stack) + 1))
    long_s = sum(took_s for took_s, long in zip(step_s, is_long, strict=True) if long)
    others_s = sum(step_s) - long_s

    def exclusive(stack: Stack) -> bool:
        return in_others[stack] * long_s <= EXCLUSIVE * in_long[stack] * others_s

    # With hardly any sample in other steps, nothing can be attributed to long steps alone.
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


def seen_inside(moments: Moments, function: str) -> float | None:
    """Return the share of stack samples that contain a source line of a function; None without samples.

    Raises IndexError: as for `periodic_work`.
    """
    frames = moments.frames
    having = {
        number for number, stack in enumerate(moments.stacks) if any(frames[at] == function for at in stack)
    }
    seen = [stack in having for stack, _ in moments.seen]
    return sum(seen) / len(seen) if seen else None


def _row(
    begun: Stack, own: Sequence[Stack], steps: Sequence[int], moments: Moments, share: float
) -> PeriodicWork:
    frames, texts = moments.frames, moments.texts
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
