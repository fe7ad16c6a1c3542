"""Tell arms that are the same: before anything runs, or as soon as a first run shows what the program has."""

from dynotune.launch.process import variants
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.request import CompareRequest
from dynotune.schema.arm import arm as arm_of
from dynotune.schema.arm import arm_key
from dynotune.schema.comparison import ArmName
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import UNSET, Setting

_SAME = "so baseline and candidate are the same."


class EqualArms(Exception):
    """The answer of a comparison whose arms turned out to be the same; the message is the reason."""


def refuse_equal(run: RunSpec, candidate: list[Setting]) -> None:
    """Raise UsageError if both arms start the same command with the same settings.

    Raises UsageError also for what `variants.variant` refuses.
    """
    if _started(run, candidate) == _started(run, run.settings):
        raise UsageError(
            "Both arms are the same.",
            hint="For example: dynotune compare loader.num_workers=4 -- python train.py. "
            "Any environment variable is a knob too: env.NAME=value.",
        )


def _started(run: RunSpec, settings: list[Setting]) -> tuple[object, object]:
    """Return what an arm starts, and the settings that this does not show."""
    shown = ("arg.", "python")
    rest = arm_of(setting for setting in settings if not setting.knob.startswith(shown))
    return variants.variant(run.command, run.env, settings, run.cwd), rest


def missing(request: CompareRequest, arm: ArmName) -> list[Setting]:
    """Return the settings that the other arm has more than `arm`; none if `arm` has a knob that the other
    lacks."""
    own, other = request.arm(arm), request.arm("baseline" if arm == "candidate" else "candidate")
    if {setting.knob for setting in own} - {setting.knob for setting in other}:
        return []
    return [setting for setting in other if setting not in own]


def refuse_had(request: CompareRequest, arm: ArmName, outcome: Outcome) -> None:
    """Raise EqualArms if a first run of `arm` has all that the other arm would add, of its own accord."""
    settings = missing(request, arm)
    processes = [process for process in outcome.run.processes if process.num_steps]
    if not settings or not processes:
        return
    if all(setting.knob in process.already for setting in settings for process in processes):
        raise EqualArms(reason(settings))


def reason(settings: list[Setting]) -> str:
    """Say that the program has `settings` without being told, so that the arms are the same."""
    unset = [setting.knob.removeprefix("env.") for setting in settings if setting.value == UNSET]
    if len(unset) == len(settings):
        names = " and ".join(unset)
        are = "is" if len(unset) == 1 else "are"
        return f"{names} {are} not set, neither here nor by the program, {_SAME}"
    return f"The program has {arm_key(settings)} already, {_SAME}"
