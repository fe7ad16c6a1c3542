"""Define what all sites, the places where settings act, have in common."""

from __future__ import annotations

import inspect

from ..core.covers import covers
from ..core.living_objects import instances

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings, T
    from ..core.hooks import AfterImport
    from ..core.program import Program


class NotSwitched(Exception):
    """Error: settings cannot be switched, or can no longer be switched; the message is the reason.

    `code`: code of a reason on which the parent acts; the message then has the words that its sentence needs.
    """

    code = ""


class Site:
    """Settings that act at one place of the program.

    A site is used in one of two ways:

    - At the start (`at_start`), the objects on which the settings act do not exist yet. `Settings` calls `on`
      once, when torch has just been imported, and calls the hooks while the program makes its objects. The
      settings stay.
    - Within a run, the objects exist. `ArmSwitch` calls `on` and `off` between two steps, again and again.
      `off` restores the program's own values.

    In both ways `cannot` is asked before `on`, and `read` reads the settings back from the living objects.

    Args:
        planned: settings of this place, as dicts with the fields of `schema.task.PlannedSetting`. Most places
            have just one: `setting` is the first, and `value` is its value.
        program: the owner of the objects.
        at_start: whether the settings are applied for good, or switched within a run.
    """

    is_switched = False
    """Whether the settings can be switched while the program runs."""
    wants_around = False
    """Whether calls of outermost modules must go through `inputs` and `around`."""
    acts_in_calls = False
    """Whether calls of outermost modules run differently with the settings, and may fail."""
    acts_in_loaders = False
    """Whether the settings act on loaders alone, so not within a call, and at extra cost when an epoch
    begins."""
    acts_in_updates = False
    """Whether the settings act on optimizers' updates of parameters alone, so not within a call."""
    compiles = False
    """Whether the first steps after switching on compile."""
    acts_between_steps = False
    """Whether `between_steps` must be called at the end of each step while the settings are on."""
    settles_at_once = False
    """Whether the first step after switching is like those that follow."""
    reaches_graphs = False
    """Whether the settings also act on a program that replays captured CUDA graphs."""
    suits_ranks = True
    """Whether ranks that share a model can switch at the same step."""
    num_queued = 0
    """Largest number of ready batches from before the last switch; 0 if batches are the same with the
    settings."""
    draws_elsewhere = False
    """Whether the router draws batches of another iterator with the settings, and so knows how many are
    ready."""
    num_workers = 0
    """Number of workers of each loader with the settings; 0 if the settings do not set it."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        self.planned, self.program, self.at_start = planned, program, at_start
        self.setting, self.value = planned[0], planned[0]["value"]
        self.failure = ""
        """Why the settings failed; a site that has failed does not act any more."""

    def own_groups(self) -> list[Any]:
        """Return the optimizers whose updates the settings change, and for each of their groups the
        program's own options."""
        return []

    # Both uses ask this of a site

    def cannot(self) -> str:
        """Return why the settings cannot act on the program; "" if they can.

        Objects that the program has yet to make are no reason at the start.
        """
        if self.at_start or self.is_switched:
            return ""
        return "%s cannot be switched while the program runs" % self.setting["knob"]

    def has_already(self) -> bool:
        """Tell whether the program has all settings of its own accord. Asked within a run, after `cannot`.

        `OtherArm` asks it of sites that are never turned on.
        """
        return False

    def on(self) -> None:
        """Let the settings act. Raises NotSwitched: they cannot."""

    def off(self) -> None:
        """Restore the program's own values. Raises NotSwitched: the program's values cannot be restored."""

    def between_steps(self) -> None:
        """Act at the end of a step, while the settings are on."""

    def check(self, is_on: bool) -> None:
        """Raise NotSwitched if the present value is not the setting's value while it is on, else the
        program's."""
        if self.failure:
            raise NotSwitched(self.failure)

    def read(self) -> list[Answer]:
        """Return one dict per setting, with the fields of `schema.run.Readback`."""
        return [self.read_one(setting) for setting in self.planned]

    def read_one(self, setting: Planned) -> Answer:
        """Read one setting from the living objects on which it acts; every site says how."""
        raise NotImplementedError

    # Hooks

    def before_torch(self) -> None:
        """Act at interpreter start, before the program's first line."""

    def is_kept(self, name: str) -> bool:
        """Tell whether the environment variable `name` keeps its value against the program."""
        return False

    def on_imports(self, hooks: AfterImport) -> None:
        """Register at interpreter start actions for the time when libraries have been imported."""

    def constructing(self) -> None:
        """Cover constructors at the start, when torch has been imported and has not been used."""

    def hold(self) -> None:
        """Restore the settings' values at the start where the program has changed them."""

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
        """Return None or `(context, finish)`: call the module in `context`, and pass its output through
        `finish`."""

    # The program's objects

    @property
    def torch(self) -> Any:
        return self.program.torch

    def roots(self) -> list[Any]:
        """Return the outermost modules that were called and live; none at the start."""
        return [] if self.at_start else list(self.program.roots.alive())

    def alive(self, kind: type) -> list[Any]:
        """Search for the program's objects of a class; none at the start. Call it outside timed steps."""
        return [] if self.at_start else instances(kind)


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
    """Let `rewrite` change the arguments of a class's constructor; `built` gets the object and `rewrite`'s
    result.

    If no argument was changed, `otherwise` makes the result from the error's text ("" if torch refuses the
    call).
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


def call_inside(
    entered: list[Surroundings], call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Make a call inside the given contexts, the last outermost; pass the output through each context's
    `finish`."""
    if not entered:
        return call(module, *args, **kwargs)
    context, finish = entered[-1]
    with context:
        output = call_inside(entered[:-1], call, module, args, kwargs)
    return finish(output)


def unchanged(output: Any) -> Any:
    """Finish a call whose output stays as it is."""
    return output


def resolve(root: Any, path: str) -> Any:
    """Return the object that a dotted path names; `root` is the object that the path's first word names.

    Raises AttributeError: this version of the library does not have the object.
    """
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root
