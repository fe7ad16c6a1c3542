"""An arm that is switched on and off while the program runs: its settings, and what the program had in their place.

What can be switched so is one value for the whole process that torch reads at each operation, or is entered around each
call of an outermost module. What lasts beyond the switch is not offered to this;
`measure.live.screening` says what and why.
"""

from __future__ import annotations

from ..apply.globals import write
from ..apply.settings import Settings
from ..apply.site import resolve, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..apply.site import Answer, Args, Kwargs, Planned
    from ..core.hooks import Event, Log

    Call = Callable[..., Any]
    Around = Callable[[Call, Any, Args, Kwargs], Any]

# Where the older call sets these, too, and by its own value alone could not put them back as they were.
_SET_BESIDE = (
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.mkldnn.matmul.fp32_precision",
)


class NotSwitched(Exception):
    """An arm cannot be switched, or not any more; why, in words."""


class ArmToggle:
    """One arm. `is_on`: the program runs with its settings now.

    Args:
        planned: its settings, dicts with the fields of `schema.run.PlannedSetting`.
    """

    def __init__(self, planned: list[Planned], event: Event, log: Log) -> None:
        self._globals = [setting for setting in planned if setting["site"]["type"] in ("attr", "call")]
        called = [setting for setting in planned if setting not in self._globals]
        self._around = Settings(called, event, log) if called else None
        self._torch: Any = None
        self._before: list[Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self.is_on = False

    @property
    def wants_around(self) -> bool:
        """Whether calls of outermost modules must go through `around_root` while it is on."""
        return self._around is not None

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        if self._around is not None:
            self._around.after_torch(torch)

    def around_root(self, call: Call, module: Any, args: Args, kwargs: Kwargs) -> Any:
        if not self.is_on or self._around is None:
            return call(module, *args, **kwargs)
        return self._around.around_root(call, module, args, kwargs)

    def on(self) -> None:
        """Raises NotSwitched: it did not take, or the program changed what it had."""
        if self._before is None:
            self._before = self._read_all()
            if self._globals and self._around is None and self._before == self._values:
                raise NotSwitched("the program has it already")
        self.check()
        self._undo = [_undo(self._torch, setting["site"], self._read(setting)) for setting in self._globals]
        self.is_on = True
        for setting in self._globals:
            try:
                write(self._torch, setting["site"], setting["value"])
            except Exception as error:
                raise NotSwitched("torch refuses %s: %s" % (setting["knob"], error)) from error
        self.check()

    def off(self) -> None:
        """What the program had holds again; what it has changed meanwhile stays.

        Raises NotSwitched: it changed something, or what it had cannot be put back.
        """
        if not self.is_on:
            return
        self.is_on = False
        changed = ""
        for setting, undo in zip(self._globals, self._undo):
            found = self._read(setting)
            if found == setting["value"]:
                undo()
            elif found not in self._before_of(setting):
                changed = _changed(setting, found)
        if changed:
            raise NotSwitched(changed)
        self.check()

    def check(self) -> None:
        """Raises NotSwitched: something else holds than was set here, or than the program had before."""
        expected = self._values if self.is_on else self._before
        for setting, asked in zip(self._globals, expected or ()):
            found = self._read(setting)
            if found != asked:
                raise NotSwitched(_changed(setting, found))

    def check_around(self) -> None:
        """Raises NotSwitched: it was on for some calls, and did not act in them."""
        answers = self._around.readback() if self._around is not None else []
        for answer in answers:
            if not answer["ok"]:
                raise NotSwitched(_refused(answer))

    @property
    def _values(self) -> list[Any]:
        return [setting["value"] for setting in self._globals]

    def _before_of(self, setting: Planned) -> list[Any]:
        return [value for known, value in zip(self._globals, self._before or ()) if known is setting]

    def _read_all(self) -> list[Any]:
        return [self._read(setting) for setting in self._globals]

    def _read(self, setting: Planned) -> Any:
        """By the getter alone: where the program used torch's newer attribute, what it had could not be put back."""
        site = setting["site"]
        try:
            return resolve(self._torch, site["path"]) if site["type"] == "attr" else resolve(self._torch, site["get"])()
        except Exception as error:
            raise NotSwitched("%s cannot be read: %s" % (setting["knob"], error)) from error


def _undo(torch: Any, site: dict[str, Any], value: Any) -> Callable[[], None]:
    """Puts back `value`, which holds now, and what the setter sets beside it."""
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


def _refused(answer: Answer) -> str:
    found = answer["found"]
    reason = answer["detail"] or (found if isinstance(found, str) else found.get("reason", "")) or "no reason was given"
    return "%s did not act: %s" % (answer["knob"], reason)
