"""Give rules access to an observation. An unknown fact raises `Missing` and is never taken for a value."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from dynotune.schema.allocator import Allocator
from dynotune.schema.attribution import Attribution, LostTime
from dynotune.schema.compilation import Compilation
from dynotune.schema.facts import Unknown, Value
from dynotune.schema.loader import Loader
from dynotune.schema.model import Model, Optimizer
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import Kernels, Place, TraceSummary
from dynotune.text import words

T = TypeVar("T")
U = TypeVar("U")
NOT_ASKED = Unknown("it was not asked for")


class Missing(Exception):
    """Error of `ObservationView` when a rule needs a fact that is not known."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


def required(value: T | Unknown, name: str) -> T:
    """Return the value. Raises Missing: the value is unknown."""
    if isinstance(value, Unknown):
        raise Missing(name, value.reason)
    return value


def or_else(ask: Callable[[], T], otherwise: U) -> T | U:
    """Return the result of `ask`; `otherwise` if a fact that `ask` needs is not known."""
    try:
        return ask()
    except Missing:
        return otherwise


def or_unknown(ask: Callable[[], float]) -> float | Unknown:
    """Return the share from `ask`; Unknown if a fact that `ask` needs is not known."""
    try:
        return ask()
    except Missing as missing:
        return Unknown(str(missing))


