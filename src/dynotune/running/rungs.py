"""Climb from what is seen outside of a running program to what it measures of itself, and say how far it
went."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dynotune.running import injected, kineto_door, stacks
from dynotune.running.joined_steps import diagnosis_of_joined
from dynotune.running.recorded_steps import diagnosis_of_recording
from dynotune.running.targets import Target
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.errors import CannotRunHere, DynotuneError
from dynotune.schema.facts import NOT_ASKED, Facts, Unknown
from dynotune.schema.running import Stacks

JOINED, RECORDED = 2, 3


class Inside(msgspec.Struct, frozen=True):
    """What the program measured of itself.

    Args:
        recorded: the diagnosis; Unknown, with the reason, if there is none.
        rung: `JOINED` if the agent was in the program, `RECORDED` if torch's own profiler recorded it.
        not_joined: why the agent was not in it, if it was to be.
    """

    recorded: Diagnosis | Unknown = NOT_ASKED
    rung: int = 0
    not_joined: str = ""


def seen_inside(target: Target, facts: Facts, running: Callable[[str], None], *, delays: bool) -> Inside:
    """Have the program measure itself: by the agent where it can be loaded, else by torch's own profiler.

    Raises CannotRunHere: the program was not prepared for either, or torch's profiler gave no trace.
    """
    reason = unfit(target)
    door = kineto_door.door_of(target.ranks[0].process, facts)
    if not reason:
        try:
            return Inside(diagnosis_of_joined(target, facts, running, delays=delays), JOINED)
        except DynotuneError as error:
            reason = error.message
            if delays or isinstance(door, Unknown):
                return Inside(Unknown(reason), not_joined=reason)
    elif delays or isinstance(door, Unknown):
        raise _refusal(target, reason, door if isinstance(door, Unknown) else None)
    return Inside(diagnosis_of_recording(target, facts, running), RECORDED, reason)


def _refusal(target: Target, reason: str, door: Unknown | None) -> CannotRunHere:
    pid = target.ranks[0].process.pid
    if door is None:
        return CannotRunHere(
            f"Steps of process {pid} cannot be delayed: {reason}.", hint="Leave --delays out."
        )
    return CannotRunHere(
        f"Process {pid} cannot record: {door.reason}. The agent cannot be loaded, either: {reason}.",
        hint="Leave --record out.",
    )


def unfit(target: Target) -> str:
    """Return why the agent cannot be loaded into the program, as far as its files tell; "" if nothing is."""
    reasons = (injected.unfit(rank.process) for rank in target.ranks)
    return next(filter(None, reasons), "")


def described(target: Target, found: Stacks | Unknown, inside: Inside, facts: Facts) -> tuple[int, str, str]:
    """Return the rung that was reached, a line on it, and a line on what the next one needs."""
    if inside.rung == JOINED:
        reached = (
            "Rung 2: the agent was loaded into the program, timed and recorded some of its steps, and left."
        )
        return JOINED, reached, "To test settings, start the command with dynotune: dynotune tune -- COMMAND"
    if inside.rung == RECORDED:
        reached = (
            "Rung 3: the program was observed from outside, and torch's profiler recorded some of its steps."
        )
        following = (
            "To test delays and settings, start the command with dynotune: dynotune diagnose -- COMMAND"
        )
        why = f"Rung 2, the agent in the program, is not available: {_sentence(inside.not_joined)} "
        return RECORDED, reached, why + following
    outside = "Rung 0: the program was observed from outside, without its stacks."
    if not isinstance(found, Unknown):
        outside = (
            "Rung 1: the program was observed from outside, with its Python stacks, and was not stopped."
        )
        return 1, outside, _next(target, inside, facts)
    missing = f"Rung 1, the lines that run, is not available: {stacks.missing_right() or found.reason}."
    return 0, outside, f"{missing} {_next(target, inside, facts)}"


def _next(target: Target, inside: Inside, facts: Facts) -> str:
    """Say what the rungs above stacks need, or how to ask for them."""
    pid = target.ranks[0].process.pid
    if inside.not_joined:
        return f"Rung 2, the agent in the program, is not available: {_sentence(inside.not_joined)}"
    ask = f"dynotune diagnose --pid {pid} --record"
    reason = unfit(target)
    if not reason:
        return f"Rung 2, steps timed and recorded by an agent that leaves again, needs your consent: {ask}"
    door = kineto_door.door_of(target.ranks[0].process, facts)
    if isinstance(door, Unknown):
        return (
            f"Rung 2, the agent in the program, is not available: {_sentence(reason)} "
            f"Rung 3, a recording of some steps, is not available: {door.reason}."
        )
    return f"Rung 3, a recording of some steps, needs your consent: {ask}"


def _sentence(reason: str) -> str:
    return reason if reason.endswith(".") else f"{reason}."
