"""Name the switch of the library that runs the program's loop, if it has one for what a finding asks for."""

from collections.abc import Iterable

import msgspec

from dynotune import knobs
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema import data_file
from dynotune.schema.diagnosis import Finding
from dynotune.schema.knob import by_value
from dynotune.schema.observation import MadeTrainer
from dynotune.schema.setting import Setting


class TrainerSwitches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of trainers.toml, which explains the fields."""

    written: str
    loop: str
    modules: list[str]
    findings: dict[str, str] = {}
    knobs: dict[str, dict[str, str]] = {}


SWITCHES = data_file.table(__package__, "trainers.toml", dict[str, TrainerSwitches])


def with_switch(view: ObservationView, finding: Finding) -> Finding:
    """Return the finding; if a trainer of the program has a switch for it, with that switch in the remedy."""
    for trainer in or_else(lambda: view.process.trainers, []):
        switches = SWITCHES.get(trainer.name)
        argument = "" if switches is None else _argument(trainer, switches, finding)
        if switches is not None and argument:
            told = f"{switches.written}({argument})" + (f" at {trainer.place}" if trainer.place else "")
            if not finding.candidates and _is_inside(finding, switches.modules):
                remedy = f"The loop is that of {switches.loop}, not the program's: give it {told}."
            else:
                remedy = f"{finding.remedy} {switches.loop} has a switch for this: {told}.".strip()
            return msgspec.structs.replace(finding, remedy=remedy)
    return finding


def _argument(trainer: MadeTrainer, switches: TrainerSwitches, finding: Finding) -> str:
    of_settings = (_of_setting(trainer.name, switches, setting) for setting in finding.candidates)
    return next(filter(None, of_settings), "") or switches.findings.get(finding.id, "")


def _of_setting(name: str, switches: TrainerSwitches, setting: Setting) -> str:
    known = knobs.get(setting.knob).trainers.get(name)
    if known is None:
        return by_value(switches.knobs.get(setting.knob, {}), setting.value).format(value=setting.value)
    text = by_value(known.values, setting.value) if known.values else repr(setting.value)
    return f"{known.argument}={text}" if text else ""


def _is_inside(finding: Finding, modules: Iterable[str]) -> bool:
    """Tell whether the time of the finding is spent in functions of the library."""
    return any(f", in {module}" in line for line in finding.evidence for module in modules)
