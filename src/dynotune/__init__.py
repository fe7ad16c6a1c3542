"""dynotune: why a PyTorch command is slow, and which settings are proved to help.

For a user's program there are `step` and `one_step` here. The rest is the `dynotune` command; `dynotune.api`
has its subcommands as functions.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["__version__", "one_step", "step"]

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
