"""Define what all sites, the places where settings are applied, have in common."""

from __future__ import annotations

import inspect

from ..core.covers import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Args, Event, Kwargs, Planned, Surroundings, T
    from ..core.hooks import AfterImport


class Site:
    """Settings that are applied at one place. `Settings` catches exceptions of a site's methods and leaves the site.

    Args:
        planned: settings of this place from the plan, as dicts of knob, value, site and keep. Most places have just
            one: `setting` is the first, and `value` is its value.
    """

    wants_around = False
    """Whether calls of outermost modules must go through `inputs` and `around`."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        self.planned, self.event = planned, event
        self.setting, self.value = planned[0], planned[0]["value"]
        self.torch: Any = None
        self.failure = ""

    def before_torch(self) -> None:
        """Act at interpreter start, before the program's first line."""

    def on_imports(self, hooks: AfterImport) -> None:
        """Register at interpreter start actions for the time when libraries have been imported."""

    def after_torch(self, torch: Any) -> None:
        """Act when `import torch` has just finished and nothing has used torch yet."""
        self.torch = torch

    def hold(self) -> None:
        """Restore the settings' values where the program has changed them."""

    def on_loader(self, loader: Any) -> None:
        """Act before the first batch is drawn from a DataLoader."""

    def on_root(self, module: Any) -> None:
        """Act before the first call of an outermost module."""

    def root_ran(self, module: Any) -> None:
        """Act after the first call of an outermost module."""

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the inputs for the call of the outermost module."""
        return args, kwargs

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        """Return None or `(context, finish)`: call the module in `context`, and pass its output through `finish`."""

    def readback(self) -> list[Answer]:
        """Return one dict per setting, with the fields of `schema.run.Readback`."""
        return [self.read(setting) for setting in self.planned]

    def read(self, setting: Planned) -> Answer:
        raise NotImplementedError


def chosen(site: dict[str, Any], table: dict[str, type[T]]) -> type[T] | None:
    """Return the table's value for a setting's site: for the site's action, the class it constructs, or its type."""
    kind = site.get("type", "")
    words = site.get("targets", ()) if kind == "constructor" else (site.get("action", kind),)
    return next((table[word] for word in words if word in table), None)


def text(value: object) -> str:
    """Write a value as the user wrote it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer(setting: Planned, found: object, witness: str, ok: bool | None, detail: str = "") -> Answer:
    """Build a read-back. `found` is None if the value could not be observed, for the reason in `detail`."""
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
    rewrite: Callable[[inspect.BoundArguments], T],
    otherwise: Callable[[str], T],
    built: Callable[[Any, T], None],
) -> None:
    """Let `rewrite` change the arguments of a class's constructor; `built` gets the object and `rewrite`'s result.

    If no argument was changed, `otherwise` makes the result from the error's text ("" if torch refuses the call).
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
            found = otherwise("")  # torch's own error is the right one
        except Exception as error:
            found = otherwise("%s: %s" % (type(error).__name__, error))
        original(made, *args, **kwargs)
        built(made, found)


def call_inside(entered: list[Surroundings], call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make a call inside the given contexts, the last outermost; pass the output through each context's `finish`."""
    if not entered:
        return call(module, *args, **kwargs)
    context, finish = entered[-1]
    with context:
        output = call_inside(entered[:-1], call, module, args, kwargs)
    return finish(output)


def resolve(root: Any, path: str) -> Any:
    """Return the object that a dotted path names; `root` is the object that the path's first word names.

    Raises AttributeError: this version of the library does not have the object.
    """
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root
