"""Define what sites at the program's wrappers of its model have in common."""

from __future__ import annotations

from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.annotations import Answer, Planned
    from ..core.program import Program


class WrapperSite(Site):
    """Compare the requested arguments with those that were found at the program's wrappers of its model."""

    WITNESS, NONE = "", ""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._asked = {setting["site"]["argument"]: setting["value"] for setting in planned}
        self._found: dict[str, set[object]] = {}
        self._reason = ""

    def read_one(self, setting: Planned) -> Answer:
        found, asked = self._found.get(setting["site"]["argument"], set()), setting["value"]
        if not found:
            return answer(setting, None, self.WITNESS, False, self.NONE)
        other = next(iter(found - {asked}), asked)
        return answer(setting, other, self.WITNESS, other == asked, self._reason)
