"""Switch the sites of an arm on and off together, in their order, while the program runs."""

from __future__ import annotations

from contextlib import contextmanager, suppress

from ..core import reasons
from ..core.device import free_memory
from ..core.errors import by_a_signal
from ..sites.registry import by_site
from ..sites.site import NotSwitched, Site, call_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings
    from ..core.program import Program
    from .updates_within import OwnGroups


class HasAlready(NotSwitched):
    """Error: the program has these settings already, so there is nothing to switch."""

    code = reasons.HAS_ALREADY


class ArmSwitch:
    """Turn the sites of an arm on and off together.

    `is_on`: whether the program runs with the arm's settings now.
    """

    def __init__(self, planned: list[Planned], program: Program) -> None:
        self.program = program
        # A setting without a site is from another version's catalogue. The plain Site says that such a
        # setting cannot be switched.
        self._sites = [(kind or Site)(group, program, False) for kind, group in by_site(planned).items()]
        self._turned: list[Site] = []
        self._had: list[Site] = []  # sites whose settings the program has of its own accord
        self.is_on = False
        self.has_been_on = False
        self.blamed: list[str] = []
        """Knobs with which a call failed, and without which it succeeded."""
        self.unsuited: list[str] = []
        """Knobs that cannot be switched in this program, or that did not act."""
        self._failure = ""

    @property
    def acts_in_calls(self) -> bool:
        """Tell whether calls of outermost modules must go through `around_root` while the candidate is on."""
        return any(site.acts_in_calls for site in self._sites)

    @property
    def changes_calls(self) -> bool:
        """Tell whether calls of outermost modules may give other results while the candidate is on."""
        return any(map(_acts_on_calls, self._sites))

    def compared(self, *, in_updates: bool) -> list[str]:
        """List the candidate's knobs of which calls of modules tell, or updates of parameters; those that
        the program has already are among both."""
        acts = _acts_in_updates if in_updates else _acts_on_calls
        sites = [*filter(acts, self._sites), *self._had]
        return [setting["knob"] for site in sites for setting in site.planned]

    def own_groups(self) -> list[OwnGroups]:
        """Return the optimizers whose updates the candidate changes, with their own options."""
        return [owned for site in self._turned if _acts_in_updates(site) for owned in site.own_groups()]

    @property
    def acts_between_steps(self) -> bool:
        return any(site.acts_between_steps for site in self._sites)

    @property
    def settles_at_once(self) -> bool:
        return all(site.settles_at_once for site in self._sites)

    @property
    def reaches_graphs(self) -> bool:
        return all(site.reaches_graphs for site in self._sites)

    @property
    def compiles(self) -> bool:
        return any(site.compiles for site in self._sites)

    @property
    def suits_ranks(self) -> bool:
        return all(site.suits_ranks for site in self._sites)

    @property
    def unsuited_to_short_epochs(self) -> list[str]:
        """List the candidate's knobs whose switch costs extra time when an epoch begins."""
        return [setting["knob"] for site in self._sites if site.acts_in_loaders for setting in site.planned]

    @property
    def num_queued(self) -> int:
        return max([0, *(site.num_queued for site in self._sites)])

    @property
    def draws_elsewhere(self) -> bool:
        return any(site.draws_elsewhere for site in self._sites)

    @property
    def num_workers(self) -> int:
        """Return the number of workers of the steps' loader now, as `Program.num_workers_now`."""
        chosen = max([0, *(site.num_workers for site in self._sites if self.is_on)])
        return chosen or self.program.num_workers_now()

    def around_root(self, call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
        entered: list[Surroundings] = []
        for site in self._sites:
            if site.wants_around:
                args, kwargs = site.inputs(module, args, kwargs)
                around = site.around(module, args, kwargs)
                if around is not None:
                    entered.append(around)
        return call_inside(entered, call, module, args, kwargs)

    def called_without(self, error: Exception, call: Callable[[], Any]) -> Any:
        """Repeat a failed call: first with one site off, for each site in turn, then with all sites off.

        After that the candidate is effectively off, and `check` reports that it is off.

        Args:
            call: function that makes the call through `around_root`.

        Raises:
            Exception: the call raises the same exception without the candidate.
        """
        suspects = [site for site in self._turned if site.acts_in_calls]
        free_memory(self.program.torch, error)
        for suspect in suspects if len(suspects) > 1 else ():
            self._bench(suspect)
            try:
                output = call()
            except Exception as other:
                if by_a_signal(other):
                    raise
                free_memory(self.program.torch, other)
                self._unbench(suspect)
            else:
                self._failed_with([suspect], error)
                return output
        for suspect in suspects:
            self._bench(suspect)
        error.__traceback__ = None  # the exception refers to the tensors of the failed call
        output = call()
        self._failed_with(suspects, error)
        return output

    def _bench(self, site: Site) -> None:
        self._turned.remove(site)
        self._sites.remove(site)
        site.off()

    def _unbench(self, site: Site) -> None:
        self._sites.append(site)
        self._turned.append(site)
        with suppress(NotSwitched):
            site.on()

    def _failed_with(self, sites: list[Site], error: Exception) -> None:
        self.blamed = [setting["knob"] for site in sites for setting in site.planned]
        line = (str(error).strip().splitlines() or [""])[0]
        self._failure = "a call failed with it: %s: %s" % (type(error).__name__, line)

    def refuse_failed(self) -> None:
        """Raise NotSwitched if a call failed while the candidate was on."""
        if self._failure:
            raise NotSwitched(self._failure)

    def on(self) -> None:
        """Switch the candidate on. Raises NotSwitched: a setting had no effect; HasAlready: no setting is
        left."""
        self.is_on = True
        for site in list(self._sites):
            if reason := site.failure or site.cannot():
                self.unsuited = [setting["knob"] for setting in site.planned]
                raise NotSwitched(reason)
            if not site.has_already():
                self._turned.append(site)
                site.on()
            elif len(self._sites) == 1:
                raise HasAlready
            else:
                self._sites.remove(site)
                self._had.append(site)
        self.has_been_on = True
        self.check()

    def off(self) -> None:
        """Switch the candidate off. Raises NotSwitched: a value cannot be restored; all other values are
        restored."""
        reason: NotSwitched | None = None
        while self._turned:
            try:
                self._turned.pop().off()
            except NotSwitched as error:
                reason = error
        self.is_on = False
        if reason is not None:
            raise reason

    def between_steps(self) -> None:
        """Let the settings that are on act at the end of a step."""
        for site in self._turned:
            site.between_steps()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Switch the candidate off for a while. Raises NotSwitched: as for `on` and `off`."""
        # Other settings need not be switched off: they act between calls, and the batches stay the same.
        turned = list(filter(_acts_on_calls, self._turned))
        for site in reversed(turned):
            site.off()
        try:
            yield
        finally:
            for site in turned:
                site.on()

    def check(self) -> None:
        """Raise NotSwitched if a setting's present value differs from the expected value."""
        self.refuse_failed()
        for site in self._sites:
            site.check(self.is_on)

    def acted(self) -> list[Answer]:
        """Return the read-back; raise NotSwitched if the candidate was on for some steps without effect."""
        answers = [answer for site in self._sites for answer in site.read()]
        for answer in answers:
            if answer["ok"] is False:
                # Beside settings that this program cannot switch it may act, and in a run of its own.
                self.unsuited = [answer["knob"]]
                raise NotSwitched(_refused(answer))
        return answers


def _acts_on_calls(site: Site) -> bool:
    return not (site.acts_in_loaders or site.acts_in_updates)


def _acts_in_updates(site: Site) -> bool:
    return site.acts_in_updates


def _refused(answer: Answer) -> str:
    found = answer["found"]
    reason = (
        answer["detail"]
        or (found if isinstance(found, str) else found.get("reason", ""))
        or "no reason was given"
    )
    return "%s did not act: %s" % (answer["knob"], reason)
