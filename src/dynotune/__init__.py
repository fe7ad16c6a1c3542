"""dynotune: why a PyTorch command is slow, and which settings are proved to help.

For a user's program there are `step`, `one_step` and `frame_done` here. The rest is the `dynotune` command;
`dynotune.api` has its subcommands as functions.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["__version__", "frame_done", "one_step", "step"]

__version__ = "0.2.0"


def step() -> None:
    """Mark the end of one step, where dynotune cannot find the step by itself.

    Does nothing unless the process runs under dynotune with `--step-function dynotune.step`.
    """
    agent = sys.modules.get("_dynotune_agent")
    if agent is not None:
        agent.mark_step()


@contextmanager
def one_step() -> Iterator[None]:
    """Mark the block as one step, as `step` does at its end. A block that raises is no step."""
    yield
    step()


def frame_done(stream: object, since_s: float) -> None:
    """Say that the result of one frame is there, in a program that serves streams.

    `dynotune plan` then knows each stream's rate and latency, also where frames of several streams share a
    batch. A call takes some 3 µs under `dynotune plan` or `diagnose`, and does nothing otherwise.

    Args:
        stream: the stream's number or name.
        since_s: when the frame was captured or received, in seconds of `time.perf_counter()`.
    """
    agent = sys.modules.get("_dynotune_agent")
    if agent is not None:
        agent.frame_done(stream, since_s)
