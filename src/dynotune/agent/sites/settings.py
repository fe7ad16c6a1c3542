"""Apply the planned settings inside the user's process, and read them back.

No error here reaches the program: a failure is logged, and the setting's read-back reports it.
"""

from __future__ import annotations

import functools

from .registry import by_site
from .site import NotSwitched, Site, answer, call_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings
    from ..core.hooks import AfterImport
    from ..core.program import Program


class Settings:
    """All planned settings of this process.

    `planned`: dicts with the fields of `schema.task.PlannedSetting`.
    """

    def __init__(self, planned: list[Planned], program: Program) -> None:
        self._log = program.log
        self._unplaced: list[Planned] = []
        self._sites: list[Site] = []
        for kind, settings in by_site(planned).items():
            if kind is None:
                self._unplaced.extend(settings)
                continue
            try:
                self._sites.append(kind(settings, program, True))
            except Exception as error:
                self._unplaced.extend(settings)
                self._log("planning " + str(settings[0].get("knob")), error)
        self._has_run_a_root = False

    @property
    def wants_around(self) -> bool:
        """Tell whether any setting needs calls of outermost modules to go through `around_root`."""
        return any(site.wants_around for site in self._sites)

    def is_kept(self, name: str) -> bool:
        """Tell whether the environment variable `name` keeps its value against the program."""
        return any(site.is_kept(name) for site in self._sites)

    def before_torch(self) -> None:
        """Act at interpreter start: from here on, kept environment variables do not change."""
        self._each("before_torch")

    def on_imports(self, hooks: AfterImport) -> None:
        """Act at interpreter start, and prepare to cover libraries that the program imports later."""
        self._each("on_imports", hooks)

    def after_torch(self) -> None:
        """Cover constructors and turn all sites on; `import torch` has just finished."""
        self._each("constructing")
        for site in self._sites:
            if not site.failure:
                self._turn_on(site)

    def _turn_on(self, site: Site) -> None:
        try:
            site.failure = site.cannot()
            if not site.failure:
                site.on()
        except Exception as error:
            self._fail(site, "on", error)

    def hold(self) -> None:
        """Restore global settings that the program has changed. Call it when the window begins."""
        self._each("hold")

    def on_loader(self, loader: Any) -> None:
        """Act before the first batch is drawn from a DataLoader."""
        self._each("on_loader", loader)

    def on_root(self, module: Any) -> None:
        """Act before the first call of an outermost module."""
        if not self._has_run_a_root:
            self._has_run_a_root = True
            self._each("hold")
        self._each("on_root", module)

    def root_ran(self, module: Any) -> None:
        """Act after the first call of an outermost module."""
        self._each("root_ran", module)

    def around_root(self, call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call `module(*args, **kwargs)` with the inputs, contexts and output conversion of the settings.

        Raises only the exceptions of the program's own code.
        """
        entered: list[Surroundings] = []
        for site in self._sites:
            if site.failure or not site.wants_around:
                continue
            try:
                args, kwargs = site.inputs(module, args, kwargs)
                around = site.around(module, args, kwargs)
            except Exception as error:
                self._fail(site, "around", error)
                continue
            if around is not None:
                entered.append((around[0], functools.partial(self._finished, site, around[1])))
        return call_inside(entered, call, module, args, kwargs)

    def _finished(self, site: Site, finish: Callable[[Any], Any], output: Any) -> Any:
        try:
            return finish(output)
        except Exception as error:
            self._fail(site, "around", error)
            return output

    def readback(self) -> list[Answer]:
        """Return the state of the live process: one dict per setting, with the fields of
        `schema.run.Readback`."""
        answers = [
            answer(setting, None, "none", False, "this dynotune cannot apply it")
            for setting in self._unplaced
        ]
        for site in self._sites:
            if site.failure:
                answers.extend(answer(setting, None, "none", False, site.failure) for setting in site.planned)
                continue
            try:
                answers.extend(site.read())
            except Exception as error:
                self._log("readback", error)
                failed = "reading it back failed: %r" % error
                answers.extend(answer(setting, None, "none", None, failed) for setting in site.planned)
        return answers

    def _each(self, entry: str, *args: Any) -> None:
        for site in self._sites:
            if not site.failure:
                try:
                    getattr(site, entry)(*args)
                except Exception as error:
                    self._fail(site, entry, error)

    def _fail(self, site: Site, entry: str, error: Exception) -> None:
        kind = "" if isinstance(error, NotSwitched) else type(error).__name__ + ": "
        site.failure = "it could not be applied: %s%s" % (kind, error)
        self._log("%s of %s" % (entry, site.planned[0]["knob"]), error)
