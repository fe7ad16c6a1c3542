"""Keep the agent in a program that runs, so that its steps can be watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from dynotune.launch import new_run_folder
from dynotune.running import injected, joined_program, rungs, targets
from dynotune.running.attachments import attached
from dynotune.running.joined_program import JoinedProgram
from dynotune.running.shared_folder import shared_folder
from dynotune.schema import document, redaction
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Plan


@contextlib.contextmanager
def watched_program(pid: int, running: Callable[[str], None]) -> Iterator[JoinedProgram]:
    """Join the program of a process until the block ends; the agent writes the end of each step, and no more.

    Raises:
        UsageError: the process is this dynotune.
        CannotRunHere: the process is gone, of another user, or no Python; another dynotune looks at it; or
            the agent cannot be loaded into it.
    """
    target = targets.find(pid)
    first = target.ranks[0].process
    reason = rungs.unfit(target)
    place = injected.place_of(first)
    if not reason and isinstance(place, Unknown):
        reason = place.reason
    if reason or isinstance(place, Unknown):
        raise CannotRunHere(
            f"The steps of process {first.pid} cannot be watched: {reason}.",
            hint=(
                "Watching steps needs the agent in the program (rung 2). Look from outside instead: "
                f"dynotune diagnose --pid {pid}"
            ),
        )
    with contextlib.ExitStack() as stack:
        for rank in target.ranks:
            if not isinstance(rank.process.environment, Unknown):
                redaction.learn(rank.process.environment, rank.process.arguments)
            stack.enter_context(attached(rank.process))
        shared = stack.enter_context(shared_folder(first))
        joined_program.clear(shared)
        folder = new_run_folder(shared.base)
        stack.callback(joined_program.clear, shared)
        stack.callback(joined_program.remove, folder)
        document.write(folder / "plan.json", Plan(watched=True), to_agent=True)
        joined = JoinedProgram(target, folder, shared, running, num_workers=0)
        stack.callback(joined.close)
        yield joined
