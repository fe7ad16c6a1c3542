"""Count, from stack samples of the thread running the steps, how often each source line was on the stack."""

import itertools
from collections import Counter

from dynotune.schema.events import Moments
from dynotune.schema.host import StackLine

MOST = 60


def stack_lines(moments: Moments) -> list[StackLine]:
    """Return the source lines that were on the stack, those with most samples first; the innermost frames
    included.

    Args:
        moments: stack samples, as the agent wrote them.

    Raises IndexError: the samples name a stack or a frame that they do not have.
    """
    frames, texts, stacks = moments.frames, moments.texts, [tuple(stack) for stack in moments.stacks]
    num_seen = Counter(stack for stack, _ in moments.seen)
    num, called = Counter[int](), Counter[tuple[int, int]]()
    for at, seen in num_seen.items():
        stack = stacks[at]
        num.update(dict.fromkeys(stack, seen))
        called.update(dict.fromkeys(itertools.pairwise(stack), seen))
    most_called: dict[int, int] = {}
    for (frame, callee), _ in reversed(called.most_common()):
        most_called[frame] = callee
    return [
        StackLine(
            function=frames[frame],
            text=texts[frame],
            callee=frames[most_called[frame]] if frame in most_called else "",
            num=seen,
        )
        for frame, seen in num.most_common(MOST)
    ]
