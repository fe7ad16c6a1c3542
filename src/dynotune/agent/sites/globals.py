"""Apply settings with one value for the whole process: an attribute of a Python module, or a setter and its
getter."""

from __future__ import annotations

from ..core.covers import covers
from .site import NotSwitched, Site, answer, resolve, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

# The newer attribute for each backend names number formats; the older call names precisions.
_FORMAT_TO_PRECISION = {"ieee": "highest", "none": "highest", "tf32": "high", "bf16": "medium"}
# The older call also sets these attributes, and its own value alone could not restore them.
_SET_BESIDE = ("torch.backends.cuda.matmul.fp32_precision", "torch.backends.mkldnn.matmul.fp32_precision")


class GlobalSite(Site):
    """Set values for the whole process. At the start, set a value again when the program has changed it."""

    is_switched = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._own: list[Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self._changes: dict[str, list[str]] = {}
        self._refused: dict[str, str] = {}

    def cannot(self) -> str:
        """At the start, torch may refuse one setting and take the others, so the read-back tells which."""
        return "" if self.at_start else self._why_not(False)

    def has_already(self) -> bool:
        return all(self._value(setting) == setting["value"] for setting in self.planned)

    def on(self) -> None:
        if not self.at_start:
            values = [self._value(setting) for setting in self.planned]
            self._own = values if self._own is None else self._own
            pairs = zip(self.planned, values)
            self._undo = [_undo(self.torch, setting["site"], value) for setting, value in pairs]
        for setting in self.planned:
            try:
                write(self.torch, setting["site"], setting["value"])
            except Exception as error:
                self._refused[setting["knob"]] = "torch refuses %s: %s" % (setting["knob"], error)
            if self.at_start and setting["site"].get("set") == "torch.set_num_interop_threads":
                self._make_final(setting)

    def off(self) -> None:
        changed = ""
        for setting, undo, own in zip(self.planned, self._undo, self._own or ()):
            value = self._value(setting)
            if value == setting["value"]:
                undo()
            elif value != own:
                changed = _changed(setting, value)
        if changed:
            raise NotSwitched(changed)

    def check(self, is_on: bool) -> None:
        if reason := self._why_not(is_on):
            raise NotSwitched(reason)

    def _why_not(self, is_on: bool) -> str:
        """Return why a value is not as expected: the setting's value if it is on, else the program's own."""
        for index, setting in enumerate(self.planned):
            try:
                value = self._value(setting)
            except NotSwitched as error:
                return str(error)
            if is_on and setting["knob"] in self._refused:
                return self._refused[setting["knob"]]
            own = value if self._own is None else self._own[index]
            if value != (setting["value"] if is_on else own):
                return _changed(setting, value)
        return ""

    def _value(self, setting: Planned) -> Any:
        """Return the present value. Raises NotSwitched: it cannot be read.

        Within a run, the value is read by the getter alone, because a value of torch's newer attribute could
        not be restored.
        """
        try:
            return present_value(self.torch, setting["site"], self.at_start)
        except Exception as error:
            raise NotSwitched("%s cannot be read: %s" % (setting["knob"], error)) from error

    def hold(self) -> None:
        for setting in self.planned:
            knob = setting["knob"]
            if not setting.get("keep", True) or knob in self._refused or self.torch is None:
                continue
            found = self._value(setting)
            if found == setting["value"]:
                continue
            try:
                write(self.torch, setting["site"], setting["value"])
            except Exception as error:
                self._refused[knob] = "the program changed it, and it cannot be put back: %s" % error
                continue
            self._changes.setdefault(knob, []).append(text(found))
            self.program.event({"event": "setting_put_back", "knob": knob, "found": text(found)})

    def read_one(self, setting: Planned) -> Answer:
        if self.torch is None:
            return answer(setting, None, "none", False, "the program did not import torch")
        knob, witness = setting["knob"], witness_of(setting["site"])
        try:
            found = self._value(setting)
        except NotSwitched as error:
            detail = self._refused.get(knob) or str(error)
            return answer(setting, None, witness, False if knob in self._refused else None, detail)
        detail = self._refused.get(knob, "")
        if knob in self._changes:
            detail = "the program set it to %s; it was put back" % ", ".join(self._changes[knob])
        elif found != setting["value"] and not detail:
            detail = "the program set it after the window had begun"
        return answer(setting, found, witness, found == setting["value"], detail)

    def _make_final(self, setting: Planned) -> None:
        """Set the value once, and make the program's own call do nothing, since torch raises at a second
        call."""
        if not setting.get("keep", True) or setting["knob"] in self._refused:
            return

        @covers(self.torch, "set_num_interop_threads")
        def set_num_interop_threads(*args: Any, **kwargs: Any) -> None:
            asked = args[0] if args else kwargs.get("num")
            self._changes.setdefault(setting["knob"], []).append(text(asked))


def present_value(torch: Any, site: dict[str, Any], with_newer: bool) -> Any:
    """Read the setting's present value.

    `with_newer`: whether to read torch's newer attribute where the getter raises, which happens once the
    program has used that attribute. Raises AttributeError: this version of torch does not have the setting.
    """
    if site["type"] == "attr":
        return resolve(torch, site["path"])
    try:
        return resolve(torch, site["get"])()
    except RuntimeError:
        if not with_newer or site["get"] != "torch.get_float32_matmul_precision":
            raise
        found = torch.backends.cuda.matmul.fp32_precision
        return _FORMAT_TO_PRECISION.get(found, found)


def witness_of(site: dict[str, Any]) -> str:
    """Return what `present_value` looks at, as the program would write it."""
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


def _undo(torch: Any, site: dict[str, Any], value: Any) -> Callable[[], None]:
    """Restore `value`, and the attributes that the setter of `value` also sets."""
    setter = site.get("set")
    if setter == "torch.use_deterministic_algorithms":
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return lambda: torch.use_deterministic_algorithms(value, warn_only=warn_only)
    beside = []
    if setter == "torch.set_float32_matmul_precision":
        for path in _SET_BESIDE:
            try:
                beside.append(({"type": "attr", "path": path}, resolve(torch, path)))
            except AttributeError:
                continue  # torch before 2.9

    def undo() -> None:
        write(torch, site, value)
        for other, found in beside:
            write(torch, other, found)

    return undo


def _changed(setting: Planned, found: Any) -> str:
    return "the program sets %s itself while it runs, to %s" % (setting["knob"], text(found))