class ObservationView:
    """Read access for rules. Every method raises `Missing` if the answer is not known."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation

    # Facts

    def fact(self, name: str) -> Value:
        """Return a fact of the machine, such as `gpu.name`, or of the live process, such as
        `live.num_threads`."""
        facts = self.process.live if name.startswith("live.") else self.observation.facts
        return required(facts.get(name, NOT_ASKED), name)

    def number(self, name: str) -> float:
        """Return a fact that is a number."""
        value = self.fact(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Missing(name, f"{value!r} is not a number")
        return value

    def text(self, name: str) -> str:
        """Return a fact that is text."""
        return self._typed(name, str, "no text")

    def truth(self, name: str) -> bool:
        """Return a fact that is true or false."""
        return self._typed(name, bool, "neither true nor false")

    def words(self, name: str) -> list[str]:
        """Return a fact that is a list, each item as text."""
        return list(map(str, self._typed(name, list, "no list")))

    def _typed(self, name: str, type_: type[T], otherwise: str) -> T:
        value = self.fact(name)
        if not isinstance(value, type_):
            raise Missing(name, f"{value!r} is {otherwise}")
        return value

    def fact_or_none(self, name: str) -> Value:
        """Return a fact that only adds to a judgement; None if it is not known."""
        return or_else(lambda: self.fact(name), None)

    def number_or_none(self, name: str) -> float | None:
        """Return a fact that is a number; None if it is no number, or not known."""
        return or_else(lambda: self.number(name), None)

    def fact_evidence(self, *names: str) -> list[str]:
        """Return one line of evidence for each known fact."""
        values = ((name, self.fact_or_none(name)) for name in names)
        return [f"{name}: {_in_words(name, value)}" for name, value in values if value is not None]

    def per_step(self, name: str) -> float | None:
        """Return a count of the window divided by its steps; None if it is not known."""
        return or_else(lambda: self.number(name) / max(1, self.timing.num_steps), None)

    def mentions(self, name: str) -> str:
        """Return a line of evidence: the fact's value, or that it is unknown. No rule decides by this
        line."""
        live = self._known_processes()[:1] if name.startswith("live.") else []
        value = (live[0].live if live else self.observation.facts).get(name, NOT_ASKED)
        return f"{name} unknown: {value.reason}" if isinstance(value, Unknown) else f"{name}: {value}"

    def _changes(self, name: str) -> list[EnvironmentChange]:
        """Return how processes changed an environment variable, in order."""
        changes = [change for process in self._known_processes() for change in process.environment_changes]
        return [change for change in changes if change.name == name and not change.kept]

    def variable(self, name: str) -> str | None:
        """Return an environment variable as its process last changed it, else as the command gets it; None if
        unset."""
        if changes := self._changes(name):
            return changes[-1].value
        if f"env.{name}" not in self.observation.facts:
            return None  # some variables are facts only if they are set
        value = self.fact(f"env.{name}")
        return None if value is None else str(value)

    def who_set(self, name: str) -> str:
        """Return who set an environment variable, in words; "" if that is not known."""
        if changes := self._changes(name):
            last = changes[-1]
            return f"set by the program in {last.file}:{last.line} ({last.function})"
        origin = self.observation.facts.get(f"env_from.{name}")
        return origin if isinstance(origin, str) else ""

    def variable_evidence(self, *names: str) -> list[str]:
        """Return a line of evidence for each variable: its value, and who set it."""
        lines = []
        for name in names:
            value, who = self.variable(name), self.who_set(name)
            text = f"{name} is not set" if value is None else f"{name}={value}"
            lines.append(f"{text}, {who}" if who else text)
        return lines

    def place_of_variable(self, *names: str) -> Place:
        """Return where the program itself set the first of these variables; no place if the program set
        none."""
        changes = [self._changes(name) for name in names]
        last = next((of_one[-1] for of_one in changes if of_one), None)
        return Place() if last is None else Place(function=f"{last.file}({last.line}): {last.function}")

    # The program

    def _known_processes(self) -> list[ProcessState]:
        processes = self.observation.processes
        return [] if isinstance(processes, Unknown) else processes

    @property
    def is_watched(self) -> bool:
        """Tell whether a command ran and its processes made steps."""
        return bool(self._known_processes())

    @property
    def processes(self) -> list[ProcessState]:
        """Return the processes that make steps, in the order of ranks; never empty."""
        processes = required(self.observation.processes, "the running program")
        if not processes:
            raise Missing("the running program", "no process of it made steps")
        return processes

    @property
    def process(self) -> ProcessState:
        """Return the state of the first rank's process."""
        return self.processes[0]

    @property
    def timing(self) -> Timing:
        return required(self.process.timing, "timing of the plain window")

    @property
    def loaders(self) -> list[Loader]:
        return self.process.loaders

    @property
    def models(self) -> list[Model]:
        return self.process.models

    @property
    def optimizers(self) -> list[Optimizer]:
        return self.process.optimizers

    @property
    def allocators(self) -> list[Allocator]:
        return self.process.allocators

    @property
    def compilation(self) -> Compilation:
        return required(self.process.compilation, "what torch.compile did")

    @property
    def is_training(self) -> bool:
        """Tell whether an optimizer stepped."""
        return bool(self.optimizers)

    @property
    def uses_cuda(self) -> bool:
        """Tell whether the model, or any traced work, is on a CUDA device."""
        trace = self.observation.trace
        traced = not isinstance(trace, Unknown) and bool(trace.devices)
        return traced or any(device.startswith("cuda") for model in self.models for device in model.devices)

    # Time

    @property
    def trace(self) -> TraceSummary:
        return required(self.observation.trace, "the trace")

    @property
    def kernels(self) -> Kernels:
        """Return the kernels of the first rank; Missing if no device work was recorded."""
        if not self.trace.kernels:
            raise Missing("kernels in the trace", "no device work was recorded")
        return self.trace.kernels[0]

    def kernel_share(self, *classes: str) -> float:
        """Return the time of these classes' kernels as a share of an unrecorded step, at most the device's
        busy time."""
        attribution = self.attribution
        shares = sum(row.share for row in self.kernels.classes if row.name in classes)
        return min(shares, 1.0) * attribution.shares.device

    @property
    def attribution(self) -> Attribution:
        return required(self.observation.attribution, "where a step goes")

    def losses(self, *ids: str) -> list[LostTime]:
        """Return the losses with these ids as shares of an unrecorded step, largest first."""
        return sorted(
            (loss for loss in self.attribution.lost_time if loss.id in ids), key=lambda loss: -loss.share
        )

    def lost(self, *ids: str) -> float:
        """Return the sum of the losses with the given ids. Causes of idle time do not overlap one another."""
        return sum(loss.share for loss in self.losses(*ids))


def _in_words(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        words.num_bytes(value) if name.endswith("_bytes") and isinstance(value, int | float) else str(value)
    )


def needs(condition: bool, name: str, reason: str) -> None:
    """Check what a rule needs. Raises Missing: `condition` is false."""
    if not condition:
        raise Missing(name, reason)


def evidence_of(losses: Iterable[LostTime], most: int = 3) -> list[str]:
    """Return lines of evidence for the largest losses."""
    return [line for loss in list(losses)[:most] for line in loss.evidence]
