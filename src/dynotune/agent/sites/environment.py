"""Apply `env.NAME`: environment variables, with which the process was started."""

from __future__ import annotations

import os

from .kept_variables import kept_variables
from .site import Site, answer
from .variable_readback import c_getenv, seen_effect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.annotations import Answer, Planned
    from ..core.program import Program

_UNSET = "@unset"
# Placeholder for a secret, which the plan does not contain; the process was started with the secret itself.
_REDACTED = "@redacted"


class EnvironmentSite(Site):
    """Keep the variables against the program, and read them back by their effect where one is known."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__([_with_secret(setting) for setting in planned], program, at_start)
        self._names = {setting["site"]["name"] for setting in planned if setting.get("keep", True)}

    def before_torch(self) -> None:
        kept_variables.add(
            {
                setting["site"]["name"]: None if setting["value"] == _UNSET else str(setting["value"])
                for setting in self.planned
                if setting.get("keep", True) and setting["value"] != _REDACTED
            }
        )

    def is_kept(self, name: str) -> bool:
        return name in self._names

    def has_already(self) -> bool:
        """Tell whether the process began with these values, and has them still."""
        return all(
            _value_at_start(setting["site"]["name"]) == _asked(setting) == c_getenv(setting["site"]["name"])
            for setting in self.planned
        )

    def read_one(self, setting: Planned) -> Answer:
        name = setting["site"]["name"]
        found = c_getenv(name)
        asked = _asked(setting)
        effect = seen_effect(name, asked) if asked is not None and found == asked else None
        detail = kept_variables.program_wrote(name)
        if effect is not None:
            return answer(setting, effect[0], effect[1], effect[0] == asked, detail)
        witness = "the process's environment (getenv)"
        return answer(setting, _UNSET if found is None else found, witness, found == asked, detail)


def _asked(setting: Planned) -> str | None:
    return None if setting["value"] == _UNSET else str(setting["value"])


def _value_at_start(name: str) -> str | None:
    """Return the variable's value when the kernel started this program; None if it was not set."""
    with open("/proc/self/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key == os.fsencode(name):
                return os.fsdecode(value)
    return None


def _with_secret(setting: Planned) -> Planned:
    if setting["value"] != _REDACTED:
        return setting
    return {**setting, "value": os.environ.get(setting["site"]["name"], _REDACTED)}
