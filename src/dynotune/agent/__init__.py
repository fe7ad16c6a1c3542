"""Run inside the user's process: apply settings, find the training step, time a window of steps, write the
record.

The agent uses the standard library only, torch after the program has imported it, and nothing of dynotune's
other rooms. `bootstrap/sitecustomize.py` loads the agent under the name `_dynotune_agent`, whatever the
user's environment contains. The agent writes its own errors to the record; no error of the agent reaches the
program.
"""

from __future__ import annotations

__all__ = ["frame_done", "mark_step", "start", "stay_while_held"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attach import Agent

_agent: Agent | None = None


def start() -> None:
    """Start the agent when the interpreter starts. DYNOTUNE_RUN names the run folder."""
    global _agent
    from .attach import Agent

    _agent = Agent.from_environment()


def stay_while_held(folder: str, lock: str, pid: int) -> None:
    """Work in a program that runs already, in a thread of its own, until nobody holds `lock` any more."""
    from .late_start import stay_while_held

    stay_while_held(folder, lock, pid)


def mark_step() -> None:
    """Mark the end of a step; `dynotune.step()` calls this."""
    if _agent is not None:
        _agent.mark_step()


def frame_done(stream: object, since_s: float) -> None:
    """Note that a frame's result is there; `dynotune.frame_done()` calls this."""
    if _agent is not None:
        _agent.frame_done(stream, since_s)
