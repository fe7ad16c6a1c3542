"""Apply `alloc.*`: each setting is a key in the environment variable of torch's allocator."""

from __future__ import annotations

from .kept_variables import kept_variables
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.annotations import Answer, Planned
    from ..core.program import Program


class AllocatorSite(Site):
    """Keep the allocator's environment variable, which has two names, and read back the settings in force."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        site = planned[0]["site"]
        self._variables = {site["variable"]: site["conf"], site["other"]: None}

    def before_torch(self) -> None:
        kept_variables.add(self._variables)

    def is_kept(self, name: str) -> bool:
        return name in self._variables

    def read_one(self, setting: Planned) -> Answer:
        conf, witness = self._settings_in_force()
        if conf is None:
            return answer(setting, None, "none", None, witness)
        key, asked = setting["site"]["key"], setting["site"]["text"]
        found = conf.get(key)
        detail = "" if found == asked else "the allocator works with " + str(conf)
        return answer(setting, "not set" if found is None else found, witness, found == asked, detail)

    def _settings_in_force(self) -> tuple[dict[str, str] | None, str]:
        """Return the allocator's settings (key to text) and their source, or None and a reason."""
        torch = self.torch
        if torch is None:
            return None, "torch was not imported"
        read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
        if read is not None:
            return split_conf(read()), "torch's allocator settings"
        # Older versions report settings only in the snapshot, which needs a live CUDA context.
        if torch.cuda.is_initialized():
            settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
            conf = settings.get("PYTORCH_ALLOC_CONF") or settings.get("PYTORCH_CUDA_ALLOC_CONF")
            if conf is not None:
                return split_conf(conf), "the allocator settings in torch's memory snapshot"
        return None, "this version of torch does not show its allocator's settings"


def split_conf(conf: str) -> dict[str, str]:
    """Split `a:1,b:[2,3]` into a dict of key to text; the allocator ignores spaces."""
    items: list[str] = []
    depth, item = 0, ""
    for char in "".join(conf.split()):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += char
    return dict(entry.split(":", 1) for entry in [*items, item] if ":" in entry)
