"""Count, from stack samples of the thread running the steps, how often each source line was on the stack."""

from collections import Counter
from itertools import pairwise
from typing import Any

from dynotune.schema.observation import StackLine

MOST = 60


def stack_lines(moments: dict[str, Any]) -> list[StackLine]:
    """Return the source lines that were on the stack, those with most samples first; the innermost frames included.

    Args:
        moments: stack samples as the agent writes them, see `agent.facts.lines.Moments`.

    Raises KeyError, IndexError, TypeError, ValueError: the samples have another form than the agent's.
    """
    frames, texts = moments["frames"], moments["texts"]
    stacks = [tuple(map(int, stack)) for stack in moments["stacks"]]
    num_seen = Counter(int(stack) for stack, _ in moments["seen"])
    num, called = Counter[int](), Counter[tuple[int, int]]()
    for at, seen in num_seen.items():
        stack = stacks[at]
        num.update(dict.fromkeys(stack, seen))
        called.update(dict.fromkeys(pairwise(stack), seen))
    most_called: dict[int, int] = {}
    for (frame, callee), _ in reversed(called.most_common()):
        most_called[frame] = callee
    return [
        StackLine(
            function=str(frames[frame]),
            text=str(texts[frame]),
            callee=str(frames[most_called[frame]]) if frame in most_called else "",
            num=seen,
        )
        for frame, seen in num.most_common(MOST)
    ]
