"""Diagnose the steps of a running program from inside, by an agent that comes late and leaves again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from dynotune.diagnose import Joining, LiveDiagnosis, conclude
from dynotune.running import injected, joined_program, process_files, target_facts
from dynotune.running.joined_program import JoinedProgram
from dynotune.running.process_files import PROC
from dynotune.running.shared_folder import SharedFolder, shared_folder
from dynotune.running.targets import Target
from dynotune.schema import redaction
from dynotune.schema.comparison import ArmName, Pair, Voided
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec

LIMIT_S = 150.0
"""Seconds that the agent stays at most."""
SHARE_S = 60.0
"""Seconds that the measurements take at most; nobody wants an agent in his job for longer."""


def diagnosis_of_joined(
    target: Target, facts: Facts, running: Callable[[str], None], *, delays: bool
) -> Diagnosis:
    """Load the agent, time a plain window, record some steps, and conclude from them as after a start.

    Args:
        delays: also delay parts of the steps, to see which ones a step waits for.

    Raises DynotuneError: the agent cannot be loaded, the program makes no steps, or it ended meanwhile.
    """
    first = target.ranks[0].process
    place = injected.place_of(first)
    if isinstance(place, Unknown):
        raise CannotRunHere(f"The agent cannot be loaded into process {first.pid}: {place.reason}.")
    with shared_folder(first) as shared:
        return _diagnosis_in(shared, target, facts, running, delays=delays)


def _diagnosis_in(
    shared: SharedFolder, target: Target, facts: Facts, running: Callable[[str], None], *, delays: bool
) -> Diagnosis:
    first = target.ranks[0].process
    joined, folders = list[JoinedProgram](), list[Path]()

    def join(folder: Path) -> JoinedProgram:
        folders.append(folder)
        joined.append(JoinedProgram(target, folder, shared, running))
        return joined[0]

    environment = first.environment
    run = RunSpec(
        command=list(target.command),
        cwd=Path(process_files.link(PROC / str(first.pid) / "cwd") or "/"),
        env={} if isinstance(environment, Unknown) else target_facts.own_variables(environment),
        base=shared.base,
    )
    joined_program.clear(shared)
    try:
        with LiveDiagnosis(
            run, _Quiet(running), limit_s=LIMIT_S, share_s=SHARE_S, joined=Joining(join, facts)
        ) as live:
            observation, _ = live.observe(delays=delays)
            live.end()
    finally:
        for program in joined:
            program.close()
        for folder in folders:
            joined_program.remove(folder)
        joined_program.clear(shared)
    notes = [
        f"The program replaced {name} meanwhile, so dynotune's wrapper of it stays, and does nothing."
        for name in joined[0].stay
    ]
    observation = msgspec.structs.replace(
        observation, command=redaction.words(target.command), notes=[*observation.notes, *notes]
    )
    return conclude(observation)


class _Quiet:
    """A watcher that passes on what is in progress, and nothing else."""

    def __init__(self, running: Callable[[str], None]) -> None:
        self._running = running

    def begun(self, folder: Path) -> None: ...

    def running(self, what: str, *, left_s: float | None = None) -> None:
        self._running(what)

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def running_arm(
        self, arm: ArmName, *, pair: int, max_pairs: int, so_far: str = "", left_s: float | None = None
    ) -> None: ...

    def finished(self, pair: Pair, **of: object) -> None: ...

    def voided(self, voided: Voided) -> None: ...
