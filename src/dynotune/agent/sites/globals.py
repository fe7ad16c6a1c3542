"""Apply settings with one value for the whole process: an attribute of a Python module, or a setter and its getter."""

from __future__ import annotations

from ..core.covers import covers
from .site import Site, answer, resolve, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Answer, Event, Planned

# The newer attribute for each backend names number formats; the older call names precisions.
_FORMAT_TO_PRECISION = {"ieee": "highest", "none": "highest", "tf32": "high", "bf16": "medium"}


def read(torch: Any, site: dict[str, Any]) -> Any:
    """Read the setting's present value. Raises AttributeError: this version of torch does not have the setting."""
    if site["type"] == "attr":
        return resolve(torch, site["path"])
    try:
        return resolve(torch, site["get"])()
    except RuntimeError:
        # The old getter raises once the program has used the new attribute.
        if site["get"] != "torch.get_float32_matmul_precision":
            raise
        found = torch.backends.cuda.matmul.fp32_precision
        return _FORMAT_TO_PRECISION.get(found, found)


def witness_of(site: dict[str, Any]) -> str:
    """Return what `read` looks at, as the program would write it."""
    path: str = site["path"] if site["type"] == "attr" else site["get"] + "()"
    return path


def write(torch: Any, site: dict[str, Any], value: Any) -> None:
    """Set the value; pass on torch's exception if torch refuses the value."""
    if site["type"] == "call":
        resolve(torch, site["set"])(value)
        return
    parent, name = site["path"].rsplit(".", 1)
    parent = resolve(torch, parent)
    getattr(parent, name)  # do not create an attribute that this version lacks
    setattr(parent, name, value)


class GlobalSite(Site):
    """Set global values once after the import of torch, and set a value again when the program has changed it."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._changes: dict[str, list[str]] = {}
        self._refused: dict[str, str] = {}

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        for setting in self.planned:
            try:
                write(self.torch, setting["site"], setting["value"])
            except Exception as error:
                self._refused[setting["knob"]] = "torch refuses it: %s" % error
            if setting["site"].get("set") == "torch.set_num_interop_threads":
                self._make_final(setting)

    def hold(self) -> None:
        for setting in self.planned:
            knob = setting["knob"]
            if not setting.get("keep", True) or knob in self._refused or self.torch is None:
                continue
            found = read(self.torch, setting["site"])
            if found == setting["value"]:
                continue
            try:
                write(self.torch, setting["site"], setting["value"])
            except Exception as error:
                self._refused[knob] = "the program changed it, and it cannot be put back: %s" % error
                continue
            self._changes.setdefault(knob, []).append(text(found))
            self.event({"event": "setting_put_back", "knob": knob, "found": text(found)})

    def read(self, setting: Planned) -> Answer:
        if self.torch is None:
            return answer(setting, None, "none", False, "the program did not import torch")
        knob, witness = setting["knob"], witness_of(setting["site"])
        try:
            found = read(self.torch, setting["site"])
        except Exception as error:
            detail = self._refused.get(knob) or "it cannot be read: %s" % error
            return answer(setting, None, witness, False if knob in self._refused else None, detail)
        detail = self._refused.get(knob, "")
        if knob in self._changes:
            detail = "the program set it to %s; it was put back" % ", ".join(self._changes[knob])
        elif found != setting["value"] and not detail:
            detail = "the program set it after the window had begun"
        return answer(setting, found, witness, found == setting["value"], detail)

    def _make_final(self, setting: Planned) -> None:
        """Set the value once, and make the program's own call do nothing, since torch raises at a second call."""
        if not setting.get("keep", True) or setting["knob"] in self._refused:
            return

        @covers(self.torch, "set_num_interop_threads")
        def set_num_interop_threads(*args: Any, **kwargs: Any) -> None:
            asked = args[0] if args else kwargs.get("num")
            self._changes.setdefault(setting["knob"], []).append(text(asked))
