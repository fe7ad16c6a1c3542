"""What every place where settings act has in common."""

from __future__ import annotations

import inspect

from ..core.covers import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, TypeVar

    from ..core.hooks import AfterImport, Event

    Planned = dict[str, Any]
    Answer = dict[str, Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]
    Around = tuple[AbstractContextManager[Any], Callable[[Any], Any]]
    Rewritten = TypeVar("Rewritten")


class Site:
    """Settings that act at one place. An entry may raise: `Settings` catches it, and leaves the site alone.

    Args:
        planned: the settings of this place, as in the plan: dicts of knob, value, site, keep. Most places have one:
            `setting` is the first, `value` what it asks for.
    """

    def __init__(self, planned: list[Planned], event: Event) -> None:
        self.planned, self.event = planned, event
        self.setting, self.value = planned[0], planned[0]["value"]
        self.torch: Any = None
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
        self.torch = torch

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


def cover_constructor(
    kind: Any,
    rewrite: Callable[[inspect.BoundArguments], Rewritten],
    otherwise: Callable[[str], Rewritten],
    built: Callable[[Any, Rewritten], None],
) -> None:
    """Let `rewrite` change the arguments of each construction of a class; `built` gets the object and its answer.

    If nothing was changed, `otherwise` makes that answer from the error's text, which is "" if torch refuses the call.
    """
    original = kind.__init__
    signature = inspect.signature(original)

    @covers(kind, "__init__")
    def __init__(made: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(made, *args, **kwargs)
            found = rewrite(bound)
            args, kwargs = bound.args[1:], bound.kwargs
        except TypeError:
            found = otherwise("")  # its own error is the right one
        except Exception as error:
            found = otherwise("%s: %s" % (type(error).__name__, error))
        original(made, *args, **kwargs)
        built(made, found)


def call_inside(entered: list[Around], call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make a call in all these contexts, the last outermost; its output goes through what finishes each."""
    if not entered:
        return call(module, *args, **kwargs)
    context, finish = entered[-1]
    with context:
        output = call_inside(entered[:-1], call, module, args, kwargs)
    return finish(output)


def resolve(root: Any, path: str) -> Any:
    """The object that a dotted path names, `root` being what its first word stands for.

    Raises AttributeError: this version has no such thing.
    """
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root
