"""What every place where settings act has in common."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from ..core.hooks import AfterImport, Event

    Planned = dict[str, Any]
    Answer = dict[str, Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]
    Around = tuple[AbstractContextManager[Any], Callable[[Any], Any]]


class Site:
    """Settings that act at one place. An entry may raise: `Settings` catches it, and leaves the site alone.

    Args:
        planned: the settings of this place, as in the plan: dicts of knob, value, site, keep.
        event: takes a dict; writes it into the record.
    """

    def __init__(self, planned: list[Planned], event: Event) -> None:
        self.planned = planned
        self.event = event
        self.failure = ""

    @property
    def wants_around(self) -> bool:
        """Whether calls of outermost modules must go through `inputs` and `around`."""
        return False

    def before_torch(self) -> None:
        """At interpreter start, before the program's first line."""

    def on_imports(self, hooks: AfterImport) -> None:
        """At interpreter start: what is to be done when libraries have been imported."""

    def after_torch(self, torch: Any) -> None:
        """`import torch` has just finished; nothing has used it yet."""

    def hold(self) -> None:
        """Put back what the program has changed."""

    def on_loader(self, loader: Any) -> None:
        """A DataLoader is about to be drawn from for the first time."""

    def on_root(self, module: Any) -> None:
        """An outermost module is about to run for the first time."""

    def root_ran(self, module: Any) -> None:
        """An outermost module has run for the first time."""

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """What the outermost module is to be called with."""
        return args, kwargs

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Around | None:
        """None, or `(context, finish)`: the call is made in `context`, its output goes through `finish`."""

    def readback(self) -> list[Answer]:
        """One dict a setting, with the fields of `schema.run.Readback`."""
        raise NotImplementedError


def text(value: object) -> str:
    """A value as the user wrote it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer(setting: Planned, found: object, witness: str, ok: bool | None, detail: str = "") -> Answer:
    """A read-back. `found` None: nothing could witness it, for the reason in `detail`."""
    return {
        "knob": setting["knob"],
        "asked": text(setting["value"]),
        "found": {"type": "unknown", "reason": detail or witness} if found is None else text(found),
        "witness": witness,
        "ok": ok,
        "detail": detail,
    }


def resolve(root: Any, path: str) -> Any:
    """The object that a dotted path names, `root` being what its first word stands for.

    Raises:
        AttributeError: this version has no such thing.
    """
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root
