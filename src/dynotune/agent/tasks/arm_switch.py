"""Switch the settings of a candidate together, while the program runs."""

from __future__ import annotations

from contextlib import contextmanager, suppress

from ..core.device import free_memory
from ..core.errors import by_a_signal
from ..sites.loader_router import LoaderSwitch
from ..sites.site import call_inside, chosen
from ..sites.switches import (
    AutocastSwitch,
    ChannelsLastSwitch,
    CompileSwitch,
    FusedSwitch,
    GlobalSwitch,
    GradModeSwitch,
    HasAlready,
    NotSwitched,
    QuantizeSwitch,
    Switch,
    TransferSwitch,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings
    from ..core.program import Program

_SWITCHES: dict[str, type[Switch]] = {
    "attr": GlobalSwitch,
    "call": GlobalSwitch,
    "autocast": AutocastSwitch,
    "channels_last": ChannelsLastSwitch,
    "compile": CompileSwitch,
    "decode": LoaderSwitch,
    "grad_mode": GradModeSwitch,
    "method": TransferSwitch,
    "quantize": QuantizeSwitch,
    "torch.utils.data.DataLoader": LoaderSwitch,
    "torch.optim.Adam": FusedSwitch,
}


class ArmSwitch:
    """A candidate: settings that are switched together. `is_on`: whether the program runs with these settings now."""

    def __init__(self, planned: list[Planned], program: Program) -> None:
        by_class: dict[type[Switch], list[Planned]] = {}
        for setting in planned:
            by_class.setdefault(chosen(setting["site"], _SWITCHES) or Unswitched, []).append(setting)
        self.program = program
        self._switches = [made(settings, program) for made, settings in by_class.items()]
        self._turned: list[Switch] = []
        self.is_on = False
        self.has_been_on = False
        self.blamed: list[str] = []
        """Knobs with which a call failed, and without which it succeeded."""
        self._failure = ""

    @property
    def acts_in_calls(self) -> bool:
        """Tell whether calls of outermost modules must go through `around_root` while the candidate is on."""
        return any(switch.acts_in_calls for switch in self._switches)

    @property
    def compiles(self) -> bool:
        return any(switch.compiles for switch in self._switches)

    @property
    def suits_ranks(self) -> bool:
        return all(switch.suits_ranks for switch in self._switches)

    @property
    def unsuited_to_short_epochs(self) -> list[str]:
        """List the candidate's knobs whose switch costs extra time when an epoch begins."""
        return [one["knob"] for switch in self._switches if not switch.suits_short_epochs for one in switch.planned]

    @property
    def num_queued(self) -> int:
        return max([0, *(switch.num_queued for switch in self._switches)])

    @property
    def num_workers(self) -> int:
        """Return the number of workers of the steps' loader now, as `Program.num_workers_now`."""
        chosen = max([0, *(switch.num_workers for switch in self._switches if self.is_on)])
        return chosen or self.program.num_workers_now()

    def around_root(self, call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
        entered: list[Surroundings] = []
        for switch in self._switches:
            if switch.site is not None:
                args, kwargs = switch.site.inputs(module, args, kwargs)
                around = switch.site.around(module, args, kwargs)
                if around is not None:
                    entered.append(around)
        return call_inside(entered, call, module, args, kwargs)

    def called_without(self, error: Exception, call: Callable[[], Any]) -> Any:
        """Repeat a failed call: first with one switch off, for each switch in turn, then with all switches off.

        After that the candidate is effectively off, and `check` reports that it is off.

        Args:
            call: function that makes the call through `around_root`.

        Raises:
            Exception: the call raises the same exception without the candidate.
        """
        suspects = [switch for switch in self._turned if switch.acts_in_calls]
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

    def _bench(self, switch: Switch) -> None:
        self._turned.remove(switch)
        self._switches.remove(switch)
        switch.off()

    def _unbench(self, switch: Switch) -> None:
        self._switches.append(switch)
        self._turned.append(switch)
        with suppress(NotSwitched):
            switch.on()

    def _failed_with(self, switches: list[Switch], error: Exception) -> None:
        self.blamed = [setting["knob"] for switch in switches for setting in switch.planned]
        line = (str(error).strip().splitlines() or [""])[0]
        self._failure = "a call failed with it: %s: %s" % (type(error).__name__, line)

    def refuse_failed(self) -> None:
        """Raise NotSwitched if a call failed while the candidate was on."""
        if self._failure:
            raise NotSwitched(self._failure)

    def on(self) -> None:
        """Switch the candidate on. Raises NotSwitched: a setting had no effect; HasAlready: no setting is left."""
        self.is_on = True
        for switch in list(self._switches):
            self._turned.append(switch)
            try:
                switch.on()
            except HasAlready:
                self._turned.pop()
                if len(self._switches) == 1:
                    raise
                self._switches.remove(switch)
        self.has_been_on = True
        self.check()

    def off(self) -> None:
        """Switch the candidate off. Raises NotSwitched: a value cannot be restored; all other values are restored."""
        reason: NotSwitched | None = None
        while self._turned:
            try:
                self._turned.pop().off()
            except NotSwitched as error:
                reason = error
        self.is_on = False
        if reason is not None:
            raise reason

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Switch the candidate off for a while. Raises NotSwitched: as for `on` and `off`."""
        # A loader acts between calls, and its batches stay the same.
        turned = [switch for switch in self._turned if not isinstance(switch, LoaderSwitch)]
        for switch in reversed(turned):
            switch.off()
        try:
            yield
        finally:
            for switch in turned:
                switch.on()

    def check(self) -> None:
        """Raise NotSwitched if a setting's present value differs from the expected value."""
        self.refuse_failed()
        for switch in self._switches:
            switch.check(self.is_on)

    def acted(self) -> list[Answer]:
        """Return the read-back; raise NotSwitched if the candidate was on for some steps without effect."""
        answers = [answer for switch in self._switches for answer in switch.answers()]
        for answer in answers:
            if answer["ok"] is False:
                raise NotSwitched(_refused(answer))
        return answers


class Unswitched(Switch):
    """A setting from another version's catalogue, which this agent cannot switch."""

    def on(self) -> None:
        raise NotSwitched("%s cannot be switched while the program runs" % self.planned[0]["knob"])


def _refused(answer: Answer) -> str:
    found = answer["found"]
    reason = answer["detail"] or (found if isinstance(found, str) else found.get("reason", "")) or "no reason was given"
    return "%s did not act: %s" % (answer["knob"], reason)
