"""Settings that are switched together, while the program runs."""

from __future__ import annotations

from contextlib import contextmanager, suppress

from ..apply.site import call_inside, chosen
from ..core.annotations import Answer, Any, Args, Callable, Iterator, Kwargs, Planned, Program, Surroundings
from ..core.device import free_memory
from ..core.errors import by_a_signal
from .loader_switch import LoaderSwitch
from .switches import (
    AutocastSwitch,
    ChannelsLastSwitch,
    CompileSwitch,
    FusedSwitch,
    GlobalSwitch,
    HasAlready,
    NotSwitched,
    QuantizeSwitch,
    Switch,
    TransferSwitch,
)


class Arm:
    """Settings that are switched together. `is_on`: the program runs with them now."""

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
        """Knobs that a call failed with, and went well without."""
        self._failure = ""

    @property
    def acts_in_calls(self) -> bool:
        """Tell whether calls of outermost modules must go through `around_root` while it is on."""
        return any(switch.acts_in_calls for switch in self._switches)

    @property
    def compiles(self) -> bool:
        return any(switch.compiles for switch in self._switches)

    @property
    def suits_ranks(self) -> bool:
        return all(switch.suits_ranks for switch in self._switches)

    @property
    def unsuited_to_short_epochs(self) -> list[str]:
        """List the knobs whose switch costs more where an epoch begins."""
        return [one["knob"] for switch in self._switches if not switch.suits_short_epochs for one in switch.planned]

    @property
    def num_queued(self) -> int:
        return max([0, *(switch.num_queued for switch in self._switches)])

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
        """Make a call that has failed again: without one of the switches after the other, then without all of them.

        From then on the arm is as good as off; `check` says so.

        Args:
            call: goes through `around_root`.

        Raises:
            Exception: what the call raises without the arm, too.
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
        error.__traceback__ = None  # it holds what the failed call computed
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
        """Raise NotSwitched if a call failed while it was on."""
        if self._failure:
            raise NotSwitched(self._failure)

    def on(self) -> None:
        """Switch it on. Raises NotSwitched: a setting did not take; HasAlready: the program has all of them."""
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
        """Switch it off. Raises NotSwitched: something cannot be put back; the rest is."""
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
        """Switch it off for a while. Raises NotSwitched: as `on` and `off`."""
        turned = list(self._turned)
        for switch in reversed(turned):
            switch.off()
        try:
            yield
        finally:
            for switch in turned:
                switch.on()

    def check(self) -> None:
        """Raise NotSwitched if something else holds than should."""
        self.refuse_failed()
        for switch in self._switches:
            switch.check(self.is_on)

    def check_acted(self) -> None:
        """Raise NotSwitched if it was on for some steps, and did not act in them."""
        for switch in self._switches:
            for answer in switch.answers():
                if answer["ok"] is False:
                    raise NotSwitched(_refused(answer))


class Unswitched(Switch):
    """A setting of another version's catalogue, which nothing here can switch."""

    def on(self) -> None:
        raise NotSwitched("%s cannot be switched while the program runs" % self.planned[0]["knob"])


_SWITCHES: dict[str, type[Switch]] = {
    "attr": GlobalSwitch,
    "call": GlobalSwitch,
    "autocast": AutocastSwitch,
    "channels_last": ChannelsLastSwitch,
    "compile": CompileSwitch,
    "method": TransferSwitch,
    "quantize": QuantizeSwitch,
    "torch.utils.data.DataLoader": LoaderSwitch,
    "torch.optim.Adam": FusedSwitch,
}


def _refused(answer: Answer) -> str:
    found = answer["found"]
    reason = answer["detail"] or (found if isinstance(found, str) else found.get("reason", "")) or "no reason was given"
    return "%s did not act: %s" % (answer["knob"], reason)
