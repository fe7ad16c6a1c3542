"""What every place where settings act has in common."""

from __future__ import annotations

import inspect

from ..core.annotations import AfterImport, Answer, Any, Args, Callable, Event, Kwargs, Planned, Surroundings, T
from ..core.covers import covers


class Site:
    """Settings that act at one place. An entry may raise: `Settings` catches it, and leaves the site alone.

    Args:
        planned: the settings of this place, as in the plan: dicts of knob, value, site, keep. Most places have one:
            `setting` is the first, `value` what it asks for.
    """

    wants_around = False
    """Calls of outermost modules must go through `inputs` and `around`."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        self.planned, self.event = planned, event
        self.setting, self.value = planned[0], planned[0]["value"]
        self.torch: Any = None
        self.failure = ""

    def before_torch(self) -> None:
        """Act at interpreter start, before the program's first line."""

    def on_imports(self, hooks: AfterImport) -> None:
        """Arrange at interpreter start what is to be done once libraries have been imported."""

    def after_torch(self, torch: Any) -> None:
        """Act when `import torch` has just finished; nothing has used it yet."""
        self.torch = torch

    def hold(self) -> None:
        """Put back what the program has changed."""

    def on_loader(self, loader: Any) -> None:
        """Act before a DataLoader is drawn from for the first time."""

    def on_root(self, module: Any) -> None:
        """Act before an outermost module runs for the first time."""

    def root_ran(self, module: Any) -> None:
        """Act after an outermost module has run for the first time."""

    def inputs(self, module: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the inputs to call the outermost module with."""
        return args, kwargs

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        """Return None, or `(context, finish)`: the call is made in `context`, its output goes through `finish`."""

    def readback(self) -> list[Answer]:
        """Return one dict per setting, with the fields of `schema.run.Readback`."""
        return [self.read(setting) for setting in self.planned]

    def read(self, setting: Planned) -> Answer:
        raise NotImplementedError


def chosen(site: dict[str, Any], table: dict[str, type[T]]) -> type[T] | None:
    """Return the entry of a table for a setting's place: by its action, a class that is constructed, or its type."""
    kind = site.get("type", "")
    words = site.get("targets", ()) if kind == "constructor" else (site.get("action", kind),)
    return next((table[word] for word in words if word in table), None)


def text(value: object) -> str:
    """Write a value as the user wrote it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer(setting: Planned, found: object, witness: str, ok: bool | None, detail: str = "") -> Answer:
    """Make a read-back. `found` None: nothing could witness it, for the reason in `detail`."""
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


def call_inside(entered: list[Surroundings], call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make a call in all these contexts, the last outermost; its output goes through what finishes each."""
    if not entered:
        return call(module, *args, **kwargs)
    context, finish = entered[-1]
    with context:
        output = call_inside(entered[:-1], call, module, args, kwargs)
    return finish(output)


def resolve(root: Any, path: str) -> Any:
    """Return the object that a dotted path names, `root` being what its first word stands for.

    Raises AttributeError: this version has no such thing.
    """
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root
