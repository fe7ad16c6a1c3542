"""The texts of findings: a file beside each module of rules."""

import functools
from typing import Literal

import msgspec

from dynotune.schema.data_file import table
from dynotune.schema.delays import DelayedPart
from dynotune.schema.diagnosis import Kind
from dynotune.schema.knob import Scalar
from dynotune.schema.program_options import OptionMeaning

Umbrella = Literal["calls", "communication", "host", "loader", "some-steps"]
"""A kind of lost time that a finding may sum up without naming a cause."""
_RULES = "dynotune.doctor.rules"


class FindingTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a file beside a module of rules, by the finding's id; or the arguments of `rule`.

    Args:
        sees: what the rule looks at. costs: the cost of the finding. wrong_when: when the finding is wrong.
        example: lines of code, or a state of the machine, that the finding is about.
        candidates: settings as [knob, value], or a knob alone whose value the rule computes.
        umbrella: for a finding that only sums up lost time, the kinds of time that it sums up: the host's own
            work (`host`), operators or kernels that are called one by one (`calls`), the wait for the
            `loader`, `communication`, extra work of `some-steps`.
        explains: the kinds of time that the finding's cause takes, which stand for all findings that sum them
            up, and ids of more general findings.
        delayed: parts of a step whose delay tests the finding, if they are others than those of its family;
            empty if no delay can test it, as for cores that several threads want.
        whole_part: whether the finding claims all of its parts' time, so that a delay of the part tests the
            finding itself. A delay of a part does not test which cause takes some of its time.
        kind: what the finding affects.
        remedy, commands: what to do, unless that depends on what was found.
        needs_root: whether a command needs the rights of an administrator.
        sysctls: settings of the kernel, from which the commands that set them are made.
        own_option: names of a program's own option that does what the finding asks for, where no candidate's
            knob has some.
    """

    title: str = ""
    sees: str = ""
    costs: str = ""
    wrong_when: str = ""
    example: str = ""
    candidates: tuple[str | tuple[str, Scalar], ...] = ()
    explains: tuple[str, ...] = ()
    umbrella: tuple[Umbrella, ...] = ()
    delayed: tuple[DelayedPart, ...] | None = None
    whole_part: bool = False
    kind: Kind = "speed"
    remedy: str = ""
    commands: tuple[str, ...] = ()
    needs_root: bool = False
    sysctls: dict[str, str] = {}
    own_option: OptionMeaning | None = None


@functools.cache
def texts_beside(module: str) -> dict[str, FindingTexts]:
    """Return the texts beside a module of rules, by the finding's id; none for a module outside the folder.

    Args:
        module: the module's full name.
    """
    package, _, name = module.rpartition(".")
    return table(_RULES, f"{name}.toml", dict[str, FindingTexts]) if package == _RULES else {}
