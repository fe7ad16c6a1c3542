"""Runs inside the user's process: applies settings, finds the step, times the window, writes the record.

Standard library only, and torch once the program has imported it; nothing of dynotune's other rooms. Loaded under the
name `_dynotune_agent` by `bootstrap/sitecustomize.py`, whatever the user's environment holds. A mistake in
here is written to the record and never reaches the program.
"""

from __future__ import annotations

__all__ = ["mark_step", "start"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attach import Agent

_agent: Agent | None = None


def start() -> None:
    """Begin, at the start of the interpreter. The run folder is named by DYNOTUNE_RUN."""
    global _agent
    from .attach import Agent

    _agent = Agent.from_environment()


def mark_step() -> None:
    """Mark the end of a step; `dynotune.step()` calls this."""
    if _agent is not None:
        _agent.mark_step()
