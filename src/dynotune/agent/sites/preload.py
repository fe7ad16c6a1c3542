"""Apply `host.malloc`: a library that was preloaded when the process started."""

from __future__ import annotations

import os

from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.annotations import Answer, Planned


class PreloadSite(Site):
    """Read back which of the libraries is mapped into the process."""

    def read_one(self, setting: Planned) -> Answer:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            mapped = {os.path.basename(line.split()[-1]) for line in maps if "/" in line}
        found = "system"
        for name, libraries in setting["site"]["libraries"].items():
            if any(
                file.startswith(library.split(".so")[0] + ".so") for library in libraries for file in mapped
            ):
                found = name
        return answer(setting, found, "libraries mapped into the process", found == setting["value"])
