"""Apply settings that the process was started with: variables, keys of the allocator, preloaded libraries."""

from __future__ import annotations

import os

from .kept_variables import kept_variables
from .site import Site, answer
from .variable_readback import c_getenv, seen_effect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.annotations import Answer, Event, Planned

_UNSET = "@unset"
# Placeholder for a secret, which the plan does not contain; the process was started with the secret itself.
_REDACTED = "@redacted"


class EnvironmentSite(Site):
    """Apply `env.NAME`."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__([_with_secret(setting) for setting in planned], event)
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

    def read(self, setting: Planned) -> Answer:
        name = setting["site"]["name"]
        found = c_getenv(name)
        asked = None if setting["value"] == _UNSET else str(setting["value"])
        effect = seen_effect(name, asked) if asked is not None and found == asked else None
        detail = kept_variables.program_wrote(name)
        if effect is not None:
            return answer(setting, effect[0], effect[1], effect[0] == asked, detail)
        witness = "the process's environment (getenv)"
        return answer(setting, _UNSET if found is None else found, witness, found == asked, detail)


def _with_secret(setting: Planned) -> Planned:
    if setting["value"] != _REDACTED:
        return setting
    return {**setting, "value": os.environ.get(setting["site"]["name"], _REDACTED)}


class AllocatorSite(EnvironmentSite):
    """Apply `alloc.*`: each setting is a key in the allocator's environment variable, which has two names."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        Site.__init__(self, planned, event)
        site = planned[0]["site"]
        self._variables = {site["variable"]: site["conf"], site["other"]: None}
        self._names = set(self._variables)

    def before_torch(self) -> None:
        kept_variables.add(self._variables)

    def read(self, setting: Planned) -> Answer:
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


class PreloadSite(Site):
    """Apply `host.malloc`."""

    def read(self, setting: Planned) -> Answer:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            mapped = {os.path.basename(line.split()[-1]) for line in maps if "/" in line}
        found = "system"
        for name, libraries in setting["site"]["libraries"].items():
            if any(file.startswith(library.split(".so")[0] + ".so") for library in libraries for file in mapped):
                found = name
        return answer(setting, found, "libraries mapped into the process", found == setting["value"])


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
