"""Look for settings of another arm that this process has of its own accord; nothing is set.

A comparison asks its first runs for them, so that it does not measure an arm against itself.
"""

from __future__ import annotations

from .loader import LoaderSite
from .registry import by_site
from .site import Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Planned
    from ..core.program import Program


class OtherArm:
    """Settings of another arm, looked for in this process.

    `planned`: dicts with the fields of `schema.task.PlannedSetting`.
    """

    def __init__(self, planned: list[Planned], program: Program) -> None:
        self._program = program
        self._groups = by_site(planned)
        # This site looks at loaders when they begin, so it must exist before; the other sites look at the
        # end.
        of_loaders = self._groups.pop(LoaderSite, [])
        self._loaders = LoaderSite(of_loaders, program, True) if of_loaders else None

    def on_loader(self, loader: Any) -> None:
        """Look at a DataLoader before its first batch is drawn."""
        if self._loaders is not None:
            self._loaders.on_loader(loader)

    def already(self) -> list[str]:
        """Return the knobs of the settings that the process has; settings of one site count together."""
        found = self._if_all(self._loaders)
        for kind, planned in self._groups.items():
            # Other kinds cannot tell, and some of them cover the program's objects when they are made.
            if kind is not None and kind.has_already is not Site.has_already:
                found += self._if_all(kind(planned, self._program, False))
        return found

    def _if_all(self, site: Site | None) -> list[str]:
        try:
            if site is not None and not (site.is_switched and site.cannot()) and site.has_already():
                return [setting["knob"] for setting in site.planned]
        except Exception as error:
            self._program.log("the other arm", error)
        return []
